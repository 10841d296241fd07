"""The TensorBoard that the window starts: found when it serves, ended with its children, never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from tests.helpers.daemons import wait_for
from tests.helpers.gui import pump, settle

from mosaic.features.tracking.window_tensorboard import (
    FAILED,
    READY,
    STARTING,
    STOPPED,
    TensorBoardProcess,
    launch_command,
)

SERVES = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print("TensorBoard 2 at http://127.0.0.1:4711/ (Press CTRL+C to quit)", file=sys.stderr, flush=True)
print("child", child.pid, flush=True)
time.sleep(300)
"""


def pretend(script: str) -> list[str]:
    return [sys.executable, "-c", script]


@pytest.fixture
def board(qapp: QApplication) -> Iterator[TensorBoardProcess]:
    made = TensorBoardProcess()
    yield made
    made.close()
    made.deleteLater()
    settle()


def group_of(pid: int) -> set[int]:
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if (
                os.getpgid(int(name)) == pid
                and Path(f"/proc/{name}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
            ):
                found.add(int(name))
        except (OSError, ProcessLookupError):
            continue
    return found


def test_it_serves_and_is_ended_with_its_children(board: TensorBoardProcess) -> None:
    board.start(pretend(SERVES))
    assert board.state == STARTING
    pump(lambda: board.state == READY, "TensorBoard")
    assert board.url == "http://127.0.0.1:4711/"
    pid = board.pid
    assert len(group_of(pid)) == 2
    board.stop()
    assert board.state == STOPPED
    pump(lambda: not group_of(pid), "its end")


def test_closing_waits_for_the_end_of_the_process(board: TensorBoardProcess) -> None:
    deaf = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN){SERVES}"
    board.start(pretend(deaf))
    pump(lambda: board.state == READY, "TensorBoard")
    pid = board.pid
    board.close()
    wait_for(lambda: not group_of(pid), "its end, without an event loop")


def test_a_crash_is_reported_with_the_last_line_of_stderr(board: TensorBoardProcess) -> None:
    """F23: it crashes or is killed."""
    board.start(pretend("import sys; print('no room', file=sys.stderr); sys.exit(3)"))
    pump(lambda: board.state == FAILED, "the crash")
    assert board.problem == "TensorBoard has ended unexpectedly (exit code 3). Last output: no room"
    board.start(pretend(SERVES))
    pump(lambda: board.state == READY, "the second start")
    os.killpg(board.pid, signal.SIGKILL)
    pump(lambda: board.state == FAILED, "the kill")
    assert "signal 9" in board.problem


def test_a_start_that_takes_too_long_is_ended_and_reported(board: TensorBoardProcess) -> None:
    """F23: it hangs before it serves."""
    board._start_timer.setInterval(1)
    board.start(pretend("import time; time.sleep(300)"))
    pid = board.pid
    pump(lambda: board.state == FAILED, "the end of the wait")
    assert board.problem == "TensorBoard did not start within 30 seconds."
    pump(lambda: not group_of(pid), "its end")


def test_a_program_that_cannot_be_started_is_reported(board: TensorBoardProcess) -> None:
    board.start(["/no/such/python"])
    pump(lambda: board.state == FAILED, "the failure")
    assert board.problem.startswith("TensorBoard cannot be started")


def test_it_ends_when_the_window_is_killed(tmp_path: Path) -> None:
    package = tmp_path / "tensorboard"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("default", "main_lib"):
        (package / f"{name}.py").write_text("")
    (package / "program.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(300)\n")
    window = (
        "import json, subprocess, sys, time\n"
        "board = subprocess.Popen(json.loads(sys.argv[1]), stdin=subprocess.PIPE, start_new_session=True)\n"
        "print(board.pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    words = launch_command(tmp_path / "logs", "a run")
    process = subprocess.Popen(
        [sys.executable, "-c", window, json.dumps(words)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert process.stdout is not None
    with process.stdout:
        pid = int(process.stdout.readline())
        assert process.stdout.readline() == "up\n"
        assert group_of(pid)
        process.kill()
        process.wait()
        wait_for(lambda: not group_of(pid), "TensorBoard to follow its window")
