"""F33, F34, F35: many viewers, a slow one and frozen ones change nothing for a run and for each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.helpers.commands import MOSAIC
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for
from tests.helpers.streams import raw_stub
from tests.helpers.worker_runs import small

from mosaic.base.fastlane import lanes_folder
from mosaic.base.journal import Journal
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.events import RecordChanged, WarningLogged
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient

LONG = 100_000_000
VIEWERS = 10
FRAMES = 8
TIMEOUT_S = 60.0
MAX_GROWTH_MB = 150
"""Of the daemon's memory, for all viewers together."""
EVENTS = 12_000
"""Three times what a viewer may be behind."""
WARNING_EVERY = EVENTS // 2
"""So rarely that all events of a backlog can be replaced by later ones."""


def cartpole(total_timesteps: int) -> dict[str, Any]:
    config = small(total_timesteps=total_timesteps, extras={"num_envs": 4, "num_steps": 64})
    return {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}


def test_ten_viewers_see_frames_and_the_end(daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace) -> None:
    """F33: each follows frames and events; the daemon's memory stays bounded and the training continues."""
    run_id = trainer.submit(cartpole(LONG)).run_id
    wait_for(lambda: trainer.get_run(run_id).global_step, "its first steps")
    assert daemon.process is not None
    memory = psutil.Process(daemon.process.pid).memory_info
    before_mb = memory().rss / 1e6

    def watch_frames() -> int:
        with connect(workspace, may_start=False) as client:
            images = (update.image for update in client.frames(run_id, rate_hz=10, max_side=320) if update.image)
            return len(list(islice(images, FRAMES)))

    def watch_events() -> str | None:
        with connect(workspace, may_start=False) as client:
            for batch in client.watch(0, run_id):
                for event in batch.events:
                    if isinstance(event, RecordChanged) and event.stage == "finished":
                        return event.view.outcome
        return None

    with ThreadPoolExecutor(2 * VIEWERS) as threads:
        ends = [threads.submit(watch_events) for _ in range(VIEWERS)]
        frames = [threads.submit(watch_frames) for _ in range(VIEWERS)]
        try:
            assert [viewer.result(TIMEOUT_S) for viewer in frames] == [FRAMES] * VIEWERS
            step = trainer.get_run(run_id).global_step or 0
            wait_for(lambda: (trainer.get_run(run_id).global_step or 0) > step, "further steps")
            assert memory().rss / 1e6 - before_mb < MAX_GROWTH_MB
            trainer.cancel_run(run_id)
            assert [viewer.result(TIMEOUT_S) for viewer in ends] == ["cancelled"] * VIEWERS
        except BaseException:
            daemon.kill()  # ends the streams, else the threads are waited for without end
            raise


def test_a_slow_viewer_gets_the_number_of_events_that_it_missed(trainer: TrainerClient, workspace: Workspace) -> None:
    """F34, R6.1: it misses only what later events replace, and another viewer is not held up by it."""
    run_id = trainer.submit(scripted(steps=LONG, dt=0.05)).run_id
    wait_for(lambda: trainer.get_run(run_id).global_step, "its first steps")
    cursor = next(trainer.watch(-1)).cursor
    with raw_stub(workspace) as (stub, metadata):
        request = pb.WatchRequest(after=cursor, run=run_id, kinds=["progress", "warning"])
        slow = stub.WatchRuns(request, metadata=metadata)
        next(slow)
        journal = Journal(workspace.run(run_id).path / "journal.9.jsonl")
        for number in range(1, EVENTS + 1):
            journal.append("progress", global_step=number, total_timesteps=LONG, sps=1.0)
            if number % WARNING_EVERY == 0:
                journal.append("warning", text=str(number), code=None)
        journal.close()
        expected = [str(number) for number in range(WARNING_EVERY, EVENTS + 1, WARNING_EVERY)]
        assert read_warnings(trainer, run_id, cursor) == expected, "while the slow one reads nothing"
        texts: list[str] = []
        received = skipped = 0
        for batch in slow:
            skipped += batch.skipped
            received += sum('"progress"' in text for text in batch.events_json)
            texts += [text for text in batch.events_json if '"kind":"warning"' in text.replace(" ", "")]
            if len(texts) == len(expected):
                break
        slow.cancel()
    assert [number for number, text in zip(expected, texts, strict=True) if f'"{number}"' not in text] == []
    assert skipped > 0
    assert received + skipped >= EVENTS, "Some events were neither delivered nor counted."
    trainer.cancel_run(run_id)
    assert ended(trainer, run_id).outcome == "cancelled"


def read_warnings(trainer: TrainerClient, run_id: str, cursor: int) -> list[str]:
    """The texts of the warnings after the cursor, until the last of them."""
    texts: list[str] = []
    for batch in trainer.watch(cursor, run_id, ["warning"]):
        texts += [event.text for event in batch.events if isinstance(event, WarningLogged)]
        if str(EVENTS) in texts:
            break
    return texts


@contextmanager
def viewer(command: list[str], variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that shows a run, with its output in a pipe that is never read."""
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("end", ["succeeded", "cancelled"])
def test_a_run_ends_while_its_viewers_are_frozen(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path, end: str
) -> None:
    """F35: `show -f`, `logs -f`, `watch`, `watch --remote` and the window, each stopped by SIGSTOP."""
    pytest.importorskip("PySide6")
    folder = workspace.run(trainer.submit(cartpole(100_000)).run_id)
    run_id = folder.run_id
    log = folder.stdout_log("cleanrl")
    wait_for(
        lambda: log.exists() and log.stat().st_size and trainer.get_run(run_id).stage == "running", "its first line"
    )
    trainer.pause_run(run_id)
    wait_for(lambda: trainer.get_run(run_id).stage == "paused", "the pause")
    path = os.pathsep.join((os.getcwd(), os.environ.get("PYTHONPATH", "")))
    variables = {**os.environ, "MOSAIC_VAR": str(workspace.root), "PYTHONPATH": path, "QT_QPA_PLATFORM": "offscreen"}
    window = Path(__file__).parents[1] / "helpers" / "gui_child.py"
    video = ["--save", str(tmp_path / "video.mp4"), "--seconds", "100"]
    printing = [
        [MOSAIC, "show", "-f", run_id],
        [MOSAIC, "logs", "-f", run_id],
        [sys.executable, str(window), str(workspace.root), str(tmp_path / "settings.ini"), run_id, "fastlane"],
    ]
    # Last: they end after 20 seconds without a frame, and the window may take that long to start.
    saving = [[MOSAIC, "watch", run_id, *video], [MOSAIC, "watch", run_id, *video, "--remote"]]
    with ExitStack() as stack:
        viewers = [stack.enter_context(viewer(command, variables)) for command in printing]
        for shown in viewers:
            assert shown.stdout is not None
            assert shown.stdout.readline()
        local, remote = (stack.enter_context(viewer(command, variables)) for command in saving)
        viewers += [local, remote]
        lanes = lanes_folder(folder.path)
        wait_for(lambda: lanes in Path(f"/proc/{local.pid}/maps").read_text(encoding="utf-8"), "the lane to be mapped")
        wait_for(lambda: psutil.Process(remote.pid).net_connections(), "the connection of the remote viewer")
        for process in viewers:
            process.send_signal(signal.SIGSTOP)
        trainer.resume(run_id)
        if end == "cancelled":
            trainer.cancel_run(run_id)
        assert ended(trainer, run_id).outcome == end
        assert [process.poll() for process in viewers] == [None] * len(viewers)
