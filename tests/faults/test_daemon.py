"""What a killed daemon, a killed keeper, a damaged index or a rude neighbour may not change."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.helpers.commands import mosaic
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for
from tests.helpers.fault_table import count_kills
from tests.helpers.streams import telemetry

from mosaic.base.files import write_json
from mosaic.base.handshake import NONCE_KEY, PROOF_KEY, TOKEN_KEY
from mosaic.base.journal import read_all
from mosaic.base.processes import own_identity
from mosaic.base.store.index_schema import MAX_CHECKED_BYTES
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import IdentityFailed, NoDaemon
from mosaic.contracts.events import RecordChanged
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.states import Attempt
from mosaic.contracts.trainer_pb2_grpc import TrainerServicer, add_TrainerServicer_to_server
from mosaic.trainer.client.connect import connect, read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient

FALSE_PROOF = ((NONCE_KEY, "0" * 32), (PROOF_KEY, "0" * 64))
KILLS = count_kills(3)


def keeper_pid(attempt: Attempt) -> int:
    assert attempt.keeper is not None
    return attempt.keeper["pid"]


def some_steps(trainer: TrainerClient, run_id: str, count: int) -> int:
    wait_for(lambda: (trainer.get_run(run_id).global_step or 0) >= count, f"{count} steps")
    pid: int = wait_for(lambda: trainer.get_run(run_id).pid, "the keeper's report")
    return pid


def workers_of(run_dir: str) -> list[int]:
    """Every process that was given this run's folder, but for keepers and daemons."""
    mark = f"MOSAIC_RUN_DIR={run_dir}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_killed_daemon_changes_nothing_for_its_runs(
    daemon: LiveDaemon, trainer: TrainerClient, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    """R6.3, F1: killed at random times; the next daemon has the run with the same process, and no line is missing."""
    view = trainer.submit(scripted(steps=1_000_000, dt=0.01))
    run_id, recovery_s = view.run_id, []
    pid = some_steps(trainer, run_id, 1)
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.0, 0.3))
        daemon.kill()
        trainer.close()
        started_at = time.monotonic()
        trainer = daemon.start()
        wait_for(lambda: trainer.get_run(run_id).pid == pid, "the same worker")  # noqa: B023
        recovery_s.append(time.monotonic() - started_at)
        assert trainer.get_run(run_id).stage == "running"
        assert workers_of(view.run_dir) == [pid]
    record_property("tries", KILLS)
    record_property("worst_s", max(recovery_s))
    assert_nothing_is_missing(trainer, run_id)
    trainer.close()


DIES_BEFORE_THE_KEEPER = """
import os, signal
from mosaic.trainer import __main__
from mosaic.trainer.executors.local import LocalExecutor
LocalExecutor.start = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
raise SystemExit(__main__.main())
"""


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_daemon_that_is_killed_before_it_starts_the_keeper_leaves_a_run_that_can_be_started_or_cancelled(
    workspace: Workspace, plugins: Path, is_cancelled: bool
) -> None:
    """F1: the run is recorded as starting, and it has no process."""
    daemon = LiveDaemon(workspace, plugins)
    command, daemon.command = daemon.command, [sys.executable, "-c", DIES_BEFORE_THE_KEEPER]
    with daemon.start() as trainer, suppress(NoDaemon):  # it may die before it answers
        trainer.submit(scripted(steps=2))
    assert daemon.process is not None
    daemon.process.wait()
    (run_id,) = (path.name for path in workspace.runs.glob("[!.]*"))
    daemon.command = command
    with daemon.start() as trainer:
        if is_cancelled:
            trainer.cancel_run(run_id)
        assert ended(trainer, run_id).outcome == ("cancelled" if is_cancelled else "succeeded")
    daemon.end()


def test_a_terminated_daemon_leaves_its_runs_alone(daemon: LiveDaemon, trainer: TrainerClient) -> None:
    """F2: by SIGTERM or `mosaic daemon stop`; stopping the runs, too, is another option."""
    view = trainer.submit(scripted(steps=1_000_000, dt=0.01))
    pid = some_steps(trainer, view.run_id, 1)
    for is_signal in (True, False):
        if is_signal:
            daemon.stop()
        else:
            assert mosaic(daemon.workspace, "daemon", "stop").code == 0
            assert daemon.process is not None
            daemon.process.wait(timeout=90)
        trainer.close()
        length = RunFolder(view.run_dir).journal.stat().st_size
        wait_for(lambda: RunFolder(view.run_dir).journal.stat().st_size > length, "steps without a daemon")  # noqa: B023
        trainer = daemon.start()
        assert (trainer.get_run(view.run_id).stage, trainer.get_run(view.run_id).pid) == ("running", pid)
        assert workers_of(view.run_dir) == [pid]
    assert_nothing_is_missing(trainer, view.run_id)
    trainer.close()


