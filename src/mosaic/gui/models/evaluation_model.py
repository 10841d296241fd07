"""The results of an evaluation so far, requested again while it runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.contracts.events import EvalSummaryUpdate
from mosaic.gui.bridge import Bridge

if TYPE_CHECKING:
    from mosaic.contracts.events import Event
    from mosaic.contracts.views import Evaluation

POLL_INTERVAL_MS = 1000
"""Between two requests: batches of a small environment take less time."""


class Evaluations(QObject):
    """The evaluations of one run, or all of the workspace, while they are shown."""

    changed = Signal()

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.evaluations: list[Evaluation] = []
        self.is_loaded = False
        self._bridge = bridge
        self._run_id: str | None = None
        self._is_due = False
        self._is_loading = False
        self._poll_timer = QTimer(self, singleShot=True, interval=POLL_INTERVAL_MS)
        self._poll_timer.timeout.connect(self._request_if_due)
        bridge.events_received.connect(self._on_events)

    def watch_run(self, run_id: str) -> None:
        """Load those of this run; empty: all."""
        if run_id != self._run_id:
            self._run_id, self.evaluations, self.is_loaded = run_id, [], False
        self.refresh()

    def suspend(self) -> None:
        """They are no longer shown."""
        self._poll_timer.stop()
        self._run_id = None

    def refresh(self) -> None:
        self._is_due = True
        if not self._poll_timer.isActive():
            self._request_if_due()

    def _on_events(self, events: list[Event]) -> None:
        if any(event.kind == EvalSummaryUpdate.KIND and self._run_id in ("", event.run_id) for event in events):
            self.refresh()

    def _request_if_due(self) -> None:
        run_id = self._run_id
        if run_id is None or not self._is_due or self._is_loading:
            return
        self._is_due, self._is_loading = False, True
        take = partial(self._on_result, run_id)
        self._bridge.ask(lambda trainer: list(trainer.evaluations(run_id)), take, lambda _: take(None), self)

    def _on_result(self, run_id: str, evaluations: list[Evaluation] | None) -> None:
        self._is_loading = False
        if run_id != self._run_id:
            self._request_if_due()
            return
        self._poll_timer.start()
        if evaluations is not None:
            self.evaluations, self.is_loaded = evaluations, True
            self.changed.emit()
