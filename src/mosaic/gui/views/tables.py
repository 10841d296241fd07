"""Tables of figures, to be read and copied: the basic one, and what those of a comparison show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QColor, QGuiApplication, QIcon, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QHeaderView, QTableWidget, QTableWidgetItem

from mosaic.contracts.printable import csv_text
from mosaic.contracts.views import RunView
from mosaic.formatting import format_si_number, run_title
from mosaic.gui.models.run_comparison import MAX_DISTINCT
from mosaic.gui.views.widgets import DOT_SIZE, dot_icon, plain_table
from mosaic.statistics.comparison import Comparison, format_value, strip_common_parts
from mosaic.statistics.curves import ConfidenceInterval

STATE_ICON_SIZE = 14
MIN_ROWS = 6
"""Rows of a comparison's tables that are visible in the smallest window."""


class Cell(NamedTuple):
    text: str
    tooltip: str = ""
    """Empty: the text."""
    icon: QIcon | None = None


@lru_cache(maxsize=64)
def color_icon(name: str) -> QIcon:
    """A dot of this color. One for each, so that cells with the same icon are equal."""
    return dot_icon(QColor(name))


class ReadOnlyTable(QTableWidget):
    def __init__(self, name: str, text_columns: Sequence[int] = (0,), min_rows: int = 0) -> None:
        """`text_columns` hold words; the others hold figures and are right-aligned. `min_rows` are always visible."""
        super().__init__()
        self._min_rows = min_rows
        plain_table(self, name)
        self._text_columns = text_columns
        self.setSelectionBehavior(QTableWidget.SelectionBehavior.SelectItems)
        self.setSelectionMode(QTableWidget.SelectionMode.ContiguousSelection)
        self.setWordWrap(False)
        self.setIconSize(QSize(DOT_SIZE, DOT_SIZE))
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.horizontalHeader().setStretchLastSection(True)

    def minimumSizeHint(self) -> QSize:
        """Also room for the horizontal scroll bar, which would cover a row."""
        if not self._min_rows:
            return super().minimumSizeHint()
        rows = self._min_rows * self.verticalHeader().defaultSectionSize()
        others = self.horizontalHeader().sizeHint().height() + self.horizontalScrollBar().sizeHint().height()
        return QSize(super().minimumSizeHint().width(), rows + others + 2 * self.frameWidth())

    def show_rows(self, titles: Sequence[str | Cell], rows: Sequence[Sequence[str | Cell]]) -> None:
        """Replace the contents. A last, empty column takes the space that is left."""
        self.clearContents()
        self.setRowCount(len(rows))
        self.setColumnCount(len(titles) + 1)
        for column, title in enumerate((*titles, "")):
            self.setHorizontalHeaderItem(column, self._create_item(column, title))
        for number, row in enumerate(rows):
            for column, cell in enumerate(row):
                self.setItem(number, column, self._create_item(column, cell))

    def _create_item(self, column: int, cell: str | Cell) -> QTableWidgetItem:
        text, tooltip, icon = (cell, "", None) if isinstance(cell, str) else cell
        item = QTableWidgetItem(text)
        item.setToolTip(tooltip or text)
        if icon is not None:
            item.setIcon(icon)
        if column not in self._text_columns:
            item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        return item

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.matches(QKeySequence.StandardKey.Copy):
            QGuiApplication.clipboard().setText(self.to_tsv())
        else:
            super().keyPressEvent(event)

    def to_tsv(self) -> str:
        """Return all rows and the column titles, separated by tabs as spreadsheets expect."""
        columns = range(self.columnCount() - 1)
        lines = [[self.horizontalHeaderItem(column) for column in columns]]
        lines += [[self.item(row, column) for column in columns] for row in range(self.rowCount())]
        return "".join("\t".join(csv_text(item.text()) if item else "" for item in line) + "\n" for line in lines)


def format_interval(value: ConfidenceInterval) -> str:
    """`482.1 [450.2, 500]`; without the interval where there is none."""
    if not math.isfinite(value.point):
        return "–"
    if not math.isfinite(value.low) or value.low == value.high:
        return format_si_number(value.point)
    return f"{format_si_number(value.point)}  [{format_si_number(value.low)}, {format_si_number(value.high)}]"


# --- the tables of the compare page


