"""The runs as a table: searched, sorted, and told of changes row by row, so that thousands stay fluid."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt, Signal

from mosaic.gui.models.runs import Runs
from mosaic.gui.models.search import Query
from mosaic.gui.views import words

Json = dict[str, Any]
Index = QModelIndex | QPersistentModelIndex
Key = tuple[Any, ...]

RESORT_ABOVE = 64
"""So many rows at once are sorted anew rather than moved one by one."""
_ROOT = QModelIndex()
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
_STATES = (
    *("running", "stalled", "paused", "stopping", "starting", "queued"),
    *("failed", "lost", "rejected", "cancelled", "succeeded"),
)
"""Those first that somebody may want to do something about."""


@dataclass(frozen=True)
class Column:
    id: str
    title: str
    text: Callable[[Json], str]
    key: Callable[[Json], Any]
    """What it is sorted by; None stands behind everything, whichever way."""
    sample: str
    """As wide as this."""
    is_right: bool = False
    tip: Callable[[Json], str] = lambda _: ""


def _state_rank(view: Json) -> int:
    state = words.state_of(view)
    return _STATES.index(state) if state in _STATES else len(_STATES)


def _algo(view: Json) -> str:
    name = str(view.get("algo") or view.get("worker") or "–")
    return f"{name} (eval)" if view.get("kind") == "policy_eval" else name


def _percent(view: Json) -> str:
    part = words.progress(view)
    return "–" if part is None else f"{100 * part:.0f}%"


def _steps(view: Json) -> str:
    if view.get("global_step") is None:
        return ""
    total = f" of {view['total_timesteps']:,}" if view.get("total_timesteps") else ""
    return f"{view['global_step']:,}{total} steps"


def _time_left(view: Json) -> str:
    return words.duration(view.get("seconds_left"))


def _episodes(view: Json) -> str:
    return f"Mean of the last 100 of {view.get('episodes') or 0:,} episodes"


def _submitted(view: Json) -> str:
    return f"Submitted {words.moment(view.get('submitted_at'))}"


def _age(view: Json) -> float | None:
    at = view.get("submitted_at")
    return None if at is None else -float(at)


def _tags(view: Json) -> str:
    return ", ".join(view.get("tags") or ())


def _value(name: str) -> Callable[[Json], Any]:
    return lambda view: view.get(name)


def _field(name: str) -> Callable[[Json], str]:
    return lambda view: "–" if view.get(name) is None else str(view[name])


def _figure(name: str) -> Callable[[Json], str]:
    return lambda view: words.number(view.get(name))


COLUMNS: tuple[Column, ...] = (
    Column("state", "State", words.state_of, _state_rank, "succeeded", tip=lambda view: str(view.get("reason") or "")),
    Column("env", "Environment", _field("env_id"), _value("env_id"), "CartPole-v"),
    Column("algo", "Algo", _algo, _algo, "ppo_"),
    Column("progress", "Done", _percent, words.progress, "100%", is_right=True, tip=_steps),
    Column("return", "Return", _figure("episodic_return"), _value("episodic_return"), "-0.1234", True, _episodes),
    Column("seed", "Seed", _field("seed"), _value("seed"), "123", is_right=True),
    Column("left", "Time left", _time_left, _value("seconds_left"), "12m 34s", is_right=True),
    Column("sps", "Steps/s", _figure("sps"), _value("sps"), "12.3k", is_right=True),
    Column("age", "Age", lambda view: words.ago(view.get("submitted_at")), _age, "59 min ago", True, _submitted),
    Column("tags", "Tags", _tags, lambda view: _tags(view) or None, "baseline"),
)
"""In the order in which a narrow list leaves them out: the last first."""
COLUMN_IDS = tuple(column.id for column in COLUMNS)


class RunsTable(QAbstractTableModel):
    counted = Signal(int, int)
    """How many runs are shown, and of how many."""

    def __init__(self, runs: Runs, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._runs = runs
        self._ids: list[str] = []
        self._keys: list[Key] = []
        """Of each row, in the same order: what it is sorted by."""
        self._place: dict[str, Key] = {}
        self._query = Query()
        self._has_archived = False
        self._sorted_by = COLUMNS[COLUMN_IDS.index("age")]
        self._is_descending = False
        self.is_moving = False
        """While rows come, go or move: whatever Qt then says of the current row is not the user's wish."""
        runs.reset.connect(self.rebuild)
        runs.changed.connect(self._change)
        runs.removed.connect(self._remove)
        self.rebuild()

    # --- what is shown

    def search(self, query: Query, has_archived: bool) -> None:
        if (query, has_archived) != (self._query, self._has_archived):
            self._query, self._has_archived = query, has_archived
            self.rebuild()

    def run_id(self, row: int) -> str:
        return self._ids[row]

    def view(self, row: int) -> Json | None:
        return self._runs.get(self._ids[row]) if row < len(self._ids) else None

    def row_of(self, run_id: str) -> int | None:
        key = self._place.get(run_id)
        return None if key is None else bisect_left(self._keys, key)

    def rebuild(self) -> None:
        self.beginResetModel()
        self.is_moving = True
        views = [view for view in self._runs.all() if self._shows(view)]
        self._place = {view["run_id"]: self._key(view) for view in views}
        self._arrange()
        self.endResetModel()
        self.is_moving = False
        self._count()

    def _shows(self, view: Json) -> bool:
        return (self._has_archived or not view.get("is_archived")) and self._query.fits(view)

    def _key(self, view: Json) -> Key:
        """Unique, so that a row is found by it; newest first among equals."""
        newness = -int.from_bytes(view["run_id"].encode(), "big")  # ids begin with their time; numbers compare fast
        value = self._sorted_by.key(view)
        if value is None:
            return (1, 0, newness)
        if self._is_descending:
            value = -value if isinstance(value, int | float) else _Turned(value)
        return (0, value, newness)

    def _arrange(self) -> None:
        pairs = sorted((key, run_id) for run_id, key in self._place.items())
        self._keys = [key for key, _ in pairs]
        self._ids = [run_id for _, run_id in pairs]

    def _count(self) -> None:
        self.counted.emit(len(self._ids), len(self._runs))

    # --- what happens

    def _change(self, run_ids: set[str]) -> None:
        self.is_moving = True
        moved = 0
        for run_id in run_ids:
            view = self._runs.get(run_id)
            old = self._place.get(run_id)
            new = self._key(view) if view is not None and self._shows(view) else None
            if old == new:
                if old is not None:
                    self._tell(bisect_left(self._keys, old))
            elif new is None:
                self._take_out(run_id)
            elif old is None:
                self._put_in(run_id, new)
            elif moved > RESORT_ABOVE:
                self._place[run_id] = new
            else:
                moved += 1
                self._move(run_id, old, new)
        if moved > RESORT_ABOVE:
            self._resort()
        self.is_moving = False
        self._count()

    def _remove(self, run_ids: set[str]) -> None:
        self.is_moving = True
        for run_id in run_ids:
            if run_id in self._place:
                self._take_out(run_id)
        self.is_moving = False
        self._count()

    def _put_in(self, run_id: str, key: Key) -> None:
        row = bisect_left(self._keys, key)
        self.beginInsertRows(QModelIndex(), row, row)
        self._keys.insert(row, key)
        self._ids.insert(row, run_id)
        self._place[run_id] = key
        self.endInsertRows()

    def _take_out(self, run_id: str) -> None:
        row = bisect_left(self._keys, self._place[run_id])
        self.beginRemoveRows(QModelIndex(), row, row)
        del self._keys[row], self._ids[row], self._place[run_id]
        self.endRemoveRows()

    def _move(self, run_id: str, old: Key, new: Key) -> None:
        row = bisect_left(self._keys, old)
        target = bisect_left(self._keys, new)
        if target in (row, row + 1):
            self._keys[row] = new
            self._place[run_id] = new
            self._tell(row)
            return
        self.beginMoveRows(QModelIndex(), row, row, QModelIndex(), target)
        del self._keys[row], self._ids[row]
        target -= target > row
        self._keys.insert(target, new)
        self._ids.insert(target, run_id)
        self._place[run_id] = new
        self.endMoveRows()
        self._tell(target)

    def _tell(self, row: int) -> None:
        self.dataChanged.emit(self.index(row, 0), self.index(row, len(COLUMNS) - 1))

    def tell_of_time(self) -> None:
        """Time has passed: what is told as an age has changed."""
        if self._ids:
            column = COLUMN_IDS.index("age")
            self.dataChanged.emit(self.index(0, column), self.index(len(self._ids) - 1, column))

    def _resort(self) -> None:
        self.layoutAboutToBeChanged.emit()
        before = self.persistentIndexList()
        ids = [self._ids[index.row()] for index in before]
        self._arrange()
        rows = {run_id: row for row, run_id in enumerate(self._ids)}
        after = [self.index(rows[run_id], index.column()) for run_id, index in zip(ids, before, strict=True)]
        self.changePersistentIndexList(before, after)
        self.layoutChanged.emit()

    # --- Qt's questions

    def rowCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self._ids)

    def columnCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(COLUMNS)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _RIGHT if COLUMNS[index.column()].is_right else _LEFT
        if role not in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return None
        view = self.view(index.row())
        if view is None:
            return None
        column = COLUMNS[index.column()]
        if role == Qt.ItemDataRole.DisplayRole:
            return column.text(view)
        return "\n".join(filter(None, (words.run_title(view), column.tip(view))))

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation is not Qt.Orientation.Horizontal:
            return None
        if role == Qt.ItemDataRole.DisplayRole:
            return COLUMNS[section].title
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _RIGHT if COLUMNS[section].is_right else _LEFT
        return None

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        self._sorted_by = COLUMNS[column]
        self._is_descending = order is Qt.SortOrder.DescendingOrder
        self.is_moving = True
        self._place = {run_id: self._key(view) for run_id in self._ids if (view := self._runs.get(run_id)) is not None}
        self._resort()
        self.is_moving = False


class _Turned:
    """Sorts the other way round."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Turned) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Turned) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]
