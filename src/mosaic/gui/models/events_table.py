"""The newest events as a table that can be filtered."""

from __future__ import annotations

from collections import deque
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt, Signal

from mosaic import formatting
from mosaic.gui.models.event_log import MAX_EVENT_LINES, EventLine, EventLog

Index = QModelIndex | QPersistentModelIndex
COLUMNS = ("Time", "Run", "Kind", "What")
LINE_ROLE = Qt.ItemDataRole.UserRole
_ROOT = QModelIndex()


class EventsTableModel(QAbstractTableModel):
    kinds_changed = Signal()
    """A kind that was not there before."""

    def __init__(self, events: EventLog, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._events = events
        self._lines: deque[EventLine] = deque()
        self.kinds: set[str] = set()
        self._text = ""
        self._kind = ""
        self._run_id = ""
        events.lines_added.connect(self._on_lines_added)
        self._add_kinds(list(events.lines))
        self.rebuild()

    def filter(self, text: str = "", kind: str = "", run_id: str = "") -> None:
        if (text.lower(), kind, run_id) != (self._text, self._kind, self._run_id):
            self._text, self._kind, self._run_id = text.lower(), kind, run_id
            self.rebuild()

    def rebuild(self) -> None:
        self.beginResetModel()
        self._lines = deque(line for line in self._events.lines if self._matches(line))
        self.endResetModel()

    def line(self, row: int) -> EventLine:
        return self._lines[row]

    def _matches(self, line: EventLine) -> bool:
        return (
            (not self._kind or line.kind == self._kind)
            and (not self._run_id or line.run_id == self._run_id)
            and (not self._text or self._text in f"{line.kind} {line.run_id} {line.text}".lower())
        )

    def _add_kinds(self, lines: list[EventLine]) -> None:
        new = {line.kind for line in lines} - self.kinds
        if new:
            self.kinds |= new
            self.kinds_changed.emit()

    def _on_lines_added(self, lines: list[EventLine]) -> None:
        self._add_kinds(lines)
        new = [line for line in lines if self._matches(line)][-MAX_EVENT_LINES:]
        if not new:
            return
        too_many = len(self._lines) + len(new) - MAX_EVENT_LINES
        if too_many > 0:
            self.beginRemoveRows(_ROOT, 0, too_many - 1)
            for _ in range(too_many):
                self._lines.popleft()
            self.endRemoveRows()
        first = len(self._lines)
        self.beginInsertRows(_ROOT, first, first + len(new) - 1)
        self._lines.extend(new)
        self.endInsertRows()

    # --- Qt's questions

    def rowCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self._lines)

    def columnCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(COLUMNS)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        line = self._lines[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            shown = (formatting.format_timestamp(line.at)[11:], formatting.short_id(line.run_id), line.kind, line.text)
            return shown[index.column()]
        if role == Qt.ItemDataRole.ToolTipRole:
            return (formatting.format_timestamp(line.at), line.run_id, line.kind, line.text)[index.column()]
        return line if role == LINE_ROLE else None

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return COLUMNS[section]
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.TextAlignmentRole:
            return Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        return None
