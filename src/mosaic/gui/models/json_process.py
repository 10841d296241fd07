"""A process that gets one request, prints JSON lines while it works, and ends: an upload, a probe."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from PySide6.QtCore import QObject, QProcess, QTimer, Signal

STOP_TIMEOUT_MS = 3_000
"""For an end in order: an upload ends what it has started."""


class JsonProcess(QObject):
    message_received = Signal(object)
    """One line of it, as a dict."""
    finished = Signal(str)
    """Why it ended otherwise than it should; empty where all is well."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._process: QProcess | None = None
        self._buffer = b""

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self, argv: Sequence[str], stdin_text: str) -> None:
        """`words`: a program and its arguments; `told`: for its standard input."""
        self.stop()
        process = QProcess(self)
        parameters = QProcess.UnixProcessParameters()
        parameters.flags = QProcess.UnixProcessFlag.CreateNewSession
        process.setUnixProcessParameters(parameters)
        process.setStandardErrorFile(QProcess.nullDevice())
        process.readyReadStandardOutput.connect(lambda: self._read_output(process))
        process.finished.connect(lambda code, status: self._on_finished(process, code, status))
        process.errorOccurred.connect(lambda error: self._on_error(process, error))
        self._process = process
        self._buffer = b""
        process.start(argv[0], list(argv[1:]))
        process.setProperty("group", process.processId())
        process.write(stdin_text.encode())
        process.closeWriteChannel()

    def stop(self) -> None:
        """Asks it to end, and sees to it without waiting. Nothing more is heard of it."""
        process, self._process = self._process, None
        if process is not None:
            _signal_group(process, signal.SIGTERM)
            # The timer is the process's own, and goes with it.
            kill = QTimer(process, singleShot=True, interval=STOP_TIMEOUT_MS)
            kill.timeout.connect(lambda: _signal_group(process, signal.SIGKILL))
            kill.start()

    def close(self) -> None:
        """Ends it now: the window goes."""
        self._process = None
        for process in [child for child in self.children() if isinstance(child, QProcess)]:
            _signal_group(process, signal.SIGTERM)
            if not process.waitForFinished(STOP_TIMEOUT_MS):
                _signal_group(process, signal.SIGKILL)
                process.waitForFinished(STOP_TIMEOUT_MS)

    def _read_output(self, process: QProcess) -> None:
        data = bytes(process.readAllStandardOutput().data())
        if process is not self._process:
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            with suppress(ValueError):
                self.message_received.emit(json.loads(line))

    def _on_finished(self, process: QProcess, code: int, status: QProcess.ExitStatus) -> None:
        self._read_output(process)
        _signal_group(process, signal.SIGKILL)  # what is left of its children
        if process is self._process:
            self._process = None
            how = f"exit code {code}" if status is QProcess.ExitStatus.NormalExit else f"signal {code}"
            self.finished.emit("" if (status, code) == (QProcess.ExitStatus.NormalExit, 0) else f"It ended with {how}.")
        process.deleteLater()

    def _on_error(self, process: QProcess, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart:
            if process is self._process:
                self._process = None
                self.finished.emit(f"It cannot be started: {process.errorString()}.")
            process.deleteLater()


def _signal_group(process: QProcess, number: signal.Signals) -> None:
    group = int(process.property("group") or 0)
    if group > 0:
        with suppress(ProcessLookupError):
            os.killpg(group, number)
