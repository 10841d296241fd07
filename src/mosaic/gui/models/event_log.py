"""The newest events of all runs, for people who read along."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

from PySide6.QtCore import QObject, Signal

from mosaic.client.eval_status import format_eval_line
from mosaic.contracts.events import EvalSummaryUpdate, Event
from mosaic.gui.bridge import Bridge

MAX_EVENT_LINES = 5000
HIDDEN_KINDS = ("progress", "sample", "step")
"""Kinds that come all the time and are shown elsewhere."""


class EventLine(NamedTuple):
    at: float
    run_id: str
    kind: str
    text: str


class EventLog(QObject):
    lines_added = Signal(object)
    """New lines, oldest first."""

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.lines: deque[EventLine] = deque(maxlen=MAX_EVENT_LINES)
        bridge.events_received.connect(self._on_events)
        bridge.connected.connect(lambda status: self.add("trainer_connected", f"at {status.address}, pid {status.pid}"))
        bridge.connection_lost.connect(lambda why: self.add("trainer_lost", why))

    def add(self, kind: str, text: str, run_id: str = "") -> None:
        self._append([EventLine(time.time(), run_id, kind, text)])

    def _on_events(self, events: list[Event]) -> None:
        self._append([_format_event(event) for event in events if event.kind not in HIDDEN_KINDS])

    def _append(self, lines: list[EventLine]) -> None:
        if lines:
            self.lines.extend(lines)
            self.lines_added.emit(lines)


def _format_field(name: str, value: Any) -> str:
    """`is_best`, `step=1001472`, `score=-187`: as short as can be read."""
    if value is True:
        return name
    return f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"


def _format_event(event: Event) -> EventLine:
    fields = event.model_dump(exclude={"seq", "at", "kind", "run_id", "source", "view", "process"})
    shown = fields.get("said") or fields.get("text") or fields.get("reason")
    if isinstance(event, EvalSummaryUpdate):
        shown = format_eval_line(event.summary)
    if not shown:
        shown = ", ".join(
            _format_field(name, value) for name, value in fields.items() if value is not None and value is not False
        )
    return EventLine(event.at, event.run_id, event.kind, str(shown)[:500])