def show_results(table: ReadOnlyTable, comparison: Comparison, colors: Mapping[str, QColor]) -> None:
    scaled, how = (", scaled", ", scaled to 0…1 within each environment") if comparison.is_normalized else ("", "")
    titles = (
        "Group",
        "Runs",
        Cell(
            "Mean [95 %]",
            "Mean over the runs of the mean return of their last 100 episodes, with Student's interval",
        ),
        Cell(f"IQM{scaled} [95 %]", f"Interquartile mean of the same, with a stratified bootstrap interval{how}"),
    )
    rows = [
        (
            Cell(group.name, icon=color_icon(colors[group.name].name())),
            str(len(group.run_ids)),
            format_interval(group.final_return),
            format_interval(group.iqm),
        )
        for group in comparison.groups
    ]
    table.show_rows(titles, rows)


def show_probabilities(table: ReadOnlyTable, comparison: Comparison) -> None:
    """Show how likely the group of a row is better than that of a column."""
    if not comparison.improvement_probability:
        text = f"Group runs by a setting with at most {MAX_DISTINCT} values to see how likely one group is better."
        table.show_rows((text,), ())
        return

    def probability(one: str, other: str) -> str:
        value = comparison.improvement_probability.get((one, other))
        if value is None:
            return "–"
        interval = f"  [{value.low:.2f}, {value.high:.2f}]" if math.isfinite(value.low) else ""
        return f"{value.point:.2f}{interval}"

    names = [group.name for group in comparison.groups]
    rows = [(one, *(probability(one, other) for other in names)) for one in names]
    table.show_rows(("P(row returns more than column)", *names), rows)


def show_settings(table: ReadOnlyTable, settings: Mapping[str, Sequence[Any]], views: Sequence[RunView]) -> None:
    """Show the differing settings: a row for each and a column for each run; the other way round for many runs."""
    if not settings:
        text = "All settings are the same." if len(views) > 1 else "Add a second run to see what differs."
        table.show_rows((text,), ())
        return
    titles = [run_title(view) for view in views]
    short = strip_common_parts(titles)
    if len(views) > MAX_DISTINCT:
        columns = zip(*settings.values(), strict=True)
        rows = [(short[title], *map(format_value, values)) for title, values in zip(titles, columns, strict=True)]
        table.show_rows(("Run", *settings), rows)
        return
    rows = [(name, *(format_value(value) for value in values)) for name, values in settings.items()]
    table.show_rows(("Setting", *(short[title] for title in titles)), rows)


class RowsTable(ReadOnlyTable):
    """A list whose rows can be opened; new contents keep the selection and the place in the list."""

    opened = Signal(int)
    """The row that was double-clicked, or selected when Return was pressed."""

    def __init__(
        self, name: str, text_columns: Sequence[int] = (0,), elided_column: int | None = None, min_rows: int = 0
    ) -> None:
        """`elided_column` takes the space that is left, and no more."""
        super().__init__(name, text_columns, min_rows)
        self._elided_column = elided_column
        self.horizontalHeader().setStretchLastSection(elided_column is None)
        self.setSelectionBehavior(QTableWidget.SelectionBehavior.SelectRows)
        self.setSelectionMode(QTableWidget.SelectionMode.SingleSelection)
        self.doubleClicked.connect(lambda index: self.opened.emit(index.row()))
        self._shown: tuple[list[str | Cell], list[list[str | Cell]]] = ([], [])

    def show_rows(self, titles: Sequence[str | Cell], rows: Sequence[Sequence[str | Cell]]) -> None:
        """Replace the contents; where only cells differ, only these."""
        shown = list(titles), [list(row) for row in rows]
        old, self._shown = self._shown, shown
        if old[0] != shown[0] or len(old[1]) != len(shown[1]):
            row = self.selected_row()
            super().show_rows(titles, rows)
            if self._elided_column is not None:
                self.setColumnHidden(len(titles), True)
                self.horizontalHeader().setSectionResizeMode(self._elided_column, QHeaderView.ResizeMode.Stretch)
            if row is not None and row < len(rows):
                self.selectRow(row)
            return
        for number, (before, after) in enumerate(zip(old[1], shown[1], strict=True)):
            for column, cell in enumerate(after):
                if before[column] != cell:
                    self.setItem(number, column, self._create_item(column, cell))

    def selected_row(self) -> int | None:
        rows = self.selectionModel().selectedRows() if self.selectionModel() else []
        return rows[0].row() if rows else None

    def keyPressEvent(self, event: QKeyEvent) -> None:
        row = self.selected_row()
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and row is not None:
            self.opened.emit(row)
        else:
            super().keyPressEvent(event)
