"""A TensorBoard process: started for one folder, and ended with all its children."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from PySide6.QtCore import QObject, QProcess, QTimer, Signal

from mosaic.contracts.folder import to_file_name

START_TIMEOUT_MS = 30_000
STOP_TIMEOUT_MS = 2_000
"""For an end in order, which tidies its temporary files."""
CLOSE_TIMEOUT_MS = 500
"""The same when the window closes and the user waits."""
MAX_OUTPUT_CHARS = 4_000

STOPPED, STARTING, READY, FAILED = "stopped", "starting", "ready", "failed"

_URL_PATTERN = re.compile(r"\bat (http://127\.0\.0\.1:\d+/)")
_LAUNCH_SCRIPT = """
import atexit, os, runpy, shutil, sys, tempfile, threading

name, folder = sys.argv[1:3]
place = tempfile.mkdtemp(prefix="mosaic-tensorboard-")
os.symlink(folder, os.path.join(place, name))
sys.argv[1:3] = ["--logdir", place]
atexit.register(shutil.rmtree, place, True)

def follow():
    while os.read(0, 100):
        pass
    shutil.rmtree(place, True)
    os.killpg(0, 9)

threading.Thread(target=follow, daemon=True).start()
runpy.run_module("tensorboard.main", run_name="__main__", alter_sys=True)
"""
"""Whose standard input ends when the window dies, however it dies; then it and its children go too.

TensorBoard names a run by the folders between the one that it is given and the files; the run's own would be called
".". So it is given a folder with nothing but a link that has the name we want. (`--logdir_spec` names runs, too, but
takes no path with a comma or a colon, and reads the files far more slowly.)"""


def is_installed() -> bool:
    return importlib.util.find_spec("tensorboard") is not None


def launch_command(logdir: Path, name: str) -> list[str]:
    """Shows one folder under a name. It listens on a free loopback port, which it prints when it serves."""
    return [sys.executable, "-c", _LAUNCH_SCRIPT, to_file_name(name), str(logdir), "--host", "127.0.0.1", "--port", "0"]


class TensorBoardProcess(QObject):
    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.state = STOPPED
        self.url = ""
        """While it serves."""
        self.problem = ""
        """Why it does not."""
        self.pid = 0
        self._output = ""
        self._process: QProcess | None = None
        self._start_timer = QTimer(self, singleShot=True, interval=START_TIMEOUT_MS)
        self._start_timer.timeout.connect(lambda: self._fail("TensorBoard did not start within 30 seconds."))

    def start(self, argv: Sequence[str]) -> None:
        """`words`: a program and its arguments, as `command` gives them."""
        self.stop()
        process = QProcess(self)
        parameters = QProcess.UnixProcessParameters()
        parameters.flags = QProcess.UnixProcessFlag.CreateNewSession
        process.setUnixProcessParameters(parameters)
        process.setProcessChannelMode(QProcess.ProcessChannelMode.MergedChannels)
        process.readyRead.connect(lambda: self._read_output(process))
        process.finished.connect(lambda code, status: self._on_finished(process, code, status))
        process.errorOccurred.connect(lambda error: self._on_error(process, error))
        self._process = process
        self._output = self.url = self.problem = ""
        self.state = STARTING
        self._start_timer.start()
        process.start(argv[0], list(argv[1:]))
        self.pid = process.processId()
        process.setProperty("group", self.pid)
        self.changed.emit()

    def stop(self) -> None:
        """Asks it to end, and sees to it without waiting."""
        process = self._detach_process()
        if process is not None:
            _signal_group(process, signal.SIGTERM)
            # The timer is the process's own, and goes with it.
            kill = QTimer(process, singleShot=True, interval=STOP_TIMEOUT_MS)
            kill.timeout.connect(lambda: _signal_group(process, signal.SIGKILL))
            kill.start()
            self.changed.emit()

    def close(self) -> None:
        """Ends it now: the window goes."""
        processes = [child for child in self.children() if isinstance(child, QProcess)]
        self._detach_process()
        for process in processes:
            _signal_group(process, signal.SIGTERM)
        for process in processes:
            if not process.waitForFinished(CLOSE_TIMEOUT_MS):
                _signal_group(process, signal.SIGKILL)
                process.waitForFinished(STOP_TIMEOUT_MS)

    def _detach_process(self) -> QProcess | None:
        process, self._process = self._process, None
        self._start_timer.stop()
        self.state, self.url, self.problem, self.pid = STOPPED, "", "", 0
        return process

    def _read_output(self, process: QProcess) -> None:
        output = bytes(process.readAll().data()).decode("utf-8", "replace")
        if process is not self._process:
            return
        self._output = (self._output + output)[-MAX_OUTPUT_CHARS:]
        found = _URL_PATTERN.search(self._output)
        if found and self.state == STARTING:
            self._start_timer.stop()
            self.state, self.url = READY, found.group(1)
            self.changed.emit()

    def _on_finished(self, process: QProcess, code: int, status: QProcess.ExitStatus) -> None:
        _signal_group(process, signal.SIGKILL)  # what is left of its children
        if process is self._process:
            how = f"exit code {code}" if status is QProcess.ExitStatus.NormalExit else f"signal {code}"
            self._process = None
            self._fail(f"TensorBoard has ended unexpectedly ({how}). {self._last_output_line()}".strip())
        process.deleteLater()

    def _on_error(self, process: QProcess, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart:
            if process is self._process:
                self._process = None
                self._fail(f"TensorBoard cannot be started: {process.errorString()}.")
            process.deleteLater()

    def _fail(self, reason: str) -> None:
        if self._process is not None:
            self.stop()
        self._start_timer.stop()
        self.state, self.url, self.problem, self.pid = FAILED, "", reason, 0
        self.changed.emit()

    def _last_output_line(self) -> str:
        lines = [line.strip() for line in self._output.splitlines() if line.strip()]
        # What it says when all is well explains nothing.
        shown = [
            line for line in lines if "TensorFlow installation not found" not in line and "(Press CTRL" not in line
        ]
        return f"Last output: {shown[-1][:200]}" if shown else ""


def _signal_group(process: QProcess, number: signal.Signals) -> None:
    """To the whole group: it has a child that reads the files."""
    group = int(process.property("group") or 0)
    if group > 0:
        with suppress(ProcessLookupError):
            os.killpg(group, number)
