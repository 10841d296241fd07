"""What an evaluation has found so far, asked for again as it goes on."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.client import Trainer
from mosaic.gui.bridge import Bridge

Json = dict[str, Any]
SUMMARY_EVENT = "eval_summary_update"
PAUSE_MS = 1000
"""Between two questions: batches of a small environment take less."""


class Evaluations(QObject):
    """Those of one run, or all of the workspace, while somebody looks."""

    changed = Signal()

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.found: list[Json] = []
        self.is_loaded = False
        self._bridge = bridge
        self._run_id: str | None = None
        self._is_due = False
        self._is_asking = False
        self._pause = QTimer(self, singleShot=True, interval=PAUSE_MS)
        self._pause.timeout.connect(self._ask_if_due)
        bridge.told.connect(self._hear)

    def follow(self, run_id: str) -> None:
        """From now on this run's; empty: all."""
        if run_id != self._run_id:
            self._run_id, self.found, self.is_loaded = run_id, [], False
        self.refresh()

    def rest(self) -> None:
        """Nobody looks any more."""
        self._pause.stop()
        self._run_id = None

    def refresh(self) -> None:
        self._is_due = True
        if not self._pause.isActive():
            self._ask_if_due()

    def _hear(self, events: list[Json]) -> None:
        if self._run_id is not None and any(
            event["kind"] == SUMMARY_EVENT and self._run_id in ("", event["run_id"]) for event in events
        ):
            self.refresh()

    def _ask_if_due(self) -> None:
        run_id = self._run_id
        if run_id is None or not self._is_due or self._is_asking:
            return
        self._is_due, self._is_asking = False, True

        def ask(trainer: Trainer) -> list[Json]:
            return list(trainer.evaluations(run_id))

        self._bridge.ask(ask, lambda found: self._take(run_id, found), lambda _: self._take(run_id, None), self)

    def _take(self, run_id: str, found: list[Json] | None) -> None:
        self._is_asking = False
        if run_id != self._run_id:
            self._ask_if_due()
            return
        self._pause.start()
        if found is not None:
            self.found, self.is_loaded = found, True
            self.changed.emit()
