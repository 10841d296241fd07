"""The runs as a table: searched, sorted, folded by group and updated row by row, so that thousands stay responsive."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt, Signal

from mosaic.base import formatting
from mosaic.base.formatting import PLACEHOLDER, format_si_number, progress_fraction
from mosaic.contracts.views import RunView
from mosaic.features.experiments.core import format_counts
from mosaic.features.runs.window_order import COLUMN_IDS, COLUMNS, GROUP_PREFIX, VALUES_AFTER, Column, Key, RunOrder
from mosaic.trainer.client.run_lookup import split_superseded
from mosaic.window.palette import Query
from mosaic.window.runs import RunsModel

# --- Which runs the list shows: those that a search finds, without archived ones, and those that are pinned.


class RunFilter:
    def __init__(self) -> None:
        self.query = Query()
        self.shows_archived = False
        self.pinned: set[str] = set()
        """Runs that are shown whatever the search says."""

    def fits(self, view: RunView) -> bool:
        """Whether the search finds it."""
        if view.is_archived and not self.shows_archived:
            return False
        return self.query.is_empty or self.query.matches(view)

    def matches(self, view: RunView) -> bool:
        """Whether it is shown."""
        return view.run_id in self.pinned or self.fits(view)

    def select(self, views: Sequence[RunView], has_archived: bool) -> Sequence[RunView]:
        """Those that are shown, with as few calls as possible: there may be thousands."""
        pinned = self.pinned
        if has_archived and not self.shows_archived:
            views = [view for view in views if not view.is_archived or view.run_id in pinned]
        if self.query.is_empty:
            return views
        matches = self.query.matches
        return [view for view in views if matches(view) or view.run_id in pinned]


# --- The row of a group in the list of runs: how many of its runs are done, and their mean return.


STATE_ORDER = (
    *("running", "stalled", "paused", "starting", "stopping", "queued"),
    *("failed", "lost", "rejected", "succeeded", "ended", "cancelled"),
)
"""The state of a group is the first of these that one of its runs has."""


@dataclass(frozen=True)
class GroupSummary:
    name: str
    line: str
    """`18 of 30 done, 2 failed`."""
    mean_return: float | None
    """Over its runs of the last mean return; None where none has one, or their environments differ."""
    fraction: float | None
    """How much of the work of all its runs is done."""
    state: str
    """The state that matters most: of a run that is active, else of one that has failed, else of the others."""
    has_several_environments: bool = False
    is_archived: bool = False

    def text(self, column_id: str) -> str:
        if column_id == "name":
            return f"{self.name}: {self.line}"
        if column_id == "return":
            return "" if self.has_several_environments else format_si_number(self.mean_return)
        if column_id == "progress":
            return PLACEHOLDER if self.fraction is None else f"{100 * self.fraction:.0f}%"
        return ""

    @property
    def tooltip(self) -> str:
        mean = f"Mean return of its runs: {format_si_number(self.mean_return)}"
        if self.has_several_environments:
            mean = "Its runs have different environments, so there is no mean return"
        return f"{self.name}\n{self.line}\n{mean}\nReturn shows the whole group, Right and Left unfold and fold it"


def summarize_group(name: str, views: Iterable[RunView]) -> GroupSummary:
    """Summarize the runs of a group that count: later attempts of an experiment replace earlier ones."""
    current, _ = split_superseded(sorted(views, key=lambda view: view.age_key, reverse=True))
    returns = [view.episodic_return for view in current if view.episodic_return is not None]
    fractions = [fraction for view in current if (fraction := progress_fraction(view)) is not None]
    has_progress = bool(fractions)
    fractions += [0.0 for view in current if progress_fraction(view) is None and view.global_step is None]
    several = len({view.env_id for view in current}) > 1
    return GroupSummary(
        name,
        format_counts([view.status for view in current]),
        sum(returns) / len(returns) if returns and not several else None,
        sum(fractions) / len(fractions) if has_progress else None,
        _main_state(current),
        several,
        all(view.is_archived for view in current),
    )


def _main_state(views: list[RunView]) -> str:
    statuses = {view.status for view in views}
    return next((state for state in STATE_ORDER if state in statuses), "cancelled")


# --- The runs as a table: searched, sorted, folded by group and updated row by row, so that thousands stay
#     responsive.


Index = QModelIndex | QPersistentModelIndex

MAX_SINGLE_MOVES = 64
"""From this many changed rows on, the table is sorted again instead of moving rows one by one."""
DEFAULT_ORDER = -1
"""The column to sort by, for the order without one: what runs first, then what waits, then the newest."""
_ROOT = QModelIndex()
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
_FLAGS = Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemNeverHasChildren
_FLAGS_BY_COLUMN = {
    -1: Qt.ItemFlag.NoItemFlags,
    COLUMN_IDS.index("name"): _FLAGS | Qt.ItemFlag.ItemIsEditable,
}


class RunsTableModel(QAbstractTableModel):
    """Its rows are runs and, where runs are folded, their groups: each before its runs, which a collapsed one hides."""

    count_changed = Signal(int, int)
    """How many runs match, and of how many."""
    rename_requested = Signal(str, str)
    """A run and the name that was typed for it."""

    def __init__(self, runs: RunsModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.columns: tuple[Column, ...] = COLUMNS
        self._runs = runs
        self._order = RunOrder()
        self._rows: list[str] = []
        """Ids of runs, and of groups with GROUP_PREFIX."""
        self._keys: list[Key] = []
        """Of each row, in the same order: what it is sorted by."""
        self._summaries: dict[str, GroupSummary] = {}
        self._filter = RunFilter()
        self.is_updating = False
        """While rows are changed: changes of the current row that Qt then reports are not the user's."""
        runs.reset.connect(self.rebuild)
        runs.changed.connect(self._on_changed)
        runs.removed.connect(self._on_changed)
        self.rebuild()

    # --- what is shown

    def set_query(self, query: Query, shows_archived: bool) -> None:
        shown = self._filter
        if (query, shows_archived) != (shown.query, shown.shows_archived):
            shown.query, shown.shows_archived = query, shows_archived
            shown.pinned.clear()
            self.rebuild()

    def pin(self, run_ids: Iterable[str]) -> None:
        """Show these runs until the search changes, whether they match or not."""
        new = set(run_ids) - self._filter.pinned
        self._filter.pinned |= new
        self._on_changed(new)

    @property
    def hidden_matches(self) -> int:
        """How many runs are shown although they do not match."""
        views = map(self._runs.get, self._filter.pinned)
        return sum(view is not None and not self._filter.fits(view) for view in views)

    def set_value_columns(self, columns: Sequence[Column]) -> None:
        """Show these hyper-parameters and metrics, too."""
        at = COLUMN_IDS.index(VALUES_AFTER) + 1
        self.columns = (*COLUMNS[:at], *columns, *COLUMNS[at:])
        if self._order.sort_column is not None and self._order.sort_column.id not in self.column_ids:
            self._order.forget_column()
        self.rebuild()

    @property
    def column_ids(self) -> list[str]:
        return [column.id for column in self.columns]

    @property
    def sort_column(self) -> Column | None:
        return self._order.sort_column

    def run_id(self, row: int) -> str:
        """The run of a row; empty for a group."""
        row_id = self._rows[row]
        return "" if row_id.startswith(GROUP_PREFIX) else row_id

    def group_at(self, row: int) -> str | None:
        """The group that a row stands for."""
        row_id = self._rows[row] if 0 <= row < len(self._rows) else ""
        return row_id.removeprefix(GROUP_PREFIX) if row_id.startswith(GROUP_PREFIX) else None

    def runs_at(self, row: int) -> list[str]:
        """The run of a row, or all listed runs of a group."""
        group = self.group_at(row)
        return [self._rows[row]] if group is None else sorted(self.members(group))

    def runs_in(self, rows: Iterable[int]) -> list[str]:
        """The runs of some rows, each once."""
        row_ids = [self._rows[row] for row in rows]
        groups = [row_id for row_id in row_ids if row_id.startswith(GROUP_PREFIX)]
        if not groups:
            return row_ids
        runs = [row_id for row_id in row_ids if not row_id.startswith(GROUP_PREFIX)]
        members = [sorted(self.members(group.removeprefix(GROUP_PREFIX))) for group in groups]
        return list(dict.fromkeys(run_id for part in (runs, *members) for run_id in part))

    def members(self, group: str) -> Set[str]:
        """The listed runs of a group; none while its row is about to be removed."""
        return self._order.members.get(group, set())

    @property
    def has_groups(self) -> bool:
        """Whether any row stands for a group."""
        return bool(self._order.members)

    @property
    def has_several_users(self) -> bool:
        return self._runs.has_several_users

    def view(self, row: int) -> RunView | None:
        """None for a group."""
        return self._runs.get(self._rows[row]) if row < len(self._rows) else None

    def summary(self, row: int) -> GroupSummary | None:
        """How far the group of a row is; None for a run."""
        group = self.group_at(row)
        if group is None:
            return None
        if group not in self._summaries:
            views = [view for view in map(self._runs.get, self.members(group)) if view is not None]
            self._summaries[group] = summarize_group(group, views)
        return self._summaries[group]

    @property
    def match_count(self) -> int:
        return len(self._order.key_by_run)

    def listed_ids(self) -> list[str]:
        """All runs that match, also those in collapsed groups."""
        return list(self._order.key_by_run)

    def is_listed(self, run_id: str) -> bool:
        return run_id in self._order.key_by_run

    def row_of(self, run_id: str) -> int | None:
        """None where it does not match, or its group is collapsed."""
        return self._row_of_id(run_id)

    def row_of_group(self, group: str) -> int | None:
        return self._row_of_id(GROUP_PREFIX + group)

    def group_of(self, run_id: str) -> str | None:
        """The group under whose row a run is, where runs are folded."""
        return self._order.group_by_run.get(run_id)

    def _row_of_id(self, row_id: str) -> int | None:
        key = self._order.key_by_row.get(row_id)
        return None if key is None else bisect_left(self._keys, key)

    # --- folding

    @property
    def is_folding(self) -> bool:
        return self._order.is_folding

    @property
    def expanded_groups(self) -> set[str]:
        return set(self._order.expanded)

    def set_folding(self, is_folding: bool, expanded: Iterable[str]) -> None:
        self._order.is_folding, self._order.expanded = is_folding, set(expanded)
        self.rebuild()

    def is_expanded(self, group: str) -> bool:
        return group in self._order.expanded

    def set_expanded(self, group: str, is_expanded: bool) -> None:
        if is_expanded == self.is_expanded(group):
            return
        (self._order.expanded.add if is_expanded else self._order.expanded.discard)(group)
        row = self.row_of_group(group)
        if row is None:
            return
        with self._updating():
            if is_expanded:
                pairs = sorted((self._order.row_key(run_id), run_id) for run_id in self._order.members[group])
                self.beginInsertRows(_ROOT, row + 1, row + len(pairs))
                self._keys[row + 1 : row + 1] = [key for key, _ in pairs]
                self._rows[row + 1 : row + 1] = [run_id for _, run_id in pairs]
                self._order.key_by_row |= {run_id: key for key, run_id in pairs}
                self.endInsertRows()
            else:
                end = row + 1 + len(self._order.members[group])
                self.beginRemoveRows(_ROOT, row + 1, end - 1)
                for run_id in self._rows[row + 1 : end]:
                    del self._order.key_by_row[run_id]
                del self._keys[row + 1 : end], self._rows[row + 1 : end]
                self.endRemoveRows()
            self._emit_row_changed(row)

    # --- order

    def rebuild(self) -> None:
        with self._updating():
            self.beginResetModel()
            self._order.collect(self._filter.select(self._runs.all(), self._runs.archived_count > 0))
            self._summaries.clear()
            self._sort_rows()
            self.endResetModel()

    @contextmanager
    def _updating(self) -> Iterator[None]:
        self.is_updating = True
        yield
        self.is_updating = False
        self.count_changed.emit(len(self._order.key_by_run), len(self._runs))

    def _sort_rows(self) -> None:
        self._rows = sorted(self._order.key_by_row, key=self._order.key_by_row.__getitem__)
        self._keys = [self._order.key_by_row[row_id] for row_id in self._rows]

    # --- changes

    def _on_changed(self, run_ids: set[str]) -> None:
        with self._updating():
            order = self._order
            touched = {group for run_id in run_ids for group in order.update_run(run_id, self._listed_view(run_id))}
            row_ids = set(run_ids)
            for group in touched:
                self._summaries.pop(group, None)
                row_ids.add(GROUP_PREFIX + group)
                if order.update_group(group) and group in order.expanded:
                    row_ids |= order.members[group]
            self._apply(row_ids)

    def _listed_view(self, run_id: str) -> RunView | None:
        view = self._runs.get(run_id)
        return view if view is not None and self._filter.matches(view) else None

    def _apply(self, row_ids: set[str]) -> None:
        """Insert, remove, move and repaint these rows."""
        moved: dict[str, Key] = {}
        for row_id in row_ids:
            old = self._order.key_by_row.get(row_id)
            new = self._order.row_key(row_id) if self._order.has_row(row_id) else None
            if old is None and new is not None:
                self._insert_row(row_id, new)
            elif old is not None and new is None:
                self._remove_row(row_id, old)
            elif old is not None and old == new:
                self._emit_row_changed(bisect_left(self._keys, old))
            elif new is not None:
                moved[row_id] = new
        if len(moved) > MAX_SINGLE_MOVES:
            self._order.key_by_row |= moved
            self._resort()
        else:
            for row_id, key in moved.items():
                self._move_row(row_id, key)

    def _insert_row(self, row_id: str, key: Key) -> None:
        row = bisect_left(self._keys, key)
        self.beginInsertRows(QModelIndex(), row, row)
        self._keys.insert(row, key)
        self._rows.insert(row, row_id)
        self._order.key_by_row[row_id] = key
        self.endInsertRows()

    def _remove_row(self, row_id: str, key: Key) -> None:
        row = bisect_left(self._keys, key)
        self.beginRemoveRows(QModelIndex(), row, row)
        del self._keys[row], self._rows[row], self._order.key_by_row[row_id]
        self.endRemoveRows()

    def _move_row(self, row_id: str, key: Key) -> None:
        row = bisect_left(self._keys, self._order.key_by_row[row_id])
        target = bisect_left(self._keys, key)
        is_move = target not in (row, row + 1)
        if is_move:
            self.beginMoveRows(QModelIndex(), row, row, QModelIndex(), target)
        del self._keys[row], self._rows[row]
        target -= target > row
        self._keys.insert(target, key)
        self._rows.insert(target, row_id)
        self._order.key_by_row[row_id] = key
        if is_move:
            self.endMoveRows()
        self._emit_row_changed(target)

    def _emit_row_changed(self, row: int) -> None:
        self.dataChanged.emit(self.index(row, 0), self.index(row, len(self.columns) - 1))

    def refresh_ages(self) -> None:
        """Update the columns that show ages."""
        self._emit_column_changed(self.column_ids.index("age"))

    def refresh_marks(self) -> None:
        """Update colors and ticks."""
        self._emit_column_changed(0)

    def _emit_column_changed(self, column: int) -> None:
        if self._rows:
            self.dataChanged.emit(self.index(0, column), self.index(len(self._rows) - 1, column))

    def refresh_values(self, run_ids: set[str]) -> None:
        """Hyper-parameters or metrics of these runs were read."""
        if self._order.sort_column is not None and self._order.sort_column.shows_value:
            self._on_changed(run_ids)
            return
        for row in map(self.row_of, run_ids):
            if row is not None:
                self._emit_row_changed(row)

    def _resort(self) -> None:
        self.layoutAboutToBeChanged.emit()
        before = self.persistentIndexList()
        row_ids = [self._rows[index.row()] for index in before]
        self._sort_rows()
        rows = {row_id: row for row, row_id in enumerate(self._rows)}
        after = [self.index(rows[row_id], index.column()) for row_id, index in zip(row_ids, before, strict=True)]
        self.changePersistentIndexList(before, after)
        self.layoutChanged.emit()

    # --- QAbstractTableModel

    def rowCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self._rows)

    def columnCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self.columns)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        column = self.columns[index.column()]
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _RIGHT if column.is_right_aligned else _LEFT
        if role not in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole, Qt.ItemDataRole.EditRole):
            return None
        summary = self.summary(index.row())
        if summary is not None:
            return summary.tooltip if role == Qt.ItemDataRole.ToolTipRole else summary.text(column.id)
        view = self.view(index.row())
        if view is None:
            return None
        if role == Qt.ItemDataRole.EditRole:
            return view.run_name or ""
        if role == Qt.ItemDataRole.DisplayRole:
            return column.text(view)
        return "\n".join(filter(None, (formatting.run_title(view), column.tooltip(view))))

    def setData(self, index: Index, value: Any, role: int = Qt.ItemDataRole.EditRole) -> bool:
        view = self.view(index.row())
        if view is None or role != Qt.ItemDataRole.EditRole or str(value).strip() == (view.run_name or ""):
            return False
        self.rename_requested.emit(view.run_id, str(value).strip())
        return True

    def flags(self, index: Index) -> Qt.ItemFlag:
        # Qt asks for each cell that is selected. Groups are not edited, either: only the view's `edit_name` does that.
        return _FLAGS_BY_COLUMN.get(index.column(), _FLAGS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation is not Qt.Orientation.Horizontal or section >= len(self.columns):
            return None
        column = self.columns[section]
        if role == Qt.ItemDataRole.DisplayRole:
            return column.title
        if role == Qt.ItemDataRole.ToolTipRole and column.shows_value:
            return column.id.partition(":")[2]
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _RIGHT if column.is_right_aligned else _LEFT
        return None

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        by = None if column == DEFAULT_ORDER else self.columns[column]
        with self._updating():
            views = filter(None, map(self._runs.get, self._order.key_by_run))
            self._order.sort_by(by, order is Qt.SortOrder.DescendingOrder, views)
            self._resort()
