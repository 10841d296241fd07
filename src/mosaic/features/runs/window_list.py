"""The list of runs: search, filters, folding, marks, and the selection that the rest of the window shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from PySide6.QtCore import QEvent, QItemSelection, QItemSelectionModel, QPoint, QSignalBlocker, QSize, Qt, Signal
from PySide6.QtGui import QGuiApplication, QKeyEvent, QMouseEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QMenu, QTableView, QWidget

from mosaic.base.caller_environment import submitter
from mosaic.base.formatting import count_noun, short_id
from mosaic.contracts.views import RunView
from mosaic.features.runs.window_cells import MAX_VALUE_COLUMNS, ColumnsDialog, FilterChips, RunDelegate
from mosaic.features.runs.window_order import Column, RunValues
from mosaic.features.runs.window_table import DEFAULT_ORDER, RunsTableModel
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.actions import run_menu
from mosaic.window.palette import parse_query, with_chips
from mosaic.window.runs import Ticks
from mosaic.window.settings import GuiSettings
from mosaic.window.tables import PADDING, RowTable
from mosaic.window.workbench import Workbench

# --- The table of the list of runs: its columns, which are remembered, folding by mouse and keys, ticks and renaming.


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


# --- The list of runs: search, filters, folding, marks, and the selection that the rest of the window shows.


SEARCH_MS = 120
KEY_SELECTION_DELAY_MS = 80
"""Time after the last arrow key until a run is shown, so that scrolling loads nothing."""
VALUES_DELAY_MS = 100
"""Time after the last change of the visible rows until their values are read."""
AGE_REFRESH_INTERVAL_MS = 20_000
SEARCH_PLACEHOLDER = "Search: words, algo:ppo env:CartPole tag:x status:failed"
SEARCH_TIP = (
    "Words, or name: algo: env: tag: status: group: seed: user: id: note:\n"
    "status:failed,lost takes either, -tag:old leaves out, seed:1-5 is a span"
)
_ROWS = QItemSelectionModel.SelectionFlag.Rows
_REPLACE_SELECTION = QItemSelectionModel.SelectionFlag.ClearAndSelect | _ROWS


class RunsPanel(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        settings = workbench.settings
        self._model = RunsTableModel(workbench.runs, self)
        self._model.set_folding(
            bool(settings.get_for_workspace("runs.fold", True)),
            map(str, settings.get_for_workspace("runs.expanded", [])),
        )
        self._values = RunValues(workbench.bridge, workbench.runs, self)
        self._value_columns = [str(name) for name in settings.get_for_workspace("runs.values", [])][:MAX_VALUE_COLUMNS]
        self._model.set_value_columns(self._values.create_columns(self._value_columns))
        self._has_run_list = False
        self._is_searching = False
        self._is_marking = False
        """While the rows that the user has selected are marked."""
        self._search = ui.search_field("runs.search", SEARCH_PLACEHOLDER, f"Search runs (Ctrl+F)\n{SEARCH_TIP}")
        self._fold = ui.tool_button(
            "runs.fold", "mdi6.file-tree-outline", "Fold runs by group", is_flat=False, is_checkable=True
        )
        self._fold.setChecked(self._model.is_folding)
        self._archived = ui.tool_button(
            "runs.archived", "mdi6.archive-outline", "Also show archived runs", is_flat=False, is_checkable=True
        )
        columns = ui.tool_button("runs.choose_columns", "mdi6.view-column-outline", "Columns", is_flat=False)
        self._chips = FilterChips()
        self._count = ui.muted_label("", "runs.count")
        self.table = RunsTableView(self._model, settings, workbench.ticks)
        start = ui.accent_button("Train an agent", "runs.start", lambda: workbench.form_requested.emit(None))
        clear = ui.button("Show all runs", "runs.clear", self._show_all)
        self._waiting = ui.EmptyState(
            "Waiting for the trainer…", "It starts automatically and lists the runs of this workspace."
        )
        self._none = ui.EmptyState(
            "No runs yet", "Choose an algorithm and an environment; the run appears here.", start
        )
        self._no_match = ui.EmptyState("No run matches the search", "Remove a word or a filter, or show all.", clear)
        self._stack = ui.stack(self.table, self._waiting, self._none, self._no_match)
        ui.column(
            ui.row((self._search, 1), self._fold, self._archived, columns, spacing=4),
            self._chips,
            (self._stack, 1),
            self._count,
            parent=self,
            margins=(theme.MARGIN, 4, 0, 4),
            spacing=4,
        )
        self.setMinimumWidth(240)

        self._search_timer = ui.create_timer(self, SEARCH_MS, self._apply_search, is_single_shot=True)
        self._selection_timer = ui.create_timer(self, 0, self._select_single_mark, is_single_shot=True)
        self._values_timer = ui.create_timer(self, VALUES_DELAY_MS, self._read_values, is_single_shot=True)
        ui.VisibleTimer(self, AGE_REFRESH_INTERVAL_MS, self._model.refresh_ages)
        self._search.textChanged.connect(lambda _: self._search_timer.start())
        self._archived.toggled.connect(lambda _: self._apply_search())
        self._chips.changed.connect(self._apply_search)
        self._fold.toggled.connect(self._set_folding)
        columns.clicked.connect(lambda: self.table.open_columns_menu(QPoint(0, 0)))
        self._connect_table()
        workbench.selection_changed.connect(self._select_run)
        workbench.marks_changed.connect(self._on_marks_changed)
        workbench.runs.reset.connect(self._on_runs_reset)
        workbench.runs_submitted.connect(self._on_runs_submitted)
        workbench.rename_requested.connect(self._edit_name)
        workbench.ticks.changed.connect(self._on_ticks_changed)
        workbench.run_colors_changed.connect(self._model.refresh_marks)
        self._update_count()

    def _connect_table(self) -> None:
        table, model = self.table, self._model
        table.selectionModel().selectionChanged.connect(self._on_selection_changed)
        table.customContextMenuRequested.connect(self._open_menu)
        table.tick_toggled.connect(self._workbench.toggle_ticks)
        table.group_opened.connect(self._workbench.group_requested)
        table.expansion_changed.connect(self._on_expansion_changed)
        table.column_choice_requested.connect(self._choose_columns)
        table.columns_removed.connect(self._offer_columns)
        model.modelReset.connect(self._on_model_reset)
        model.count_changed.connect(self._on_count_changed)
        model.rename_requested.connect(self._rename)
        self._values.changed.connect(model.refresh_values)
        for signal in (model.rowsInserted, model.rowsRemoved, model.rowsMoved, model.layoutChanged, model.modelReset):
            signal.connect(self._read_values_later)
        table.verticalScrollBar().valueChanged.connect(self._read_values_later)
        table.verticalScrollBar().rangeChanged.connect(self._read_values_later)

    def sizeHint(self) -> QSize:
        return QSize(464, 480)

    # --- what is shown

    def start_search(self) -> None:
        self._search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self._search.selectAll()

    def _apply_search(self) -> None:
        midnight = time.mktime((*time.localtime()[:3], 0, 0, 0, 0, 0, -1))
        self._is_searching = True
        user = submitter(is_local=not self._workbench.is_remote)
        query = with_chips(parse_query(self._search.text()), self._chips.checked(), midnight, user)
        self._model.set_query(query, self._archived.isChecked())
        self._is_searching = False

    def _show_all(self) -> None:
        self._search.clear()
        self._chips.clear()
        self._archived.setChecked(True)

    def _on_runs_reset(self) -> None:
        self._has_run_list = True
        self._update_count()

    def _on_runs_submitted(self, run_ids: list[str]) -> None:
        self._model.pin(run_ids)
        self._update_count()

    def _on_count_changed(self, *_: object) -> None:
        """Unmark runs that have left the list, so that actions apply to what is visible."""
        listed = [run_id for run_id in self._workbench.marks if self._model.is_listed(run_id)]
        if self._workbench.marked_groups and set(self._selected_runs()) != set(self._workbench.marks):
            self._mark_selected_rows()
        elif len(listed) < len(self._workbench.marks):
            self._workbench.mark(listed)
        self._update_count()

    def _update_count(self) -> None:
        workbench = self._workbench
        shown, known, marked = self._model.match_count, len(workbench.runs), len(workbench.marks)
        archived = 0 if self._archived.isChecked() else workbench.runs.archived_count
        total = known - archived
        count = count_noun(total, "run")
        parts = [count if shown == total else f"{shown:,} of {count}"]
        if archived:
            parts.append(f"{archived:,} archived")
        if extra := self._model.hidden_matches:
            parts.append(f"{extra:,} of them new, outside of the filter")
        if marked > 1:
            parts.append(f"{marked:,} selected")
        if ticked := len(workbench.ticks.ids):
            parts.append(f"{ticked:,} ticked")
        self._count.setText(", ".join(parts))
        if self._chips.offer_mine(workbench.runs.has_several_users):
            self.table.fit_columns()
        self._count.setVisible(known > 0)
        page: QWidget = self.table
        if not shown:
            page = self._no_match if known else self._none if self._has_run_list else self._waiting
        self._stack.setCurrentWidget(page)

    def _on_ticks_changed(self) -> None:
        self._model.refresh_marks()
        self._update_count()

    # --- folding

    def _set_folding(self, is_folding: bool) -> None:
        self._workbench.settings.put_for_workspace("runs.fold", is_folding)
        if len(self._workbench.marks) > 1:
            self._workbench.mark([])  # not all of them would be visible
        self._model.set_folding(is_folding, self._model.expanded_groups)
        self.table.fit_columns()

    def _on_expansion_changed(self) -> None:
        """What is hidden now is not selected any more."""
        self._save_expanded()
        if set(self._selected_runs()) != set(self._workbench.marks):
            self._mark_selected_rows()

    def _expand(self, group: str) -> None:
        self._model.set_expanded(group, True)
        self._save_expanded()

    def _save_expanded(self) -> None:
        self._workbench.settings.put_for_workspace("runs.expanded", sorted(self._model.expanded_groups))

    # --- hyper-parameters and metrics

    def _choose_columns(self) -> None:
        dialog = ColumnsDialog(self._value_columns, self._workbench.window)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.columns_chosen.connect(self._change_value_columns)
        self._values.ask_for_names(dialog.show_names, dialog.show_error, dialog)
        dialog.open()

    def _change_value_columns(self, column_ids: list[str]) -> None:
        before = self._value_columns
        self.show_value_columns(column_ids)
        if removed := [name for name in before if name not in column_ids]:
            names = ", ".join(name.partition(":")[2] for name in removed)
            self._workbench.offer_undo(
                f"Removed from the columns: {names}.", "remove columns", partial(self.show_value_columns, before)
            )

    def _offer_columns(self, text: str, put_back: Callable[[], None]) -> None:
        self._workbench.offer_undo(text, "change the columns", put_back)

    def show_value_columns(self, column_ids: list[str]) -> None:
        self._value_columns = column_ids
        self._workbench.settings.put_for_workspace("runs.values", column_ids)
        self._model.set_value_columns(self._values.create_columns(column_ids))
        self.table.restore_sort_indicator()
        self.table.fit_columns()

    def _read_values_later(self, *_: object) -> None:
        if self._value_columns and not self._values_timer.isActive():
            self._values_timer.start()

    def _read_values(self) -> None:
        """Of the visible rows; of all, after them, where the list is sorted by such a value."""
        run_ids = self.table.visible_run_ids()
        if self._model.sort_column is not None and self._model.sort_column.shows_value:
            run_ids = list(dict.fromkeys((*run_ids, *self._model.listed_ids())))
        self._values.show_runs(run_ids)

    # --- renaming

    def _edit_name(self, run_id: str) -> None:
        if not self._model.is_listed(run_id):
            self._model.pin([run_id])
        rows = self._rows_of([run_id])
        if rows:
            self.table.setFocus()
            self.table.edit_name(rows[0])

    def _rename(self, run_id: str, name: str, is_undo: bool = False) -> None:
        known = self._workbench.runs.get(run_id)
        before = (known and known.run_name) or ""

        def then(view: RunView) -> None:
            self._workbench.runs.update([view])
            named = f"is named {view.run_name}" if view.run_name else "has no name now"
            text = f"Run {short_id(run_id)} {named}."
            if is_undo:
                self._workbench.show_message(text, "good")
            else:
                self._workbench.offer_undo(
                    text, f"rename run {short_id(run_id)}", partial(self._rename, run_id, before, is_undo=True)
                )

        self._workbench.ask(lambda trainer: trainer.annotate_run(run_id, run_name=name), then, self)

    # --- selection

    def _on_selection_changed(self, *_: object) -> None:
        if self._model.is_updating:
            return
        self._mark_selected_rows()
        by_mouse = QGuiApplication.mouseButtons() != Qt.MouseButton.NoButton
        self._selection_timer.start(0 if by_mouse else KEY_SELECTION_DELAY_MS)

    def _selected_rows(self) -> list[int]:
        # By range: `selectedRows` calls the model many times per row, which takes a second for thousands of runs.
        ranges = self.table.selectionModel().selection().toList()
        return sorted({number for each in ranges for number in range(each.top(), each.bottom() + 1)})

    def _selected_runs(self) -> list[str]:
        return self._model.runs_in(self._selected_rows())

    def _mark_selected_rows(self) -> None:
        """Mark them at once: an action by the next key applies to the rows that are visibly selected."""
        rows = self._selected_rows()
        groups = [group for row in rows if (group := self._model.group_at(row)) is not None]
        self._is_marking = True
        self._workbench.mark(self._workbench.runs.newest_first(self._model.runs_in(rows)), groups)
        self._is_marking = False

    def _select_single_mark(self) -> None:
        if len(self._workbench.marks) == 1 and not self._workbench.marked_groups:
            self._workbench.select(self._workbench.marks[0])

    def _select_run(self, run_id: str | None) -> None:
        """Called when another part of the window selects a run."""
        rows = self._rows_of([run_id]) if run_id else []
        if not rows:
            self.table.selectionModel().clear()
            self._workbench.mark([])
        elif rows[0] not in self._selected_rows():
            self._select_rows(rows)
            self._workbench.mark([self._model.run_id(rows[0])])

    def _rows_of(self, run_ids: Iterable[str]) -> list[int]:
        """The rows of these runs; a collapsed group that holds one of them is expanded."""
        wanted = [run_id for run_id in run_ids if self._model.is_listed(run_id)]
        for run_id in wanted:
            group = self._model.group_of(run_id)
            if group is not None and not self._model.is_expanded(group):
                self._expand(group)
        return sorted(number for number in map(self._model.row_of, wanted) if number is not None)

    def _marked_rows(self) -> list[int]:
        """The rows of the marked groups, and of the marked runs that are not in them."""
        workbench, model = self._workbench, self._model
        rows = [row for row in map(model.row_of_group, workbench.marked_groups) if row is not None]
        others = [run_id for run_id in workbench.marks if model.group_of(run_id) not in workbench.marked_groups]
        return sorted((*rows, *self._rows_of(others)))

    def _on_marks_changed(self, run_ids: list[str]) -> None:
        """Show the marked runs of the workbench as selected rows."""
        self._update_count()
        if not self._is_marking and set(run_ids) != set(self._selected_runs()):
            self._select_rows(self._marked_rows())

    def _on_model_reset(self) -> None:
        """The rows have been reset: restore the selection as far as its runs are listed.

        Only a search scrolls to it: when the trainer comes back, the list stays where it was.
        """
        workbench = self._workbench
        rows = self._marked_rows()
        if not rows and workbench.selection and (row := self._model.row_of(workbench.selection)) is not None:
            rows = [row]
        self.table.fit_columns()
        self._select_rows(rows, is_scrolling=self._is_searching)

    def _select_rows(self, rows: list[int], is_scrolling: bool = True) -> None:
        selection = self.table.selectionModel()
        selected = QItemSelection()
        last = self._model.columnCount() - 1
        for number in rows:
            selected.select(self._model.index(number, 0), self._model.index(number, last))
        with QSignalBlocker(selection):
            if rows:
                selection.setCurrentIndex(self._model.index(rows[0], 0), QItemSelectionModel.SelectionFlag.NoUpdate)
            selection.select(selected, _REPLACE_SELECTION)
        if len(rows) == 1 and is_scrolling:
            self.table.scrollTo(self._model.index(rows[0], 0))
        self.table.viewport().update()

    def _open_menu(self, position: QPoint) -> None:
        if not self.table.indexAt(position).isValid():
            return
        self._selection_timer.stop()
        self._select_single_mark()
        menu = run_menu(self._workbench, "runs.menu", self)
        menu.popup(self.table.viewport().mapToGlobal(position))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self._search.hasFocus():
            self._search.clear()
            self.table.setFocus()
        elif event.key() in (Qt.Key.Key_Down, Qt.Key.Key_Return) and self._search.hasFocus():
            self.table.setFocus()
            if not self._selected_rows() and self._model.rowCount():
                self.table.selectRow(0)
        else:
            super().keyPressEvent(event)
