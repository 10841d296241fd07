"""A table of figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QGuiApplication, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QHeaderView, QTableWidget, QTableWidgetItem

from mosaic.formatting import format_si_number
from mosaic.gui.views.run_chips import DOT_SIZE
from mosaic.gui.views.widgets import with_object_name
from mosaic.statistics import ConfidenceInterval


class ReadOnlyTable(QTableWidget):
    """To be read and copied, not edited."""

    text_columns: tuple[int, ...] = (0,)
    """Columns that hold words; the others hold figures and are aligned at the right."""

    def __init__(self, name: str) -> None:
        super().__init__()
        with_object_name(self, name)
        self.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
        self.setSelectionMode(QTableWidget.SelectionMode.ContiguousSelection)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setIconSize(QSize(DOT_SIZE, DOT_SIZE))
        self.verticalHeader().hide()
        self.horizontalHeader().setHighlightSections(False)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.horizontalHeader().setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)

    def reset_rows(self, rows: int, titles: Sequence[str]) -> None:
        """The last column is empty and takes what room is left."""
        self.clearContents()
        self.setRowCount(rows)
        self.setColumnCount(len(titles) + 1)
        self.horizontalHeader().setStretchLastSection(True)
        for column, head in enumerate((*titles, "")):
            item = QTableWidgetItem(head)
            if column not in self.text_columns:
                item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            self.setHorizontalHeaderItem(column, item)

    def set_cell(self, row: int, column: int, text: str, tooltip: str = "") -> QTableWidgetItem:
        item = QTableWidgetItem(text)
        item.setToolTip(tooltip or text)
        if column not in self.text_columns:
            item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.setItem(row, column, item)
        return item

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.matches(QKeySequence.StandardKey.Copy):
            QGuiApplication.clipboard().setText(self.to_tsv())
        else:
            super().keyPressEvent(event)

    def to_tsv(self) -> str:
        """Tab-separated, with the heads: a spreadsheet takes it."""
        heads = [self.horizontalHeaderItem(column) for column in range(self.columnCount() - 1)]
        lines = ["\t".join(head.text() if head else "" for head in heads)]
        for row in range(self.rowCount()):
            items = [self.item(row, column) for column in range(self.columnCount() - 1)]
            lines.append("\t".join(item.text() if item else "" for item in items))
        return "\n".join(lines) + "\n"


def format_interval(value: ConfidenceInterval) -> str:
    """`482.1 [450.2, 500]`; without the interval where there is none."""
    if not math.isfinite(value.point):
        return "–"
    if not math.isfinite(value.low) or value.low == value.high:
        return format_si_number(value.point)
    return f"{format_si_number(value.point)}  [{format_si_number(value.low)}, {format_si_number(value.high)}]"
