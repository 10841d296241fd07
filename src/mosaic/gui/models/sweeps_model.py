"""The sweeps of the workspace. Their studies are read by a process of its own, while somebody looks at them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from PySide6.QtCore import QObject, QProcess, QTimer, Signal

from mosaic.api.sweeps.sweep_folder import sweep_names
from mosaic.api.sweeps.sweep_snapshot import SweepReport, decode_report
from mosaic.contracts.folder import Workspace
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.child_process import ChildProcess
from mosaic.gui.models.sweep_state import SweepState, read_state

LIST_INTERVAL_MS = 2000
"""Between two looks for the first sweep, which needs no process."""
IDLE_MS = 30_000
"""How long the process is kept when nobody looks any more."""


class _ReaderProcess(ChildProcess):
    """`mosaic.api.sweeps.sweep_reader`. It ends when its standard input does, so also when the window is killed."""

    line_received = Signal(bytes)
    ended = Signal(str)

    def start(self, workspace: Workspace) -> None:
        self._buffer = b""
        argv = [sys.executable, "-P", "-m", "mosaic.api.sweeps.sweep_reader", str(workspace.root)]
        self._launch(argv, QProcess.ProcessChannelMode.SeparateChannels)

    def _on_output(self, output: bytes) -> None:
        *lines, self._buffer = (self._buffer + output).split(b"\n")
        for line in lines:
            self.line_received.emit(line)

    def _on_exit(self, how: str) -> None:
        self.ended.emit(how)

    def _on_failed_start(self, reason: str) -> None:
        self.ended.emit(reason)


class SweepsModel(QObject):
    changed = Signal()

    def __init__(self, workspace: Workspace, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.names: list[str] = []
        """The sweep changed last first."""
        self.states: dict[str, SweepState] = {}
        self.is_loaded = False
        self.problem = ""
        """Why no sweep can be read."""
        self._workspace = workspace
        self._bridge = bridge
        self._pending: list[bytes] = []
        self._is_decoding = False
        self._is_watched = False
        self._process = _ReaderProcess(self)
        self._process.line_received.connect(self._on_line)
        self._process.ended.connect(self._on_ended)
        self._list_timer = QTimer(self, singleShot=True, interval=LIST_INTERVAL_MS)
        self._list_timer.timeout.connect(self._list)
        self._idle_timer = QTimer(self, singleShot=True, interval=IDLE_MS)
        self._idle_timer.timeout.connect(self._process.stop)

    def watch(self) -> None:
        """Read the sweeps from now on."""
        self._is_watched = True
        self._idle_timer.stop()
        if not self._process.is_running:
            self._list()

    def suspend(self) -> None:
        """Nobody looks at them; the process ends after a while."""
        self._is_watched = False
        self._list_timer.stop()
        if self._process.is_running:
            self._idle_timer.start()

    def close(self) -> None:
        """End the process: the window closes."""
        self.suspend()
        self._idle_timer.stop()
        self._process.close()

    def listed(self) -> list[SweepState]:
        return [self.states[name] for name in self.names if name in self.states]

    # --- reading

    def _list(self) -> None:
        self._bridge.run_in_background(lambda: sweep_names(self._workspace), self._on_listed, self._on_failed, self)

    def _on_listed(self, names: Sequence[str]) -> None:
        if not self._is_watched or self._process.is_running:
            return
        if names:
            self._process.start(self._workspace)
            return
        self.names, self.states = [], {}
        self.is_loaded = True
        self.changed.emit()
        self._list_timer.start()

    def _on_failed(self, error: Exception) -> None:
        self._show_problem(str(error))

    def _show_problem(self, text: str) -> None:
        self.problem, self.is_loaded = text, True
        self.changed.emit()

    def _on_line(self, line: bytes) -> None:
        self._pending.append(line)
        self._decode_next()

    def _decode_next(self) -> None:
        """Decode one report after the other, in the background: a plan may have to ask a worker for its schema."""
        if self._is_decoding or not self._pending:
            return
        self._is_decoding = True
        line = self._pending.pop(0)
        self._bridge.run_in_background(lambda: _decode(line), self._on_decoded, self._on_decoding_failed, self)

    def _on_decoded(self, decoded: tuple[SweepReport, list[SweepState]]) -> None:
        self._is_decoding = False
        report, states = decoded
        self.problem = report.problem
        self.names = list(report.names)
        self.states |= {state.name: state for state in states}
        self.states = {name: state for name, state in self.states.items() if name in report.names}
        self.is_loaded = True
        self.changed.emit()
        self._decode_next()

    def _on_decoding_failed(self, error: Exception) -> None:
        self._is_decoding = False
        self._on_failed(error)
        self._decode_next()

    def _on_ended(self, how: str) -> None:
        if how != "exit code 0":  # then it has reported why
            self._show_problem(f"The process that reads sweeps ended ({how}). The reason: mosaic sweeps")


def _decode(line: bytes) -> tuple[SweepReport, list[SweepState]]:
    report = decode_report(line)
    return report, [read_state(snapshot) for snapshot in report.changed]
