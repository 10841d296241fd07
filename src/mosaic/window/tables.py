"""Tables of figures, to be read and copied: the basic one, and what those of a comparison show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from PySide6.QtCore import (
    QAbstractItemModel,
    QEvent,
    QModelIndex,
    QPersistentModelIndex,
    QPointF,
    QRect,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import QColor, QFontMetrics, QGuiApplication, QIcon, QKeyEvent, QKeySequence, QPainter
from PySide6.QtWidgets import (
    QApplication,
    QGridLayout,
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from mosaic.base.comparison import Comparison, format_value, strip_common_parts
from mosaic.base.curves import ConfidenceInterval
from mosaic.base.formatting import format_si_number, format_timestamp, run_title
from mosaic.contracts.printable import csv_text
from mosaic.contracts.states import HistoryEntry
from mosaic.contracts.views import RunView
from mosaic.window import theme
from mosaic.window.widgets import (
    DOT_SIZE,
    ElidedLabel,
    IconLabel,
    PlainLabel,
    clear_layout,
    column,
    dot_icon,
    muted_label,
    plain_table,
    selectable_label,
    with_object_name,
)

STATE_ICON_SIZE = 14
MIN_ROWS = 6
"""Rows of a comparison's tables that are visible in the smallest window."""


MAX_DISTINCT = 16
"""How many runs or groups of one chart have colors of their own. Of more groups, the best ones have; and no
probabilities of improvement are computed, whose number grows with the square."""


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
        for index, title in enumerate((*titles, "")):
            self.setHorizontalHeaderItem(index, self._create_item(index, title))
        for number, row in enumerate(rows):
            for index, cell in enumerate(row):
                self.setItem(number, index, self._create_item(index, cell))

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
            for index, cell in enumerate(after):
                if before[index] != cell:
                    self.setItem(number, index, self._create_item(index, cell))

    def selected_row(self) -> int | None:
        rows = self.selectionModel().selectedRows() if self.selectionModel() else []
        return rows[0].row() if rows else None

    def keyPressEvent(self, event: QKeyEvent) -> None:
        row = self.selected_row()
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and row is not None:
            self.opened.emit(row)
        else:
            super().keyPressEvent(event)


# --- Tables with rows of one height, and how their cells are painted. Written for speed: a scroll paints some hundred
#     cells, and each question to a model or a style costs microseconds.


Index = QModelIndex | QPersistentModelIndex
PADDING = 8
_SELECTED = QStyle.StateFlag.State_Selected


def row_height() -> int:
    return QFontMetrics(QApplication.font()).height() + 10


class RowTable(QTableView):
    """Rows of one height, which follows the size of the text."""

    def __init__(self, model: QAbstractItemModel, name: str) -> None:
        super().__init__()
        plain_table(self, name)
        self.setWordWrap(False)
        self.setVerticalScrollMode(QTableView.ScrollMode.ScrollPerPixel)
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self._set_row_height()
        self.setModel(model)

    def _set_row_height(self) -> None:
        self.verticalHeader().setMinimumSectionSize(row_height())
        self.verticalHeader().setDefaultSectionSize(row_height())

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._set_row_height()

    def moveCursor(self, action: QTableView.CursorAction, modifiers: Qt.KeyboardModifier) -> QModelIndex:
        """Home and End go to the first and the last row: there are no cells to move between."""
        if action in (QTableView.CursorAction.MoveHome, QTableView.CursorAction.MoveEnd):
            modifiers |= Qt.KeyboardModifier.ControlModifier
        return super().moveCursor(action, modifiers)