@contextmanager
def frozen_while_stopping(trainer: TrainerClient) -> Iterator[str]:
    """A run that is being cancelled by a daemon that ends; its keeper is frozen for the duration of the block."""
    run_id = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
    some_steps(trainer, run_id, 1)
    keeper = keeper_pid(trainer.get_run(run_id).attempts[-1])
    os.kill(keeper, signal.SIGSTOP)
    try:
        trainer.stop_daemon(cancel_runs=True)
        wait_for(lambda: trainer.get_run(run_id).stage == "stopping", "its cancellation")
        yield run_id
    finally:
        os.kill(keeper, signal.SIGCONT)


def test_a_daemon_that_cancels_its_runs_also_cancels_one_that_is_submitted_meanwhile(
    daemon: LiveDaemon, trainer: TrainerClient
) -> None:
    """F2: it would otherwise wait without end for a run that it no longer starts."""
    with frozen_while_stopping(trainer) as first:
        second = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
    assert daemon.process is not None
    assert daemon.process.wait(60) == 0
    with daemon.start() as trainer:
        assert [trainer.get_run(run_id).outcome for run_id in (first, second)] == ["cancelled"] * 2


def test_a_daemon_that_waits_for_its_runs_to_end_is_ended_by_sigterm(
    daemon: LiveDaemon, trainer: TrainerClient
) -> None:
    """F2: a run that does not end, here because its keeper is frozen, keeps no daemon alive."""
    with frozen_while_stopping(trainer) as run_id:
        daemon.stop()
    assert "Traceback" not in (daemon.workspace.root / "daemon.out").read_text()
    with daemon.start() as trainer:
        assert ended(trainer, run_id).outcome == "cancelled"


def assert_nothing_is_missing(trainer: TrainerClient, run_id: str) -> None:
    """Cancel the run, which must have had one attempt and still make steps, and compare its journal with the index."""
    some_steps(trainer, run_id, (trainer.get_run(run_id).global_step or 0) + 5)
    trainer.cancel_run(run_id)
    view = ended(trainer, run_id)
    assert (view.outcome, len(view.attempts)) == ("cancelled", 1)
    seqs = [event["seq"] for event in read_all(RunFolder(view.run_dir).journal)]
    assert seqs == list(range(1, len(seqs) + 1))
    steps = logged_steps(trainer, run_id)
    assert steps == list(range(1, (view.global_step or 0) + 1))
    assert told_metrics(trainer, run_id) == len(steps)


def logged_steps(trainer: TrainerClient, run_id: str) -> list[int]:
    """The steps of all points, which come in several parts where a run has been active for long."""
    return [step for part in trainer.metrics(run_id, ["scripted/step"]) for step in part.steps]


def told_metrics(trainer: TrainerClient, run_id: str) -> int:
    """How many metrics events a watcher is told of, from the beginning to the run's end."""
    count = 0
    for batch in telemetry(trainer, run_id, ["metrics", "record"]):
        count += len([event for event in batch.events if event.kind == "metrics"])
        if any(isinstance(event, RecordChanged) and event.stage == "finished" for event in batch.events):
            return count
    raise AssertionError("The watch ended before the run did.")


def test_a_run_that_ends_without_a_daemon_is_reported_by_the_next_one(
    daemon: LiveDaemon, trainer: TrainerClient
) -> None:
    """F1: the keeper has recorded how it ended; queued runs start."""
    run_id = trainer.submit(scripted(steps=30, dt=0.01, exit=3)).run_id
    queued = [trainer.submit(scripted(steps=30, dt=0.01)).run_id for _ in range(6)]
    some_steps(trainer, run_id, 1)
    keeper = keeper_pid(trainer.get_run(run_id).attempts[-1])
    trainer.close()
    daemon.kill()
    wait_for(lambda: not Path(f"/proc/{keeper}").exists(), "the keeper to end")
    trainer = daemon.start()
    assert (ended(trainer, run_id).reason or "").startswith("Ended with exit code 3")
    assert [ended(trainer, other).outcome for other in queued] == ["succeeded"] * 6
    trainer.close()


def test_a_run_whose_keeper_is_killed_is_lost_and_leaves_no_process(trainer: TrainerClient) -> None:
    """F3: its end was not observed, so it is lost."""
    view = trainer.submit(scripted(steps=10_000, dt=0.01))
    some_steps(trainer, view.run_id, 2)
    os.kill(keeper_pid(trainer.get_run(view.run_id).attempts[-1]), signal.SIGKILL)
    view = ended(trainer, view.run_id)
    assert view.outcome == "lost"
    wait_for(lambda: workers_of(view.run_dir) == [], "its worker to be gone")


