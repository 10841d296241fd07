"""The Log dock: the events of all runs as they arrive, with filters."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QSignalBlocker, QSize, Qt
from PySide6.QtWidgets import QWidget

from mosaic.gui import theme
from mosaic.gui.models.event_log import EventFilter
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.delegates import CellDelegate, RowTable, row_height
from mosaic.gui.workbench import Workbench

SEARCH_MS = 150
ALL_KINDS = "All kinds"
SAMPLES = ("23:59:59", "ABC123", "trainer_connected")


class LogPanel(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._model = EventFilter(workbench.events, self)
        self._search = ui.search_field("log.search", "Filter events")
        self._kind = ui.combo_box("log.kind", tip="Only events of this kind")
        self._only_selected_run = ui.tool_button(
            "log.only", "mdi6.filter-outline", "Only events of the selected run", is_flat=False, is_checkable=True
        )
        self._table = RowTable(self._model, "log.table")
        self._table.setItemDelegate(CellDelegate(self._table))
        self._table.horizontalHeader().setStretchLastSection(True)
        for number, sample in enumerate(SAMPLES):
            width = self.fontMetrics().horizontalAdvance(sample) + CellDelegate.EXTRA_WIDTH + 4
            self._table.setColumnWidth(number, width)
        self._is_at_end = True
        ui.column(
            ui.row((self._search, 1), self._kind, self._only_selected_run, spacing=4),
            (self._table, 1),
            parent=self,
            margins=(theme.MARGIN, 4, theme.MARGIN, theme.GAP),
            spacing=4,
        )
        self._list_kinds()
        self._search_timer = ui.create_timer(self, SEARCH_MS, self._apply_filter, is_single_shot=True)
        self._search.textChanged.connect(lambda _: self._search_timer.start())
        self._kind.currentIndexChanged.connect(lambda _: self._apply_filter())
        self._only_selected_run.toggled.connect(lambda _: self._apply_filter())
        self._table.doubleClicked.connect(self._open_run)
        self._table.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        self._table.verticalScrollBar().rangeChanged.connect(lambda *_: self._scroll_to_end_if_following())
        workbench.events.kinds_changed.connect(self._list_kinds)
        workbench.selection_changed.connect(lambda _: self._apply_filter())

    def sizeHint(self) -> QSize:
        return QSize(560, 150)

    def start_search(self) -> None:
        self._search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self._search.selectAll()

    def _list_kinds(self) -> None:
        selected = self._kind.currentText()
        with QSignalBlocker(self._kind):
            self._kind.clear()
            self._kind.addItems([ALL_KINDS, *sorted(self._workbench.events.kinds)])
            self._kind.setCurrentText(selected or ALL_KINDS)

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
