"""The runs as a table: searched, sorted and updated row by row, so that thousands stay responsive."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cmp_to_key
from operator import attrgetter
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt, Signal

from mosaic import formatting
from mosaic.contracts.options import RunKind
from mosaic.contracts.views import RunView
from mosaic.gui.models.runs_model import RunsModel
from mosaic.gui.models.search import Query

Index = QModelIndex | QPersistentModelIndex
Key = tuple[Any, ...]

MAX_SINGLE_MOVES = 64
"""From this many changed rows on, the table is sorted again instead of moving rows one by one."""
_ROOT = QModelIndex()
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
_STATE_ORDER = (
    *("running", "stalled", "paused", "stopping", "starting", "queued"),
    *("failed", "lost", "rejected", "cancelled", "succeeded"),
)
"""Those that may need attention come first."""


@dataclass(frozen=True)
class Column:
    id: str
    title: str
    text: Callable[[RunView], str]
    key: Callable[[RunView], Any]
    """The sort key; None comes last in either order."""
    width_sample: str
    """As wide as this."""
    is_right_aligned: bool = False
    tooltip: Callable[[RunView], str] = lambda _: ""


def _state_rank(view: RunView) -> int:
    state = view.status
    return _STATE_ORDER.index(state) if state in _STATE_ORDER else len(_STATE_ORDER)


def _algorithm_text(view: RunView) -> str:
    name = str(view.algo or view.worker or "–")
    return f"{name} (eval)" if view.kind == RunKind.POLICY_EVAL else name


def _percent_text(view: RunView) -> str:
    fraction = formatting.progress_fraction(view)
    return "–" if fraction is None else f"{100 * fraction:.0f}%"


def _steps_tooltip(view: RunView) -> str:
    if view.global_step is None:
        return ""
    total = f" of {view.total_timesteps:,}" if view.total_timesteps else ""
    return f"{view.global_step:,}{total} steps"


def _tags_text(view: RunView) -> str:
    return ", ".join(view.tags or ())


def _column(
    column_id: str,
    title: str,
    field: str,
    width_sample: str,
    format_value: Callable[[Any], str] = lambda value: "–" if value is None else str(value),
    is_right_aligned: bool = True,
    tooltip: Callable[[RunView], str] = lambda _: "",
) -> Column:
    """A column that shows one field and is sorted by it."""
    value = attrgetter(field)
    return Column(
        column_id, title, lambda view: format_value(value(view)), value, width_sample, is_right_aligned, tooltip
    )


COLUMNS: tuple[Column, ...] = (
    Column("state", "State", lambda run: run.status, _state_rank, "succeeded", tooltip=formatting.explain_state),
    _column("env", "Environment", "env_id", "CartPole-v", is_right_aligned=False),
    Column("algo", "Algo", _algorithm_text, _algorithm_text, "ppo_"),
    Column("progress", "Done", _percent_text, formatting.progress_fraction, "100%", True, _steps_tooltip),
    _column("return", "Return", "episodic_return", "-0.1234", formatting.format_si_number,
            tooltip=lambda run: f"Mean of the last 100 of {run.episodes:,} episodes"),
    _column("seed", "Seed", "seed", "123"),
    _column("left", "Time left", "seconds_left", "12m 34s", formatting.format_duration),
    _column("sps", "Steps/s", "sps", "12.3k", formatting.format_si_number),
    Column("age", "Age", lambda run: formatting.format_ago(run.submitted_at), lambda run: -run.submitted_at,
           "59 min ago", True, lambda run: f"Submitted {formatting.format_timestamp(run.submitted_at)}"),
    Column("tags", "Tags", _tags_text, lambda run: _tags_text(run) or None, "baseline"),
)  # fmt: skip
"""In the order in which a narrow list leaves them out: the last first."""
COLUMN_IDS = tuple(column.id for column in COLUMNS)


@cmp_to_key
def _descending_key(one: Any, other: Any) -> int:
    return int(one < other) - int(one > other)


class RunsTableModel(QAbstractTableModel):
    count_changed = Signal(int, int)
    """How many runs are shown, and of how many."""

    def __init__(self, runs: RunsModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._runs = runs
        self._ids: list[str] = []
        self._keys: list[Key] = []
        """Of each row, in the same order: what it is sorted by."""
        self._key_by_run: dict[str, Key] = {}
        self._query = Query()
        self._shows_archived = False
        self._sort_column = COLUMNS[COLUMN_IDS.index("age")]
        self._is_descending = False
        self.is_updating = False
        """While rows are changed: changes of the current row that Qt then reports are not the user's."""
        runs.reset.connect(self.rebuild)
        runs.changed.connect(self._on_changed)
        runs.removed.connect(self._on_changed)
        self.rebuild()

    # --- what is shown

    def set_query(self, query: Query, shows_archived: bool) -> None:
        if (query, shows_archived) != (self._query, self._shows_archived):
            self._query, self._shows_archived = query, shows_archived
            self.rebuild()

    def run_id(self, row: int) -> str:
        return self._ids[row]

    def view(self, row: int) -> RunView | None:
        return self._runs.get(self._ids[row]) if row < len(self._ids) else None

    def is_listed(self, run_id: str) -> bool:
        return run_id in self._key_by_run

    def row_of(self, run_id: str) -> int | None:
        key = self._key_by_run.get(run_id)
        return None if key is None else bisect_left(self._keys, key)

    def rebuild(self) -> None:
        with self._updating():
            self.beginResetModel()
            views = [view for view in self._runs.all() if self._matches(view)]
            self._key_by_run = {view.run_id: self._key(view) for view in views}
            self._sort_rows()
            self.endResetModel()

    @contextmanager
    def _updating(self) -> Iterator[None]:
        self.is_updating = True
        yield
        self.is_updating = False
        self.count_changed.emit(len(self._ids), len(self._runs))

    def _matches(self, view: RunView) -> bool:
        return (self._shows_archived or not view.is_archived) and self._query.matches(view)

    def _key(self, view: RunView) -> Key:
        """Unique, so that a row is found by it; newest first among equals."""
        newness = -int.from_bytes(view.run_id.encode(), "big")  # ids begin with their time; numbers compare fast
        value = self._sort_column.key(view)
        if value is None:
            return (1, 0, newness)
        if self._is_descending:
            value = -value if isinstance(value, int | float) else _descending_key(value)
        return (0, value, newness)

    def _sort_rows(self) -> None:
        pairs = sorted((key, run_id) for run_id, key in self._key_by_run.items())
        self._keys = [key for key, _ in pairs]
        self._ids = [run_id for _, run_id in pairs]

    # --- changes

    def _on_changed(self, run_ids: set[str]) -> None:
        with self._updating():
            moved: dict[str, Key] = {}
            for run_id in run_ids:
                view = self._runs.get(run_id)
                old = self._key_by_run.get(run_id)
                new = self._key(view) if view is not None and self._matches(view) else None
                if old is None and new is not None:
                    self._insert_row(run_id, new)
                elif old is not None and new is None:
                    self._remove_row(run_id, old)
                elif old is not None and old == new:
                    self._emit_row_changed(bisect_left(self._keys, old))
                elif new is not None:
                    moved[run_id] = new
            if len(moved) > MAX_SINGLE_MOVES:
                self._key_by_run |= moved
                self._resort()
            else:
                for run_id, key in moved.items():
                    self._move_row(run_id, key)

    def _insert_row(self, run_id: str, key: Key) -> None:
        row = bisect_left(self._keys, key)
        self.beginInsertRows(QModelIndex(), row, row)
        self._keys.insert(row, key)
        self._ids.insert(row, run_id)
        self._key_by_run[run_id] = key
        self.endInsertRows()

    def _remove_row(self, run_id: str, key: Key) -> None:
        row = bisect_left(self._keys, key)
        self.beginRemoveRows(QModelIndex(), row, row)
        del self._keys[row], self._ids[row], self._key_by_run[run_id]
        self.endRemoveRows()

    def _move_row(self, run_id: str, key: Key) -> None:
        row = bisect_left(self._keys, self._key_by_run[run_id])
        target = bisect_left(self._keys, key)
        is_move = target not in (row, row + 1)
        if is_move:
            self.beginMoveRows(QModelIndex(), row, row, QModelIndex(), target)
        del self._keys[row], self._ids[row]
        target -= target > row
        self._keys.insert(target, key)
        self._ids.insert(target, run_id)
        self._key_by_run[run_id] = key
        if is_move:
            self.endMoveRows()
        self._emit_row_changed(target)

    def _emit_row_changed(self, row: int) -> None:
        self.dataChanged.emit(self.index(row, 0), self.index(row, len(COLUMNS) - 1))

    def refresh_ages(self) -> None:
        """Update the columns that show ages."""
        if self._ids:
            column = COLUMN_IDS.index("age")
            self.dataChanged.emit(self.index(0, column), self.index(len(self._ids) - 1, column))

    def _resort(self) -> None:
        self.layoutAboutToBeChanged.emit()
        before = self.persistentIndexList()
        ids = [self._ids[index.row()] for index in before]
        self._sort_rows()
        rows = {run_id: row for row, run_id in enumerate(self._ids)}
        after = [self.index(rows[run_id], index.column()) for run_id, index in zip(ids, before, strict=True)]
        self.changePersistentIndexList(before, after)
        self.layoutChanged.emit()

    # --- QAbstractTableModel

    def rowCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self._ids)

    def columnCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(COLUMNS)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _RIGHT if COLUMNS[index.column()].is_right_aligned else _LEFT
        if role not in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return None
        view = self.view(index.row())
        if view is None:
            return None
        column = COLUMNS[index.column()]
        if role == Qt.ItemDataRole.DisplayRole:
            return column.text(view)
        return "\n".join(filter(None, (formatting.run_title(view), column.tooltip(view))))

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation is not Qt.Orientation.Horizontal:
            return None
        if role == Qt.ItemDataRole.DisplayRole:
            return COLUMNS[section].title
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _RIGHT if COLUMNS[section].is_right_aligned else _LEFT
        return None

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        self._sort_column = COLUMNS[column]
        self._is_descending = order is Qt.SortOrder.DescendingOrder
        with self._updating():
            views = map(self._runs.get, self._ids)
            self._key_by_run = {view.run_id: self._key(view) for view in views if view is not None}
            self._resort()
