"""The tables of the compare page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QColor, QGuiApplication, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QHeaderView, QTableWidget, QTableWidgetItem

from mosaic.gui.views.made import named
from mosaic.gui.views.run_chips import DOT, dot_icon
from mosaic.gui.views.words import number, run_title
from mosaic.gui.workbench import Json
from mosaic.statistics import Interval
from mosaic.statistics.comparison import Comparison, without_common, words


class _Table(QTableWidget):
    """To be read and copied, not edited."""

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

    def _begin(self, rows: int, heads: Sequence[str]) -> None:
        """The last column is empty and takes what room is left."""
        self.clearContents()
        self.setRowCount(rows)
        self.setColumnCount(len(heads) + 1)
        self.horizontalHeader().setStretchLastSection(True)
        for column, head in enumerate((*heads, "")):
            item = QTableWidgetItem(head)
            if column:
                item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            self.setHorizontalHeaderItem(column, item)

    def _put(self, row: int, column: int, text: str, tip: str = "") -> QTableWidgetItem:
        item = QTableWidgetItem(text)
        item.setToolTip(tip or text)
        if column:
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


class ResultsTable(_Table):
    def __init__(self) -> None:
        super().__init__("compare.results")

    def fill(self, found: Comparison, colours: Mapping[str, QColor]) -> None:
        scaled = ", scaled" if found.is_scaled else ""
        self._begin(len(found.groups), ("Group", "Runs", "Mean [95 %]", f"IQM{scaled} [95 %]"))
        tips = (
            "",
            "",
            "Mean over the runs of the mean return of their last 100 episodes, with Student's interval",
            "Interquartile mean of the same, with a stratified bootstrap interval"
            + (", scaled to 0…1 within each environment" if found.is_scaled else ""),
        )
        for column, tip in enumerate(tips):
            head = self.horizontalHeaderItem(column)
            if head is not None:
                head.setToolTip(tip)
        for row, group in enumerate(found.groups):
            self._put(row, 0, group.name).setIcon(dot_icon(colours[group.name]))
            self._put(row, 1, str(len(group.run_ids)))
            self._put(row, 2, interval_words(group.final))
            self._put(row, 3, interval_words(group.iqm))


class BetterTable(_Table):
    """Rows against columns."""

    def __init__(self) -> None:
        super().__init__("compare.better")

    def fill(self, found: Comparison) -> None:
        names = [group.name for group in found.groups]
        if not found.better:
            self._begin(0, ("Group runs by a setting to see how likely one group is better than another.",))
            return
        self._begin(len(names), ("P(row returns more than column)", *names))
        for row, one in enumerate(names):
            self._put(row, 0, one)
            for column, other in enumerate(names, 1):
                value = found.better.get((one, other))
                text = "–" if value is None else f"{value.point:.2f}  [{value.low:.2f}, {value.high:.2f}]"
                self._put(row, column, text)


class SettingsTable(_Table):
    def __init__(self) -> None:
        super().__init__("compare.settings")

    def fill(self, rows: Mapping[str, Sequence[Any]], views: Sequence[Json]) -> None:
        if not rows:
            text = "All settings are the same." if len(views) > 1 else "Add a second run to see what differs."
            self._begin(0, (text,))
            return
        titles = [run_title(view) for view in views]
        short = without_common(titles)
        self._begin(len(rows), ("Setting", *(short[title] for title in titles)))
        for row, (name, values) in enumerate(rows.items()):
            self._put(row, 0, name)
            for column, value in enumerate(values, 1):
                self._put(row, column, words(value))
