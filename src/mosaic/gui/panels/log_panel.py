"""What happens, as it happens: the events of all runs, to read along and to filter."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QSize, Qt, QTimer
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QHBoxLayout,
    QHeaderView,
    QLineEdit,
    QTableView,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from mosaic.gui import theme
from mosaic.gui.models.event_log import EventFilter
from mosaic.gui.views.delegates import CellDelegate, row_height
from mosaic.gui.views.widgets import with_object_name
from mosaic.gui.workbench import Workbench

SEARCH_MS = 150
ALL_KINDS = "All kinds"
SAMPLES = ("23:59:59", "ABC123", "trainer_connected")


class LogPanel(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._model = EventFilter(workbench.events, self)
        self._search = with_object_name(QLineEdit(), "log.search")
        self._kind = with_object_name(QComboBox(), "log.kind")
        self._only_selected_run = with_object_name(QToolButton(), "log.only")
        self._table = with_object_name(QTableView(), "log.table")
        self._is_at_end = True
        self._build()
        self._apply_theme()
        self._list_kinds()
        self._search_timer = QTimer(self, singleShot=True, interval=SEARCH_MS)
        self._search_timer.timeout.connect(self._apply_filter)
        self._search.textChanged.connect(lambda _: self._search_timer.start())
        self._kind.currentIndexChanged.connect(lambda _: self._apply_filter())
        self._only_selected_run.toggled.connect(lambda _: self._apply_filter())
        self._table.doubleClicked.connect(self._open_run)
        self._table.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        self._table.verticalScrollBar().rangeChanged.connect(lambda *_: self._scroll_to_end_if_following())
        workbench.events.kinds_changed.connect(self._list_kinds)
        workbench.selection_changed.connect(lambda _: self._apply_filter())
        workbench.theme_changed.connect(self._apply_theme)

    def _build(self) -> None:
        self._search.setPlaceholderText("Filter events")
        self._search.setClearButtonEnabled(True)
        self._kind.setToolTip("Only events of this kind")
        self._only_selected_run.setCheckable(True)
        self._only_selected_run.setToolTip("Only events of the selected run")
        row = QHBoxLayout()
        row.setSpacing(4)
        row.addWidget(self._search, 1)
        row.addWidget(self._kind)
        row.addWidget(self._only_selected_run)
        table = self._table
        table.setModel(self._model)
        table.setItemDelegate(CellDelegate(table))
        table.setShowGrid(False)
        table.setWordWrap(False)
        table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        table.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        table.setTabKeyNavigation(False)
        rows = table.verticalHeader()
        rows.hide()
        rows.setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        header = table.horizontalHeader()
        header.setHighlightSections(False)
        header.setStretchLastSection(True)
        for number, sample in enumerate(SAMPLES):
            width = self.fontMetrics().horizontalAdvance(sample) + CellDelegate.EXTRA_WIDTH + 4
            table.setColumnWidth(number, width)
        column = QVBoxLayout(self)
        column.setContentsMargins(theme.MARGIN, 4, theme.MARGIN, theme.GAP)
        column.setSpacing(4)
        column.addLayout(row)
        column.addWidget(table, 1)

    def _apply_theme(self) -> None:
        self._only_selected_run.setIcon(theme.icon("mdi6.filter-outline"))
        self._table.verticalHeader().setMinimumSectionSize(row_height())
        self._table.verticalHeader().setDefaultSectionSize(row_height())

    def sizeHint(self) -> QSize:
        return QSize(560, 150)

    def start_search(self) -> None:
        self._search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self._search.selectAll()

    def _list_kinds(self) -> None:
        chosen = self._kind.currentText()
        self._kind.blockSignals(True)
        self._kind.clear()
        self._kind.addItems([ALL_KINDS, *sorted(self._workbench.events.kinds)])
        self._kind.setCurrentText(chosen or ALL_KINDS)
        self._kind.blockSignals(False)

    def _apply_filter(self) -> None:
        kind = self._kind.currentText()
        run_id = (self._workbench.selection or "") if self._only_selected_run.isChecked() else ""
        self._model.filter(self._search.text(), "" if kind == ALL_KINDS else kind, run_id)
        self._scroll_to_end_if_following()

    def _open_run(self, index: QModelIndex) -> None:
        run_id = self._model.line(index.row()).run_id
        if self._workbench.runs.get(run_id) is not None:
            self._workbench.select(run_id)

    def _on_scrolled(self, value: int) -> None:
        self._is_at_end = value >= self._table.verticalScrollBar().maximum() - row_height()

    def _scroll_to_end_if_following(self) -> None:
        if self._is_at_end:
            self._table.scrollToBottom()