class CellDelegate(QStyledItemDelegate):
    """Rows of one height; what is chosen is marked by its background alone."""

    EXTRA_WIDTH = 2 * PADDING
    """What a cell needs in addition to its text."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(0, row_height())

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        rect: QRect = option.rect
        fill_background(painter, option, rect)
        draw_text(painter, rect, PADDING, str(index.data() or ""))


def draw_text(
    painter: QPainter,
    rect: QRect,
    left: int,
    text: str,
    is_right_aligned: bool = False,
    is_muted: bool = False,
    elide: Qt.TextElideMode = Qt.TextElideMode.ElideRight,
) -> None:
    """In the middle of the height; what has no room is cut."""
    metrics = painter.fontMetrics()
    room = rect.width() - left - PADDING
    width = metrics.horizontalAdvance(text)
    if width > room + PADDING // 2:
        text = metrics.elidedText(text, elide, room)
        width = room
    x = rect.right() - PADDING - width + 1 if is_right_aligned else rect.left() + left
    t = theme.tokens()
    painter.setPen(QColor(t.muted if is_muted or text == "–" else t.text))
    painter.drawText(QPointF(x, rect.top() + (rect.height() + metrics.ascent() - metrics.descent()) / 2), text)


def fill_background(painter: QPainter, option: QStyleOptionViewItem, rect: QRect) -> None:
    if _SELECTED in option.state:
        painter.fillRect(rect, QColor(theme.tokens().raised))


# --- Names and values under small headings, a large number with its caption, and the history of a run.


class Detail(NamedTuple):
    name: str
    value: str = ""
    """Empty: the name is a heading."""
    tooltip: str = ""


class _Grid(QWidget):
    """Rows of widgets at the top, the last column as wide as possible."""

    def __init__(self, columns: int, spacing: int) -> None:
        super().__init__()
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, theme.GAP, 0)
        self._grid.setHorizontalSpacing(spacing)
        self._grid.setVerticalSpacing(4)
        self._grid.setColumnStretch(columns - 1, 1)

    def _clear(self) -> None:
        for row in range(self._grid.rowCount()):
            self._grid.setRowStretch(row, 0)
        clear_layout(self._grid)


class DetailsGrid(_Grid):
    """Rebuilt only when the names change; otherwise only the values are updated."""

    def __init__(self) -> None:
        super().__init__(columns=2, spacing=2 * theme.GAP)
        self._names: list[str] = []
        self._values: list[PlainLabel] = []

    def minimumSizeHint(self) -> QSize:
        """Never lower than its lines: it scrolls instead."""
        return QSize(super().minimumSizeHint().width(), self.sizeHint().height())

    def show_details(self, details: Sequence[Detail]) -> None:
        names = [detail.name for detail in details]
        if names != self._names:
            self._build(details)
            self._names = names
        for detail, label in zip(details, self._values, strict=True):
            if detail.value:
                label.setText(detail.value)
                label.setToolTip(detail.tooltip or detail.value)

    def _build(self, details: Sequence[Detail]) -> None:
        self._clear()
        self._values = []
        for row, detail in enumerate(details):
            if not detail.value:
                heading = muted_label(detail.name)
                heading.setContentsMargins(0, theme.GAP if row else 0, 0, 0)
                self._grid.addWidget(heading, row, 0, 1, 2)
                self._values.append(heading)
                continue
            value = ElidedLabel(mode=Qt.TextElideMode.ElideMiddle)
            value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            self._grid.addWidget(PlainLabel(detail.name), row, 0)
            self._grid.addWidget(value, row, 1)
            self._values.append(value)
        self._grid.setRowStretch(len(details), 1)


class StatTile(QWidget):
    """One number that matters."""

    def __init__(self, caption: str, name: str) -> None:
        super().__init__()
        self.caption, self.detail = ElidedLabel(caption), ElidedLabel()
        for label in (self.caption, self.detail):
            label.setProperty("muted", True)
        self.value = with_object_name(ElidedLabel("–"), name)
        self.value.setProperty("heading", True)
        column(self.caption, self.value, self.detail, parent=self, spacing=0)

    def set_value(self, value: str, detail: str = "", tooltip: str = "") -> None:
        self.value.setText(value)
        self.detail.setText(detail)
        self.setToolTip(tooltip or " ".join(filter(None, (value, detail))))


class HistoryView(_Grid):
    """The history of a run, newest last."""

    def __init__(self) -> None:
        super().__init__(columns=3, spacing=theme.GAP)
        self._lines: list[HistoryEntry] = []
        self._outcome = ""

    def show_history(self, lines: Sequence[HistoryEntry], outcome: str = "") -> None:
        """`outcome` is that of a finished run: the history itself has only stages."""
        if list(lines) == self._lines and outcome == self._outcome:
            return
        self._lines, self._outcome = list(lines), outcome
        self._clear()
        for row, line in enumerate(lines):
            at = muted_label(format_timestamp(line.at)[11:])
            at.setWordWrap(False)
            at.setToolTip(format_timestamp(line.at))
            icon = IconLabel(14)
            icon.set_icon(theme.state_icon(outcome if line.stage == "finished" else line.stage))
            icon.setToolTip(line.stage)
            for place, widget in enumerate((at, icon, selectable_label("", line.message))):
                self._grid.addWidget(widget, row, place, Qt.AlignmentFlag.AlignTop)
        self._grid.setRowStretch(len(lines), 1)
