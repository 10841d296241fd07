"""The list of runs: searched, sorted, marked; whatever is chosen here the rest of the window is about."""

from __future__ import annotations

from PySide6.QtCore import QItemSelection, QItemSelectionModel, QPoint, QSize, Qt, QTimer
from PySide6.QtGui import QGuiApplication, QHideEvent, QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHBoxLayout,
    QHeaderView,
    QLineEdit,
    QMenu,
    QPushButton,
    QStackedWidget,
    QTableView,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from mosaic.gui import theme
from mosaic.gui.gui_settings import GuiSettings
from mosaic.gui.models.runs_table import COLUMN_IDS, COLUMNS, RunsTableModel
from mosaic.gui.models.search import parse_query
from mosaic.gui.run_actions import RUN_ACTION_GROUPS, context_menu
from mosaic.gui.views.delegates import PADDING, ProgressDelegate, RunDelegate, StateDelegate, row_height
from mosaic.gui.views.empty_state import EmptyState
from mosaic.gui.views.widgets import accent_button, muted_label, with_object_name
from mosaic.gui.workbench import Workbench

SEARCH_MS = 120
KEY_SELECTION_DELAY_MS = 80
"""How long the arrow keys must rest before a run is selected, so that scrolling loads nothing."""
AGE_REFRESH_INTERVAL_MS = 20_000
MAX_EXTRA_ALGO_WIDTH = 120
"""What a long name of an algorithm gets of the room that is left."""
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
        self._search = with_object_name(QLineEdit(), "runs.search")
        self._search.setPlaceholderText(SEARCH_PLACEHOLDER)
        self._search.setToolTip(f"Search runs (Ctrl+F)\n{SEARCH_TIP}")
        self._search.setClearButtonEnabled(True)
        self._archived = with_object_name(QToolButton(), "runs.archived")
        self._archived.setCheckable(True)
        self._archived.setToolTip("Also show archived runs")
        self._count = muted_label("", "runs.count")
        self.table = with_object_name(RunsTableView(self._model, workbench.settings), "runs.table")
        self._stack = QStackedWidget()
        self._build()
        self._paint_icons()

        self._search_timer = QTimer(self, singleShot=True, interval=SEARCH_MS)
        self._search_timer.timeout.connect(self._apply_search)
        self._selection_timer = QTimer(self, singleShot=True)
        self._selection_timer.timeout.connect(self._publish_selection)
        self._age_timer = QTimer(self, interval=AGE_REFRESH_INTERVAL_MS)
        self._age_timer.timeout.connect(self._model.refresh_ages)
        self._search.textChanged.connect(lambda _: self._search_timer.start())
        self._archived.toggled.connect(lambda _: self._apply_search())
        self.table.selectionModel().selectionChanged.connect(self._on_selection_changed)
        self.table.customContextMenuRequested.connect(self._open_menu)
        self._model.modelReset.connect(self._restore_selection)
        self._model.count_changed.connect(self._update_count)
        workbench.selection_changed.connect(self._select_run)
        workbench.marks_changed.connect(self._select_marked)
        workbench.runs.reset.connect(self._on_runs_reset)
        workbench.theme_changed.connect(self._paint_icons)
        workbench.theme_changed.connect(self.table.apply_theme)
        self._update_count(0, 0)

    def _build(self) -> None:
        top = QHBoxLayout()
        top.setSpacing(4)
        top.addWidget(self._search, 1)
        top.addWidget(self._archived)
        start = accent_button("Train an agent", "runs.start")
        start.clicked.connect(lambda: self._workbench.form_requested.emit(None))
        clear = with_object_name(QPushButton("Show all runs"), "runs.clear")
        clear.clicked.connect(self._show_all)
        self._waiting = EmptyState(
            "Waiting for the trainer…", "It starts automatically and lists the runs of this workspace."
        )
        self._none = EmptyState("No runs yet", "Choose an algorithm and an environment; the run appears here.", start)
        self._no_match = EmptyState("No run matches the search", "Remove a word, or show all.", clear)
        for page in (self.table, self._waiting, self._none, self._no_match):
            self._stack.addWidget(page)
        column = QVBoxLayout(self)
        column.setContentsMargins(theme.MARGIN, 4, 0, 4)
        column.setSpacing(4)
        column.addLayout(top)
        column.addWidget(self._stack, 1)
        column.addWidget(self._count)
        self.setMinimumWidth(240)

    def sizeHint(self) -> QSize:
        return QSize(440, 480)

    def _paint_icons(self) -> None:
        self._archived.setIcon(theme.icon("mdi6.archive-outline"))

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
        self._update_count(self._model.rowCount(), len(self._workbench.runs))

    def _update_count(self, shown: int, known: int) -> None:
        self._count.setText(f"{known:,} runs" if shown == known else f"{shown:,} of {known:,} runs")
        self._count.setVisible(known > 0)
        page: QWidget = self.table
        if not shown:
            page = self._no_match if known else self._none if self._has_run_list else self._waiting
        self._stack.setCurrentWidget(page)

    # --- what is chosen

    def _on_selection_changed(self, *_: object) -> None:
        if self._model.is_updating:
            return
        by_mouse = QGuiApplication.mouseButtons() != Qt.MouseButton.NoButton
        self._selection_timer.start(0 if by_mouse else KEY_SELECTION_DELAY_MS)

    def _selected_rows(self) -> list[int]:
        return sorted(index.row() for index in self.table.selectionModel().selectedRows())

    def _publish_selection(self) -> None:
        """Publish the selection: one run is selected, several are marked."""
        ids = [self._model.run_id(row) for row in self._selected_rows()]
        self._workbench.mark(sorted(ids, reverse=True))
        if len(ids) == 1:
            self._workbench.select(ids[0])

    def _select_run(self, run_id: str | None) -> None:
        """Another part of the window looks at this run."""
        row = self._model.row_of(run_id) if run_id else None
        selection = self.table.selectionModel()
        if row is None:
            selection.clear()
            self._workbench.mark([])
            return
        if row in self._selected_rows():
            return
        self._select_rows([row])
        self._workbench.mark([self._model.run_id(row)])

    def _select_marked(self, run_ids: list[str]) -> None:
        """Show the marked runs of the workbench as marked rows."""
        rows = sorted(row for row in map(self._model.row_of, run_ids) if row is not None)
        if rows != self._selected_rows():
            self._select_rows(rows)

    def _restore_selection(self) -> None:
        """The rows have been reset: restore the selection as far as its runs are listed."""
        rows = [row for row in map(self._model.row_of, self._workbench.marks) if row is not None]
        current = self._workbench.selection and self._model.row_of(self._workbench.selection)
        self._select_rows(rows or ([current] if isinstance(current, int) else []))

    def _select_rows(self, rows: list[int]) -> None:
        selection = self.table.selectionModel()
        selection.blockSignals(True)
        wanted = QItemSelection()
        for row in rows:
            wanted.select(self._model.index(row, 0), self._model.index(row, len(COLUMNS) - 1))
        if rows:
            selection.setCurrentIndex(self._model.index(rows[0], 0), QItemSelectionModel.SelectionFlag.NoUpdate)
        selection.select(wanted, _REPLACE_SELECTION)
        selection.blockSignals(False)
        if len(rows) == 1:
            self.table.scrollTo(self._model.index(rows[0], 0))
        self.table.viewport().update()

    def _open_menu(self, position: QPoint) -> None:
        if not self.table.indexAt(position).isValid():
            return
        self._selection_timer.stop()
        self._publish_selection()
        menu = context_menu(self._workbench, RUN_ACTION_GROUPS, self)
        menu.setObjectName("runs.menu")
        menu.popup(self.table.viewport().mapToGlobal(position))

    # --- Qt's calls

    def showEvent(self, event: QShowEvent) -> None:
        self._age_timer.start()
        super().showEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        self._age_timer.stop()
        super().hideEvent(event)

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