@pytest.mark.may_log("index_rebuilt")
@pytest.mark.parametrize("damage", ["deleted", "overwritten"])
def test_the_index_is_rebuilt_from_the_folders(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace, damage: str
) -> None:
    """F13: with the process of an active run; a bad file is kept."""
    done = ended(trainer, trainer.submit(scripted(steps=5)).run_id)
    trainer.annotate_run(done.run_id, add_tags=["kept"])
    active = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
    pid = some_steps(trainer, active, 5)
    trainer.close()
    daemon.kill()
    for path in workspace.trainer.glob("index.sqlite*"):
        path.unlink() if damage == "deleted" else path.write_bytes(b"\xff" * 9000)
    trainer = daemon.start()
    expected = done.model_copy(update={"tags": ("kept",), "hardware": None})
    assert trainer.get_run(done.run_id).model_copy(update={"hardware": None}) == expected
    assert trainer.get_run(active).pid == pid
    trainer.cancel_run(active)
    steps = ended(trainer, active).global_step
    assert logged_steps(trainer, active) == list(range(1, (steps or 0) + 1))
    assert bool(list(workspace.trainer.glob("index.sqlite.bad-*"))) == (damage == "overwritten")
    trainer.close()


@pytest.mark.may_log("index_rebuilt", "index_damaged")
def test_damage_in_a_large_index_is_found_while_the_daemon_answers(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace
) -> None:
    """F13: the daemon rebuilds the index by itself, and its runs continue."""
    active = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
    pid = some_steps(trainer, active, 5)
    trainer.close()
    daemon.stop()
    with closing(sqlite3.connect(workspace.index, isolation_level=None)) as db:
        db.execute(
            "INSERT INTO event (run, source, seq, at, kind, body) VALUES (0, 'daemon', 1, 0, 'x', zeroblob(?))",
            (MAX_CHECKED_BYTES,),
        )
    with open(workspace.index, "r+b") as file:
        file.seek(MAX_CHECKED_BYTES // 2)
        file.write(b"\xaa" * 8192)
    daemon.launch()  # it may find the damage, and start again, before a client has connected
    wait_for(lambda: list(workspace.trainer.glob("index.sqlite.bad-*")), "the damaged index to be moved aside")
    wait_for(lambda: read_daemon_address(workspace), "the daemon to serve again")
    trainer = connect(workspace, may_start=False)
    assert daemon.process is not None
    assert trainer.get_status().pid == daemon.process.pid
    assert trainer.get_run(active).pid == pid
    trainer.cancel_run(active)
    steps = ended(trainer, active).global_step
    assert logged_steps(trainer, active) == list(range(1, (steps or 0) + 1))
    trainer.close()


def test_a_port_in_use_is_skipped(workspace: Workspace, plugins: Path) -> None:
    """F16: the daemon listens on another one."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        daemon = LiveDaemon(workspace, plugins, "--port", str(port))
        trainer = daemon.start()
        address = trainer.get_status().address
        assert address.startswith("127.0.0.1:")
        assert address != f"127.0.0.1:{port}"
        trainer.close()
        daemon.end()


def test_a_missing_daemon_is_reported(workspace: Workspace) -> None:
    """F17: no address is left to try."""
    with pytest.raises(NoDaemon, match="mosaic daemon start"):
        connect(workspace, may_start=False)


@pytest.mark.may_log("call_refused")
def test_every_call_needs_the_token(trainer: TrainerClient, workspace: Workspace) -> None:
    """F28: every call of the descriptor, without a token, an empty or a wrong one; one line in the log."""
    address = read_daemon_address(workspace)
    assert address is not None
    assert workspace.daemon_file.stat().st_mode & 0o777 == 0o600
    services = {
        "mosaic.v1.Trainer": [method.name for method in pb.DESCRIPTOR.services_by_name["Trainer"].methods],
        "grpc.health.v1.Health": ["Check", "Watch"],
        "grpc.reflection.v1alpha.ServerReflection": ["ServerReflectionInfo"],
    }
    with grpc.insecure_channel(address.address) as channel:
        for service, methods in services.items():
            for method in methods:
                for metadata in ((), ((TOKEN_KEY, ""),), ((TOKEN_KEY, "0" * 64),), FALSE_PROOF):
                    call: Any = channel.unary_stream(f"/{service}/{method}", bytes, bytes)
                    with pytest.raises(grpc.RpcError) as refused:
                        list(call(b"", metadata=metadata, timeout=60))
                    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED, (method, refused.value)
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        question = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = stub.ServerReflectionInfo(iter([question]), metadata=((TOKEN_KEY, address.token),), timeout=60)
        listed = [service.name for service in next(answers).list_services_response.service]
        assert "mosaic.v1.Trainer" in listed
    lines = [json.loads(line) for line in workspace.daemon_log.read_text().splitlines()]
    assert len([line for line in lines if line["event"] == "call_refused"]) == 1, "An unknown caller fills the log."


def test_a_forged_daemon_learns_nothing(workspace: Workspace) -> None:
    """F17: the client refuses it before it sends the token."""
    heard = []

    class Forged(TrainerServicer):
        def Identify(self, request, context):  # type: ignore[no-untyped-def]
            heard.extend(context.invocation_metadata())
            return pb.IdentifyReply(proof="0" * 64)

    server = grpc.server(ThreadPoolExecutor(2))
    add_TrainerServicer_to_server(Forged(), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    workspace.trainer.mkdir(parents=True)
    said = {
        "address": f"127.0.0.1:{port}",
        "token": "s3cret",
        "process": own_identity(),
        "started_at": 1,
        "version": "",
    }
    write_json(workspace.daemon_file, said)
    with pytest.raises(IdentityFailed, match="Identity check failed"):
        connect(workspace)
    server.stop(None).wait()
    workspace.daemon_file.unlink()
    assert not any("s3cret" in str(value) for _, value in heard)


@pytest.mark.may_log("call_refused")
def test_a_web_page_gets_nothing_from_the_port(trainer: TrainerClient, workspace: Workspace) -> None:
    """F29: a POST with a foreign Host header."""
    address = read_daemon_address(workspace)
    assert address is not None
    host, _, port = address.address.partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as page:
        page.sendall(b"POST /mosaic.v1.Trainer/StopDaemon HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n")
        answer = page.recv(4096)
    assert b"200 OK" not in answer
    assert trainer.get_status().pid == address.process["pid"]


def test_the_token_is_not_in_logs_or_command_lines(trainer: TrainerClient, workspace: Workspace) -> None:
    """F30: the token of the daemon."""
    address = read_daemon_address(workspace)
    assert address is not None
    view = trainer.submit(scripted(steps=50, dt=0.01))
    some_steps(trainer, view.run_id, 2)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                assert address.token.encode() not in (entry / "cmdline").read_bytes()
            except OSError:
                continue
    ended(trainer, view.run_id)
    for path in workspace.root.rglob("*"):
        if path.is_file() and path != workspace.daemon_file:
            assert address.token.encode() not in path.read_bytes(), path


def test_a_watcher_continues_at_its_cursor_after_a_restart(daemon: LiveDaemon, trainer: TrainerClient) -> None:
    """F1: each event is received once."""
    run_id = trainer.submit(scripted(steps=100, dt=0.01)).run_id
    seen: list[int] = []
    cursor = 0
    for batch in telemetry(trainer, run_id, ["metrics"]):
        seen += [event.seq for event in batch.events]
        cursor = batch.cursor
        if len(seen) > 10:
            break
    trainer.close()
    daemon.kill()
    trainer = daemon.start()
    ended(trainer, run_id)
    for batch in telemetry(trainer, run_id, ["metrics"], cursor):
        seen += [event.seq for event in batch.events]
        if len(seen) >= 100:
            break
    assert len(seen) == len(set(seen)) == 100
    assert json.dumps(sorted(seen)) == json.dumps(seen)
    trainer.close()


@pytest.mark.may_log("queue_paused")
def test_the_queue_pauses_after_three_fast_failures(trainer: TrainerClient) -> None:
    """F39: the waiting runs are told, and continue on request."""
    trainer.set_cap(1)
    runs = [trainer.submit(scripted(steps=1, exit=1)).run_id for _ in range(6)]
    for run_id in runs[:3]:
        assert ended(trainer, run_id).outcome == "failed"
    wait_for(lambda: trainer.get_status().paused, "the pause")
    told: set[str] = set()
    for batch in trainer.watch(kinds=["warning"]):
        told |= {event.run_id for event in batch.events if getattr(event, "code", None) == "queue_paused"}
        if told == set(runs[3:]):
            break
    assert [trainer.get_run(run_id).stage for run_id in runs[3:]] == ["queued"] * 3
    assert trainer.continue_queue().paused is None
    for run_id in runs[3:]:
        assert ended(trainer, run_id).outcome == "failed"
    assert ended(trainer, trainer.submit(scripted(steps=1)).run_id).outcome == "succeeded"
