"""A table of figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QGuiApplication, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QHeaderView, QTableWidget, QTableWidgetItem

from mosaic.gui.views.made import named
from mosaic.gui.views.run_chips import DOT
from mosaic.gui.views.words import number
from mosaic.statistics import Interval


class ReadTable(QTableWidget):
    """To be read and copied, not edited."""

    words: tuple[int, ...] = (0,)
    """Columns that hold words; the others hold figures and are aligned at the right."""

    def __init__(self, name: str) -> None:
        super().__init__()
        named(self, name)
        self.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
        self.setSelectionMode(QTableWidget.SelectionMode.ContiguousSelection)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setIconSize(QSize(DOT, DOT))
        self.verticalHeader().hide()
        self.horizontalHeader().setHighlightSections(False)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.horizontalHeader().setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)

    def begin(self, rows: int, heads: Sequence[str]) -> None:
        """The last column is empty and takes what room is left."""
        self.clearContents()
        self.setRowCount(rows)
        self.setColumnCount(len(heads) + 1)
        self.horizontalHeader().setStretchLastSection(True)
        for column, head in enumerate((*heads, "")):
            item = QTableWidgetItem(head)
            if column not in self.words:
                item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            self.setHorizontalHeaderItem(column, item)

    def put(self, row: int, column: int, text: str, tip: str = "") -> QTableWidgetItem:
        item = QTableWidgetItem(text)
        item.setToolTip(tip or text)
        if column not in self.words:
            item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.setItem(row, column, item)
        return item

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.matches(QKeySequence.StandardKey.Copy):
            QGuiApplication.clipboard().setText(self.as_text())
        else:
            super().keyPressEvent(event)

    def as_text(self) -> str:
        """Tab-separated, with the heads: a spreadsheet takes it."""
        heads = [self.horizontalHeaderItem(column) for column in range(self.columnCount() - 1)]
        lines = ["\t".join(head.text() if head else "" for head in heads)]
        for row in range(self.rowCount()):
            items = [self.item(row, column) for column in range(self.columnCount() - 1)]
            lines.append("\t".join(item.text() if item else "" for item in items))
        return "\n".join(lines) + "\n"


def interval_words(value: Interval) -> str:
    """`482.1 [450.2, 500]`; without the interval where there is none."""
    if not math.isfinite(value.point):
        return "–"
    if not math.isfinite(value.low) or value.low == value.high:
        return number(value.point)
    return f"{number(value.point)}  [{number(value.low)}, {number(value.high)}]"