class RunsTableView(QTableView):
    """As many columns as there is room for, of those that the user wants."""

    def __init__(self, model: RunsTableModel, settings: GuiSettings) -> None:
        super().__init__()
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
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setTabKeyNavigation(False)
        self.verticalHeader().hide()
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self._set_row_height()
        self.setModel(model)
        self._apply_settings()

    def _set_row_height(self) -> None:
        self.verticalHeader().setMinimumSectionSize(row_height())
        self.verticalHeader().setDefaultSectionSize(row_height())

    def apply_theme(self) -> None:
        """The text may be larger now."""
        self._set_row_height()
        self.fit_columns()

    def _apply_settings(self) -> None:
        """Widths, order, and what the header can do."""
        header = self.horizontalHeader()
        header.setHighlightSections(False)
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
        for number, column in enumerate(COLUMNS):
            width = self._width(number)
            is_wanted = column.id not in self._hidden
            is_shown = is_wanted and (number == 0 or left >= width)
            self.setColumnHidden(number, not is_shown)
            if is_wanted:
                left = left - width if is_shown else 0  # what comes behind one that has no room has none either
            if is_shown and column.id != "env":
                self.setColumnWidth(number, width)
        if left > 0 and "algo" not in self._widths:
            number = COLUMN_IDS.index("algo")
            self.setColumnWidth(number, self._width(number) + min(left // 2, MAX_EXTRA_ALGO_WIDTH))
        self._is_fitting = False

    def _width(self, number: int) -> int:
        column = COLUMNS[number]
        if column.id in self._widths and column.id != "env":
            return int(self._widths[column.id])
        measure = self.fontMetrics().horizontalAdvance
        delegate = self._delegates.get(column.id)
        beside = delegate.EXTRA_WIDTH if delegate is not None else RunDelegate.EXTRA_WIDTH
        return max(measure(column.width_sample) + beside + 2, measure(column.title) + 2 * PADDING)

    def _open_header_menu(self, position: QPoint) -> None:
        menu = with_object_name(QMenu(self), "runs.columns")
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        for number, column in enumerate(COLUMNS[1:], start=1):
            is_wanted = column.id not in self._hidden
            has_no_room = is_wanted and self.isColumnHidden(number)
            action = menu.addAction(f"{column.title} (widen the list to see it)" if has_no_room else column.title)
            action.setCheckable(True)
            action.setChecked(is_wanted)
            action.toggled.connect(lambda is_on, column_id=column.id: self._set_column_visible(column_id, is_on))
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
