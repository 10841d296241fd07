"""Programs that the window starts; each ends with all processes that it has started."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from PySide6.QtCore import QObject, QProcess, QTimer, Signal

STOP_TIMEOUT_MS = 3_000
"""Between SIGTERM and SIGKILL: an upload stops what it has started, TensorBoard removes its temporary files."""


class ChildProcess(QObject):
    """Runs one program at a time, in a process group of its own."""

    CLOSE_TIMEOUT_MS = STOP_TIMEOUT_MS
    """Between SIGTERM and SIGKILL when the window closes and the user waits."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._process: QProcess | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def _launch(self, argv: Sequence[str], channels: QProcess.ProcessChannelMode) -> QProcess:
        process = QProcess(self)
        parameters = QProcess.UnixProcessParameters()
        parameters.flags = QProcess.UnixProcessFlag.CreateNewSession
        process.setUnixProcessParameters(parameters)
        process.setProcessChannelMode(channels)
        if channels is QProcess.ProcessChannelMode.SeparateChannels:
            process.setStandardErrorFile(QProcess.nullDevice())
        process.readyRead.connect(lambda: self._read_output(process))
        process.finished.connect(lambda code, status: self._on_finished(process, code, status))
        process.errorOccurred.connect(lambda error: self._on_error(process, error))
        self._process = process
        process.start(argv[0], list(argv[1:]))
        process.setProperty("group", process.processId())
        return process

    def stop(self) -> None:
        """End it without waiting. Its further output is ignored."""
        process, self._process = self._process, None
        if process is not None:
            _signal_group(process, signal.SIGTERM)
            # The timer belongs to the process and is deleted with it.
            kill = QTimer(process, singleShot=True, interval=STOP_TIMEOUT_MS)
            kill.timeout.connect(lambda: _signal_group(process, signal.SIGKILL))
            kill.start()

    def close(self) -> None:
        """End it and wait: the window closes."""
        self._process = None
        processes = [child for child in self.children() if isinstance(child, QProcess)]
        for process in processes:
            _signal_group(process, signal.SIGTERM)
        for process in processes:
            if not process.waitForFinished(self.CLOSE_TIMEOUT_MS):
                _signal_group(process, signal.SIGKILL)
                process.waitForFinished(STOP_TIMEOUT_MS)

    def _read_output(self, process: QProcess) -> None:
        output = bytes(process.readAll().data())
        if process is self._process:
            self._on_output(output)

    def _on_finished(self, process: QProcess, code: int, status: QProcess.ExitStatus) -> None:
        self._read_output(process)
        _signal_group(process, signal.SIGKILL)  # the rest of its children
        if process is self._process:
            self._process = None
            self._on_exit(f"exit code {code}" if status is QProcess.ExitStatus.NormalExit else f"signal {code}")
        process.deleteLater()

    def _on_error(self, process: QProcess, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart:
            if process is self._process:
                self._process = None
                self._on_failed_start(process.errorString())
            process.deleteLater()

    def _on_output(self, output: bytes) -> None:
        raise NotImplementedError

    def _on_exit(self, how: str) -> None:
        """`how`: such as `exit code 0` or `signal 9`; not called after `stop`."""
        raise NotImplementedError

    def _on_failed_start(self, reason: str) -> None:
        raise NotImplementedError


def _signal_group(process: QProcess, number: signal.Signals) -> None:
    group = int(process.property("group") or 0)
    if group > 0:
        with suppress(ProcessLookupError):
            os.killpg(group, number)


class JsonProcess(ChildProcess):
    """Gets one request, prints JSON lines while it works, and exits: an upload, a check."""

    message_received = Signal(object)
    """One line, decoded."""
    finished = Signal(str)
    """The problem if it did not succeed, else empty."""

    def start(self, argv: Sequence[str], stdin_text: str) -> None:
        self.stop()
        self._buffer = b""
        process = self._launch(argv, QProcess.ProcessChannelMode.SeparateChannels)
        process.write(stdin_text.encode())
        process.closeWriteChannel()

    def _on_output(self, output: bytes) -> None:
        *lines, self._buffer = (self._buffer + output).split(b"\n")
        for line in lines:
            with suppress(ValueError):
                self.message_received.emit(json.loads(line))

    def _on_exit(self, how: str) -> None:
        self.finished.emit("" if how == "exit code 0" else f"It ended with {how}.")

    def _on_failed_start(self, reason: str) -> None:
        self.finished.emit(f"It cannot be started: {reason}.")
