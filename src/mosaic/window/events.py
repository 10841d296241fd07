"""The newest events of all runs as a table, and its filter."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

from PySide6.QtCore import (
    QAbstractTableModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QSortFilterProxyModel,
    Qt,
    Signal,
)

from mosaic.base import formatting
from mosaic.base.app_log import append_log
from mosaic.base.formatting import format_eval_line
from mosaic.contracts import names as semconv
from mosaic.contracts.errors import ConfigRefused, MosaicError
from mosaic.contracts.events import EvalSummaryUpdate, Event, Steps
from mosaic.window.bridge import Bridge

Index = QModelIndex | QPersistentModelIndex
_ROOT = QModelIndex()
COLUMN_TITLES = ("Time", "Run", "Kind", "What")
MAX_EVENT_LINES = 5000
HIDDEN_KINDS = ("progress", "sample", Steps.KIND)
"""Frequent kinds that are shown elsewhere."""


class EventLine(NamedTuple):
    at: float
    run_id: str
    kind: str
    text: str


class EventLog(QAbstractTableModel):
    kinds_changed = Signal()
    """A kind has occurred for the first time."""

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.lines: deque[EventLine] = deque()
        self.kinds: set[str] = set()
        bridge.events_received.connect(self._on_events)
        self._log_path = bridge.workspace.gui_log
        bridge.connected.connect(
            lambda status: self.add(
                semconv.TRAINER_CONNECTED,
                f"at {status.address}, pid {status.pid}. {status.rebuilt_index or ''}".rstrip(),
            )
        )
        bridge.connection_lost.connect(lambda why: self.add(semconv.TRAINER_LOST, why))

    def add(self, kind: str, text: str, run_id: str = "") -> None:
        """Add an event of the window, which is also written to its log file."""
        self._append([EventLine(time.time(), run_id, kind, text)])
        append_log(self._log_path, kind, run_id=run_id, message=text)

    def add_error(self, error: Exception) -> None:
        is_refusal = isinstance(error, ConfigRefused)
        log_code = f"{error.log_code}: " if isinstance(error, MosaicError) else ""
        text = str(error) if str(error).startswith(log_code[:-2]) else f"{log_code}{error}"
        self.add(semconv.UI_INVALID_CONFIG if is_refusal else semconv.UI_ERROR, text)

    def _on_events(self, events: list[Event]) -> None:
        self._append([_format_event(event) for event in events if event.kind not in HIDDEN_KINDS])

    def _append(self, lines: list[EventLine]) -> None:
        lines = lines[-MAX_EVENT_LINES:]
        if not lines:
            return
        excess = len(self.lines) + len(lines) - MAX_EVENT_LINES
        if excess > 0:
            self.beginRemoveRows(_ROOT, 0, excess - 1)
            for _ in range(excess):
                self.lines.popleft()
            self.endRemoveRows()
        self.beginInsertRows(_ROOT, len(self.lines), len(self.lines) + len(lines) - 1)
        self.lines.extend(lines)
        self.endInsertRows()
        new_kinds = {line.kind for line in lines} - self.kinds
        if new_kinds:
            self.kinds |= new_kinds
            self.kinds_changed.emit()

    # --- QAbstractTableModel

    def rowCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self.lines)

    def columnCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(COLUMN_TITLES)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if role not in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return None
        line = self.lines[index.row()]
        at = formatting.format_timestamp(line.at)
        if role == Qt.ItemDataRole.DisplayRole:
            return (at[11:], formatting.short_id(line.run_id), line.kind, line.text)[index.column()]
        return (at, line.run_id, line.kind, line.text)[index.column()]

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return COLUMN_TITLES[section]
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.TextAlignmentRole:
            return Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        return None


class EventFilter(QSortFilterProxyModel):
    """The lines of one kind, of one run, or with some text in them."""

    def __init__(self, events: EventLog, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._events = events
        self._text = self._kind = self._run_id = ""
        self.setSourceModel(events)

    def filter(self, text: str = "", kind: str = "", run_id: str = "") -> None:
        self.beginFilterChange()
        self._text, self._kind, self._run_id = text.lower(), kind, run_id
        self.endFilterChange(QSortFilterProxyModel.Direction.Rows)

    def line(self, row: int) -> EventLine:
        return self._events.lines[self.mapToSource(self.index(row, 0)).row()]

    def filterAcceptsRow(self, source_row: int, source_parent: Index) -> bool:
        line = self._events.lines[source_row]
        return (
            self._kind in ("", line.kind)
            and self._run_id in ("", line.run_id)
            and (not self._text or self._text in f"{line.kind} {line.run_id} {line.text}".lower())
        )


def _format_field(name: str, value: Any) -> str:
    """`is_best`, `step=1001472`, `score=-187`."""
    if value is True:
        return name
    return f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"


def _format_event(event: Event) -> EventLine:
    fields = event.model_dump(exclude={"seq", "at", "kind", "run_id", "source", "view", "process"})
    shown = fields.get("message") or fields.get("text") or fields.get("reason")
    if isinstance(event, EvalSummaryUpdate):
        shown = format_eval_line(event.summary)
    if not shown:
        shown = ", ".join(
            _format_field(name, value) for name, value in fields.items() if value is not None and value is not False
        )
    return EventLine(event.at, event.run_id, event.kind, str(shown)[:500])
