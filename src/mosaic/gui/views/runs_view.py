"""The table of the list of runs: its columns, which are remembered, folding by mouse and keys, ticks and renaming."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, QSignalBlocker, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QMenu, QTableView

from mosaic.gui.gui_settings import GuiSettings
from mosaic.gui.models.run_columns import Column
from mosaic.gui.models.runs_table import DEFAULT_ORDER, RunsTableModel
from mosaic.gui.models.ticks import Ticks
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.delegates import PADDING, RowTable
from mosaic.gui.views.run_cells import RunDelegate

STRETCHED = "name"
"""The column that takes the room that is left."""
MUST_FIT = ("state", "name", "seed", "return")
"""Where these have no room, the state is shown by its icon alone."""


class RunsTableView(RowTable):
    """As many columns as there is room for, of those that the user wants."""

    tick_toggled = Signal(list)
    """The box of these runs was clicked."""
    group_opened = Signal(str)
    """Return, or Enter, was pressed on the row of this group."""
    expansion_changed = Signal()
    """The user has unfolded or folded a group."""
    columns_removed = Signal(str, object)
    """What was removed, and what brings it back."""
    column_choice_requested = Signal()

    def __init__(self, model: RunsTableModel, settings: GuiSettings, ticks: Ticks) -> None:
        super().__init__(model, "runs.table")
        self._model = model
        self._settings = settings
        self._hidden: set[str] = set(settings.get_for_workspace("runs.hidden", settings.get("runs.hidden", [])))
        self._widths: dict[str, int] = settings.get("runs.widths", {})
        self._is_fitting = False
        self._delegate = RunDelegate(model, ticks, self)
        self.setItemDelegate(self._delegate)
        self.setSelectionMode(QTableView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._set_up_header()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self.fit_columns()

    def _set_up_header(self) -> None:
        header = self.horizontalHeader()
        header.setMinimumSectionSize(32)
        header.setSectionsMovable(False)
        header.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        header.customContextMenuRequested.connect(self.open_columns_menu)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setSortIndicatorClearable(True)
        column, is_descending = self._settings.get("runs.sort", [None, False])
        order = Qt.SortOrder.DescendingOrder if is_descending else Qt.SortOrder.AscendingOrder
        header.setSortIndicator(self._number_of(column), order)
        self.setSortingEnabled(True)
        header.sortIndicatorChanged.connect(self._on_sort_changed)
        header.sectionResized.connect(self._on_column_resized)
        self.fit_columns()

    def _number_of(self, column_id: str | None) -> int:
        ids = self._model.column_ids
        return ids.index(column_id) if column_id in ids else DEFAULT_ORDER

    def restore_sort_indicator(self) -> None:
        """Point at the same column again, after others have changed."""
        column = self._model.sort_column
        with QSignalBlocker(self.horizontalHeader()):
            number = self._number_of(None if column is None else column.id)
            self.horizontalHeader().setSortIndicator(number, self.horizontalHeader().sortIndicatorOrder())

    # --- columns

    def fit_columns(self) -> None:
        """Shows the wanted columns, the first ones first, as far as they have room."""
        self._is_fitting = True
        room = self.viewport().width()
        columns = self._model.columns
        wanted = [column for column in columns if self.is_wanted(column)]
        self._delegate.is_compact = False
        if sum(self._width(column) for column in wanted if column.id in MUST_FIT or column.shows_value) > room:
            self._delegate.is_compact = True
        for number, column in enumerate(columns):
            width = self._width(column)
            is_wanted = column in wanted
            is_shown = is_wanted and (number == 0 or room >= width)
            self.setColumnHidden(number, not is_shown)
            if is_wanted:
                room = room - width if is_shown else 0  # columns after one that has no room have none either
            if is_shown:
                is_stretched = column.id == STRETCHED
                mode = QHeaderView.ResizeMode.Stretch if is_stretched else QHeaderView.ResizeMode.Interactive
                self.horizontalHeader().setSectionResizeMode(number, mode)
                if not is_stretched:
                    self.setColumnWidth(number, width)
        self._is_fitting = False

    def is_wanted(self, column: Column) -> bool:
        """Whether it is to be shown where there is room."""
        return column.id not in self._hidden and self._is_useful(column)

    def _is_useful(self, column: Column) -> bool:
        """The group's is not where a row of the group says it, the user's where all runs are of one user."""
        if column.id == "group":
            return not self._model.is_folding
        return column.id != "user" or self._model.has_several_users

    def _width(self, column: Column) -> int:
        if column.id in self._widths and column.id not in (STRETCHED, "state"):
            return int(self._widths[column.id])
        measure = self.fontMetrics().horizontalAdvance
        is_bare = column.id == "state" and self._delegate.is_compact
        extra = self._delegate.extra_width(column.id)
        if is_bare:
            return extra
        return max(measure(column.width_sample) + extra + 2, measure(column.title) + 2 * PADDING)

    def open_columns_menu(self, position: QPoint) -> None:
        menu = ui.with_object_name(QMenu(self), "runs.columns")
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        for number, column in enumerate(self._model.columns[1:], start=1):
            if not self._is_useful(column):
                continue
            is_wanted = self.is_wanted(column)
            has_no_room = is_wanted and self.isColumnHidden(number)
            title = column.id.partition(":")[2] or column.title
            action = menu.addAction(f"{title}\tlist too narrow" if has_no_room else title)
            action.setCheckable(True)
            action.setChecked(is_wanted)
            action.toggled.connect(lambda is_on, column_id=column.id: self.set_column_visible(column_id, is_on))
        menu.addSeparator()
        more = menu.addAction("Hyper-parameters and metrics…")
        more.setObjectName("runs.columns.choose")
        more.triggered.connect(self.column_choice_requested)
        menu.addAction("Reset columns").triggered.connect(self._reset_columns)
        menu.popup(self.horizontalHeader().mapToGlobal(position))

    def set_column_visible(self, column_id: str, is_visible: bool) -> None:
        hidden, widths = set(self._hidden), dict(self._widths)
        self._set_columns(hidden - {column_id} if is_visible else hidden | {column_id}, widths)
        if not is_visible:
            title = column_id.partition(":")[2] or column_id
            self.columns_removed.emit(f"Removed the column {title}.", lambda: self._set_columns(hidden, widths))

    def _reset_columns(self) -> None:
        hidden, widths = set(self._hidden), dict(self._widths)
        self._set_columns(set(), {})
        self.columns_removed.emit("The columns are as at first.", lambda: self._set_columns(hidden, widths))

    def _set_columns(self, hidden: set[str], widths: dict[str, int]) -> None:
        self._hidden, self._widths = hidden, widths
        self._settings.put_for_workspace("runs.hidden", sorted(hidden))
        self._settings.put("runs.widths", widths)
        self.fit_columns()

    def _on_sort_changed(self, column: int, order: Qt.SortOrder) -> None:
        column_id = None if column == DEFAULT_ORDER else self._model.column_ids[column]
        self._settings.put("runs.sort", [column_id, order is Qt.SortOrder.DescendingOrder])

    def _on_column_resized(self, column: int, _: int, width: int) -> None:
        column_id = self._model.column_ids[column]
        if not self._is_fitting and column_id not in (STRETCHED, "state") and width > 0:
            self._widths[column_id] = width
            self._settings.put("runs.widths", self._widths)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.fit_columns()
        super().resizeEvent(event)

    # --- ticks and groups

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton and self._press_mark(event.position().toPoint()):
            event.accept()
            return
        super().mousePressEvent(event)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        place = event.position().toPoint()
        group = self._model.group_at(self.rowAt(place.y()))
        if event.button() != Qt.MouseButton.LeftButton or self._press_mark(place):
            event.accept()
        elif group is not None:
            self.set_expanded(group, not self._model.is_expanded(group))
        else:
            super().mouseDoubleClickEvent(event)

    def _press_mark(self, place: QPoint) -> bool:
        """Tick a run or unfold a group, if its mark is here: neither changes what is selected."""
        index = self.indexAt(place)
        if not index.isValid() or index.column() != 0:
            return False
        cell, row = self.visualRect(index), index.row()
        group = self._model.group_at(row)
        if self._delegate.tick_rect(cell, row).contains(place):
            self.tick_toggled.emit(self._model.runs_at(row))
            return True
        if group is not None and self._delegate.chevron_rect(cell).contains(place):
            self.set_expanded(group, not self._model.is_expanded(group))
            return True
        return False

    def set_expanded(self, group: str, is_expanded: bool) -> None:
        self._model.set_expanded(group, is_expanded)
        self.expansion_changed.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        row = self.currentIndex().row()
        group = self._model.group_at(row)
        parent = self._model.group_of(self._model.run_id(row)) if group is None and row >= 0 else None
        key = event.key()
        if key in (Qt.Key.Key_Right, Qt.Key.Key_Left) and group is not None:
            self.set_expanded(group, key == Qt.Key.Key_Right)
        elif key == Qt.Key.Key_Left and parent is not None:
            target = self._model.row_of_group(parent)
            if target is not None:
                self.selectRow(target)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and group is not None and not self._is_editing():
            self.group_opened.emit(group)
        elif key in (Qt.Key.Key_Right, Qt.Key.Key_Left):
            event.accept()  # there are no cells to move between
        else:
            super().keyPressEvent(event)

    # --- renaming

    def _is_editing(self) -> bool:
        return self.state() is QAbstractItemView.State.EditingState

    def edit_name(self, row: int) -> None:
        index = self._model.index(row, self._model.column_ids.index("name"))
        self.setCurrentIndex(index)
        self.scrollTo(index)
        self.edit(index)

    def visible_run_ids(self) -> list[str]:
        """The runs in the rows that can be seen."""
        first, last = self.rowAt(0), self.rowAt(self.viewport().height() - 1)
        if first < 0:
            return []
        end = self._model.rowCount() if last < 0 else last + 1
        return [run_id for row in range(first, end) if (run_id := self._model.run_id(row))]
