"""The deleted runs that can still be restored."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.contracts.disk_views import TrashedRun
from mosaic.window.bridge import Bridge
from mosaic.window.runs import RunsModel

REFRESH_DELAY_MS = 100
"""So that many deletions are read together."""


class Trash(QObject):
    changed = Signal()

    def __init__(self, bridge: Bridge, runs: RunsModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._has_sizes = False
        self.runs: tuple[TrashedRun, ...] = ()
        """The newest first."""
        self.is_loaded = False
        self._timer = QTimer(self, singleShot=True, interval=REFRESH_DELAY_MS)
        self._timer.timeout.connect(self._read)
        bridge.connected.connect(lambda _: self.refresh())
        runs.removed.connect(lambda _: self.refresh())
        runs.changed.connect(self._on_runs_changed)

    def set_measuring(self, has_sizes: bool) -> None:
        """Sizes are measured only while they are shown."""
        self._has_sizes = has_sizes
        if has_sizes:
            self.refresh()

    def refresh(self) -> None:
        self._timer.start()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        if any(run.run_id in run_ids for run in self.runs):  # restored, perhaps by another program
            self.refresh()

    def _read(self) -> None:
        has_sizes = self._has_sizes
        self._bridge.ask(lambda trainer: tuple(trainer.list_trash(has_sizes)), self._show, None, self)

    def _show(self, runs: tuple[TrashedRun, ...]) -> None:
        is_first, self.is_loaded = not self.is_loaded, True
        if is_first or runs != self.runs:
            self.runs = runs
            self.changed.emit()
