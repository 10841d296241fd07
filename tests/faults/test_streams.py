"""F44: open streams, whatever their number and however slow their readers, delay no other call."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for
from tests.helpers.streams import raw_stub

from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import NoDaemon
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client import daemon_channel
from mosaic.trainer.client.trainer_client import TrainerClient

WATCHERS = 500


def test_500_watchers_leave_every_other_call_answered(trainer: TrainerClient, workspace: Workspace) -> None:
    """F44: 500 open watches; runs are submitted, followed, listed and cancelled, and each watcher gets the end."""
    with raw_stub(workspace) as (stub, metadata):
        watches = [stub.WatchRuns(pb.WatchRequest(after=-1), metadata=metadata) for _ in range(WATCHERS)]
        assert all(next(watch).cursor >= 0 for watch in watches)
        run_id = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
        wait_for(lambda: (trainer.get_run(run_id).global_step or 0) > 5, "its steps")
        assert [view.run_id for view in trainer.runs()] == [run_id]
        assert b"".join(chunk.data for chunk in trainer.log(run_id)) is not None
        assert list(trainer.metrics(run_id, ["scripted/step"]))
        trainer.cancel_run(run_id)
        assert ended(trainer, run_id).outcome == "cancelled"
        for watch in watches:
            assert any('"finished"' in text for batch in _until(watch, '"finished"') for text in batch.events_json)
            watch.cancel()


def _until(watch: Any, part: str) -> Iterator[pb.EventBatch]:
    for batch in watch:
        yield batch
        if any(part in text for text in batch.events_json):
            return


def test_readers_that_stop_reading_hold_no_thread(trainer: TrainerClient, workspace: Workspace) -> None:
    """F44: 100 readers of a large log and 100 of its tail leave it after the first part."""
    run_id = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
    wait_for(lambda: (trainer.get_run(run_id).global_step or 0) > 1, "its first step")
    log = workspace.run(run_id).stdout_log("scripted")
    with open(log, "ab") as file:
        file.write((b"x" * 79 + b"\n") * 50_000)
    with raw_stub(workspace) as (stub, metadata):
        for follow in (False, True):
            requests = [pb.LogRequest(run=run_id, follow=follow) for _ in range(100)]
            readers = [stub.ReadLog(request, metadata=metadata) for request in requests]
            assert all(next(reader).data for reader in readers)
            assert trainer.get_run(run_id).stage == "running"
            assert sum(len(chunk.data) for chunk in trainer.log(run_id)) == 4_000_000
        trainer.cancel_run(run_id)
        assert ended(trainer, run_id).outcome == "cancelled"


def test_a_call_to_a_stopped_daemon_ends_with_a_sentence(
    daemon: LiveDaemon, trainer: TrainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F44: every call has a deadline; a stream must begin before it, and a finite one must not fall silent."""
    run_id = ended(trainer, trainer.submit(scripted(steps=3)).run_id).run_id
    monkeypatch.setattr(daemon_channel, "REPLY_TIMEOUT_S", 0.5)
    monkeypatch.setattr(daemon_channel, "SLOW_TIMEOUT_S", 0.5)
    calls: list[Callable[[], object]] = [
        lambda: trainer.get_status(),
        lambda: trainer.runs(),
        lambda: trainer.submit(scripted(steps=1)),
        lambda: next(trainer.watch()),
        lambda: list(trainer.metrics(run_id)),
        lambda: list(trainer.log(run_id, follow=True)),
        lambda: next(trainer.frames(run_id)),
    ]
    assert daemon.process is not None
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        for call in calls:
            with pytest.raises(NoDaemon, match=r"did not answer within 0\.5 s"):
                call()
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    monkeypatch.undo()
    assert trainer.get_status().pid == daemon.process.pid


def test_the_time_that_a_reader_takes_is_not_a_silence(
    trainer: TrainerClient, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F44: only the wait for a reply counts, and one thread measures it for the whole stream."""
    run_id = ended(trainer, trainer.submit(scripted(steps=3)).run_id).run_id
    log = workspace.run(run_id).stdout_log("scripted")
    log.write_bytes(b"x" * 4_000_000)
    monkeypatch.setattr(daemon_channel, "REPLY_TIMEOUT_S", 1.0)
    chunks = trainer.log(run_id)
    size = len(next(chunks).data)
    guards = [thread for thread in threading.enumerate() if thread.name == "silence-guard"]
    threading.Event().wait(1.5)
    for chunk in chunks:
        size += len(chunk.data)
        assert [thread for thread in threading.enumerate() if thread.name == "silence-guard"] == guards
    assert (size, len(guards)) == (4_000_000, 1)
