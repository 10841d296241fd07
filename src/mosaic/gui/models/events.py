"""The newest events of all runs, for people who read along."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

from PySide6.QtCore import QObject, Signal

from mosaic.client.evaluation import eval_line
from mosaic.gui.bridge import Bridge

Json = dict[str, Any]
KEPT = 5000
QUIET = ("metrics", "episodes", "progress", "sample", "step")
"""Kinds that come all the time and are shown elsewhere."""


class LogLine(NamedTuple):
    at: float
    run_id: str
    kind: str
    text: str


class Events(QObject):
    added = Signal(object)
    """New lines, oldest first."""

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.lines: deque[LogLine] = deque(maxlen=KEPT)
        bridge.told.connect(self._hear)
        bridge.connected.connect(
            lambda status: self.add("trainer_connected", f"at {status['address']}, pid {status['pid']}")
        )
        bridge.lost.connect(lambda why: self.add("trainer_lost", why))

    def add(self, kind: str, text: str, run_id: str = "") -> None:
        self._take([LogLine(time.time(), run_id, kind, text)])

    def _hear(self, events: list[Json]) -> None:
        self._take([_line(event) for event in events if event["kind"] not in QUIET])

    def _take(self, lines: list[LogLine]) -> None:
        if lines:
            self.lines.extend(lines)
            self.added.emit(lines)


def _fact(name: str, value: Any) -> str:
    """`is_best`, `step=1001472`, `score=-187`: as short as can be read."""
    if value is True:
        return name
    return f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"


def _line(event: Json) -> LogLine:
    shown = event.get("said") or event.get("text") or event.get("reason")
    if "episodes" in (event.get("summary") or ()):
        shown = eval_line(event["summary"])
    if not shown:
        hidden = ("seq", "at", "kind", "run_id", "source", "view", "process")
        told = ((name, value) for name, value in event.items() if name not in hidden)
        shown = ", ".join(_fact(name, value) for name, value in told if value is not None and value is not False)
    return LogLine(event["at"], event["run_id"], event["kind"], str(shown)[:500])
