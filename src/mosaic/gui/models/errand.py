"""A process that is told something once, says JSON lines while it is at it, and ends: an upload, a probe."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from PySide6.QtCore import QObject, QProcess, QTimer, Signal

GRACE_MS = 3_000
"""For an end in order: an upload ends what it has started."""

Json = dict[str, Any]


class Errand(QObject):
    said = Signal(object)
    """One line of it, as a dict."""
    ended = Signal(str)
    """Why it ended otherwise than it should; empty where all is well."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._process: QProcess | None = None
        self._heard = b""

    @property
    def is_under_way(self) -> bool:
        return self._process is not None

    def start(self, words: Sequence[str], told: str) -> None:
        """`words`: a program and its arguments; `told`: for its standard input."""
        self.stop()
        process = QProcess(self)
        parameters = QProcess.UnixProcessParameters()
        parameters.flags = QProcess.UnixProcessFlag.CreateNewSession
        process.setUnixProcessParameters(parameters)
        process.setStandardErrorFile(QProcess.nullDevice())
        process.readyReadStandardOutput.connect(lambda: self._hear(process))
        process.finished.connect(lambda code, status: self._end(process, code, status))
        process.errorOccurred.connect(lambda error: self._break(process, error))
        self._process = process
        self._heard = b""
        process.start(words[0], list(words[1:]))
        process.setProperty("group", process.processId())
        process.write(told.encode())
        process.closeWriteChannel()

    def stop(self) -> None:
        """Asks it to end, and sees to it without waiting. Nothing more is heard of it."""
        process, self._process = self._process, None
        if process is not None:
            _signal(process, signal.SIGTERM)
            # The timer is the process's own, and goes with it.
            kill = QTimer(process, singleShot=True, interval=GRACE_MS)
            kill.timeout.connect(lambda: _signal(process, signal.SIGKILL))
            kill.start()

    def close(self) -> None:
        """Ends it now: the window goes."""
        self._process = None
        for process in [child for child in self.children() if isinstance(child, QProcess)]:
            _signal(process, signal.SIGTERM)
            if not process.waitForFinished(GRACE_MS):
                _signal(process, signal.SIGKILL)
                process.waitForFinished(GRACE_MS)

    def _hear(self, process: QProcess) -> None:
        data = bytes(process.readAllStandardOutput().data())
        if process is not self._process:
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            with suppress(ValueError):
                self.said.emit(json.loads(line))

    def _end(self, process: QProcess, code: int, status: QProcess.ExitStatus) -> None:
        self._hear(process)
        _signal(process, signal.SIGKILL)  # what is left of its children
        if process is self._process:
            self._process = None
            how = f"exit code {code}" if status is QProcess.ExitStatus.NormalExit else f"signal {code}"
            self.ended.emit("" if (status, code) == (QProcess.ExitStatus.NormalExit, 0) else f"It ended with {how}.")
        process.deleteLater()

    def _break(self, process: QProcess, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart:
            if process is self._process:
                self._process = None
                self.ended.emit(f"It cannot be started: {process.errorString()}.")
            process.deleteLater()


def _signal(process: QProcess, number: signal.Signals) -> None:
    group = int(process.property("group") or 0)
    if group > 0:
        with suppress(ProcessLookupError):
            os.killpg(group, number)
