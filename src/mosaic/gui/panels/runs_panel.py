"""The list of runs: search, sorting, marks, and the selection that the rest of the window shows."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QItemSelection, QItemSelectionModel, QPoint, QSignalBlocker, QSize, Qt
from PySide6.QtGui import QGuiApplication, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QHeaderView, QMenu, QTableView, QWidget

from mosaic.gui import theme
from mosaic.gui.actions import run_menu
from mosaic.gui.gui_settings import GuiSettings
from mosaic.gui.models.runs_table import COLUMN_IDS, COLUMNS, RunsTableModel
from mosaic.gui.models.search import parse_query
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.delegates import PADDING, ProgressDelegate, RowTable, RunDelegate, StateDelegate
from mosaic.gui.workbench import Workbench

SEARCH_MS = 120
KEY_SELECTION_DELAY_MS = 80
"""Time after the last arrow key until a run is shown, so that scrolling loads nothing."""
AGE_REFRESH_INTERVAL_MS = 20_000
MAX_EXTRA_ALGO_WIDTH = 120
"""The part of the free width that a long name of an algorithm gets."""
SEARCH_PLACEHOLDER = "Search: words, algo:ppo env:CartPole tag:x status:failed"
SEARCH_TIP = (
    "Words, or algo: env: tag: status: group: seed: id: note:\n"
    "status:failed,lost takes either, -tag:old leaves out, seed:1-5 is a span"
)
_ROWS = QItemSelectionModel.SelectionFlag.Rows
_REPLACE_SELECTION = QItemSelectionModel.SelectionFlag.ClearAndSelect | _ROWS


class RunsPanel(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._model = RunsTableModel(workbench.runs, self)
        self._has_run_list = False
        self._search = ui.search_field("runs.search", SEARCH_PLACEHOLDER, f"Search runs (Ctrl+F)\n{SEARCH_TIP}")
        self._archived = ui.tool_button(
            "runs.archived", "mdi6.archive-outline", "Also show archived runs", is_flat=False, is_checkable=True
        )
        self._count = ui.muted_label("", "runs.count")
        self.table = RunsTableView(self._model, workbench.settings)
        start = ui.accent_button("Train an agent", "runs.start", lambda: workbench.form_requested.emit(None))
        clear = ui.button("Show all runs", "runs.clear", self._show_all)
        self._waiting = ui.EmptyState(
            "Waiting for the trainer…", "It starts automatically and lists the runs of this workspace."
        )
        self._none = ui.EmptyState(
            "No runs yet", "Choose an algorithm and an environment; the run appears here.", start
        )
        self._no_match = ui.EmptyState("No run matches the search", "Remove a word, or show all.", clear)
        self._stack = ui.stack(self.table, self._waiting, self._none, self._no_match)
        ui.column(
            ui.row((self._search, 1), self._archived, spacing=4),
            (self._stack, 1),
            self._count,
            parent=self,
            margins=(theme.MARGIN, 4, 0, 4),
            spacing=4,
        )
        self.setMinimumWidth(240)

        self._search_timer = ui.create_timer(self, SEARCH_MS, self._apply_search, is_single_shot=True)
        self._selection_timer = ui.create_timer(self, 0, self._select_single_mark, is_single_shot=True)
        ui.VisibleTimer(self, AGE_REFRESH_INTERVAL_MS, self._model.refresh_ages)
        self._search.textChanged.connect(lambda _: self._search_timer.start())
        self._archived.toggled.connect(lambda _: self._apply_search())
        self.table.selectionModel().selectionChanged.connect(self._on_selection_changed)
        self.table.customContextMenuRequested.connect(self._open_menu)
        self._model.modelReset.connect(self._restore_selection)
        self._model.count_changed.connect(self._on_count_changed)
        workbench.selection_changed.connect(self._select_run)
        workbench.marks_changed.connect(self._on_marks_changed)
        workbench.runs.reset.connect(self._on_runs_reset)
        self._update_count()

    def sizeHint(self) -> QSize:
        return QSize(440, 480)

    # --- what is shown

    def start_search(self) -> None:
        self._search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self._search.selectAll()

    def _apply_search(self) -> None:
        self._model.set_query(parse_query(self._search.text()), self._archived.isChecked())

    def _show_all(self) -> None:
        self._search.clear()
        self._archived.setChecked(True)

    def _on_runs_reset(self) -> None:
        self._has_run_list = True
        self._update_count()

    def _on_count_changed(self, *_: object) -> None:
        """Unmark runs that have left the list, so that actions apply to what is visible."""
        listed = [run_id for run_id in self._workbench.marks if self._model.is_listed(run_id)]
        if len(listed) < len(self._workbench.marks):
            self._workbench.mark(listed)
        self._update_count()

    def _update_count(self) -> None:
        shown, known, marked = self._model.rowCount(), len(self._workbench.runs), len(self._workbench.marks)
        count = f"{known:,} run{'s' * (known != 1)}"
        selected = f", {marked:,} selected" if marked > 1 else ""
        self._count.setText((count if shown == known else f"{shown:,} of {count}") + selected)
        self._count.setVisible(known > 0)
        page: QWidget = self.table
        if not shown:
            page = self._no_match if known else self._none if self._has_run_list else self._waiting
        self._stack.setCurrentWidget(page)

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

    def _mark_selected_rows(self) -> None:
        """Mark them at once: an action by the next key applies to the rows that are visibly selected."""
        ids = [self._model.run_id(number) for number in self._selected_rows()]
        self._workbench.mark(sorted(ids, reverse=True))

    def _select_single_mark(self) -> None:
        if len(self._workbench.marks) == 1:
            self._workbench.select(self._workbench.marks[0])

    def _select_run(self, run_id: str | None) -> None:
        """Called when another part of the window selects a run."""
        number = self._model.row_of(run_id) if run_id else None
        if number is None:
            self.table.selectionModel().clear()
            self._workbench.mark([])
        elif number not in self._selected_rows():
            self._select_rows([number])
            self._workbench.mark([self._model.run_id(number)])

    def _on_marks_changed(self, run_ids: list[str]) -> None:
        """Show the marked runs of the workbench as selected rows."""
        self._update_count()
        rows = sorted(number for number in map(self._model.row_of, run_ids) if number is not None)
        if rows != self._selected_rows():
            self._select_rows(rows)

    def _restore_selection(self) -> None:
        """The rows have been reset: restore the selection as far as its runs are listed."""
        workbench = self._workbench
        run_ids = [run_id for run_id in workbench.marks if self._model.row_of(run_id) is not None]
        rows = map(self._model.row_of, run_ids or [workbench.selection or ""])
        self._select_rows([number for number in rows if number is not None])

    def _select_rows(self, rows: list[int]) -> None:
        selection = self.table.selectionModel()
        selected = QItemSelection()
        for number in rows:
            selected.select(self._model.index(number, 0), self._model.index(number, len(COLUMNS) - 1))
        with QSignalBlocker(selection):
            if rows:
                selection.setCurrentIndex(self._model.index(rows[0], 0), QItemSelectionModel.SelectionFlag.NoUpdate)
            selection.select(selected, _REPLACE_SELECTION)
        if len(rows) == 1:
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


class RunsTableView(RowTable):
    """As many columns as there is room for, of those that the user wants."""

    def __init__(self, model: RunsTableModel, settings: GuiSettings) -> None:
        super().__init__(model, "runs.table")
        self._settings = settings
        self._hidden: set[str] = set(settings.get("runs.hidden", []))
        self._widths: dict[str, int] = settings.get("runs.widths", {})
        self._is_fitting = False
        self._delegates: dict[str, RunDelegate] = {
            "state": StateDelegate(model, self),
            "progress": ProgressDelegate(model, self),
        }
        self.setItemDelegate(RunDelegate(model, self))
        for name, delegate in self._delegates.items():
            self.setItemDelegateForColumn(COLUMN_IDS.index(name), delegate)
        self.setSelectionMode(QTableView.SelectionMode.ExtendedSelection)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._apply_settings()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self.fit_columns()

    def _apply_settings(self) -> None:
        """Sets up the widths, the order and the header."""
        header = self.horizontalHeader()
        header.setMinimumSectionSize(32)
        header.setSectionsMovable(False)
        header.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        header.customContextMenuRequested.connect(self._open_header_menu)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setSectionResizeMode(COLUMN_IDS.index("env"), QHeaderView.ResizeMode.Stretch)
        column, is_descending = self._settings.get("runs.sort", ["age", False])
        if column not in COLUMN_IDS:
            column = "age"
        order = Qt.SortOrder.DescendingOrder if is_descending else Qt.SortOrder.AscendingOrder
        header.setSortIndicator(COLUMN_IDS.index(column), order)
        self.setSortingEnabled(True)
        header.sortIndicatorChanged.connect(self._on_sort_changed)
        header.sectionResized.connect(self._on_column_resized)
        self.fit_columns()

    def fit_columns(self) -> None:
        """Shows the wanted columns, the first ones first, as far as they have room."""
        self._is_fitting = True
        left = self.viewport().width()
        for number, spec in enumerate(COLUMNS):
            width = self._width(number)
            is_wanted = spec.id not in self._hidden
            is_shown = is_wanted and (number == 0 or left >= width)
            self.setColumnHidden(number, not is_shown)
            if is_wanted:
                left = left - width if is_shown else 0  # columns after one that has no room have none either
            if is_shown and spec.id != "env":
                self.setColumnWidth(number, width)
        if left > 0 and "algo" not in self._widths:
            number = COLUMN_IDS.index("algo")
            self.setColumnWidth(number, self._width(number) + min(left // 2, MAX_EXTRA_ALGO_WIDTH))
        self._is_fitting = False

    def _width(self, number: int) -> int:
        spec = COLUMNS[number]
        if spec.id in self._widths and spec.id != "env":
            return int(self._widths[spec.id])
        measure = self.fontMetrics().horizontalAdvance
        delegate = self._delegates.get(spec.id)
        extra = delegate.EXTRA_WIDTH if delegate is not None else RunDelegate.EXTRA_WIDTH
        return max(measure(spec.width_sample) + extra + 2, measure(spec.title) + 2 * PADDING)

    def _open_header_menu(self, position: QPoint) -> None:
        menu = ui.with_object_name(QMenu(self), "runs.columns")
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        for number, spec in enumerate(COLUMNS[1:], start=1):
            is_wanted = spec.id not in self._hidden
            has_no_room = is_wanted and self.isColumnHidden(number)
            action = menu.addAction(f"{spec.title} (widen the list to see it)" if has_no_room else spec.title)
            action.setCheckable(True)
            action.setChecked(is_wanted)
            action.toggled.connect(lambda is_on, column_id=spec.id: self._set_column_visible(column_id, is_on))
        menu.addSeparator()
        menu.addAction("Reset columns").triggered.connect(self._reset_columns)
        menu.popup(self.horizontalHeader().mapToGlobal(position))

    def _set_column_visible(self, column_id: str, is_visible: bool) -> None:
        (self._hidden.discard if is_visible else self._hidden.add)(column_id)
        self._settings.put("runs.hidden", sorted(self._hidden))
        self.fit_columns()

    def _reset_columns(self) -> None:
        self._hidden.clear()
        self._widths.clear()
        self._settings.put("runs.hidden", [])
        self._settings.put("runs.widths", {})
        self.fit_columns()

    def _on_sort_changed(self, column: int, order: Qt.SortOrder) -> None:
        self._settings.put("runs.sort", [COLUMN_IDS[column], order is Qt.SortOrder.DescendingOrder])

    def _on_column_resized(self, column: int, _: int, width: int) -> None:
        if not self._is_fitting and COLUMN_IDS[column] != "env" and width > 0:
            self._widths[COLUMN_IDS[column]] = width
            self._settings.put("runs.widths", self._widths)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.fit_columns()
        super().resizeEvent(event)
