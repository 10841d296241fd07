"""How cells are painted: plain text, and for the runs' table the run's colour, its state and a bar for its progress.

Written for speed: a scroll paints some hundred cells, and each question to a model or a style costs microseconds.
"""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QModelIndex, QObject, QPersistentModelIndex, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPixmap
from PySide6.QtWidgets import QApplication, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from mosaic.gui import theme
from mosaic.gui.models.runs_table import COLUMNS, RunsTable
from mosaic.gui.views import words

Index = QModelIndex | QPersistentModelIndex
DOT = 8
ICON = 16
PAD = 8
BAR_HEIGHT = 2
_SELECTED = QStyle.StateFlag.State_Selected


def row_height() -> int:
    return QFontMetrics(QApplication.font()).height() + 10


class CellDelegate(QStyledItemDelegate):
    """Rows of one height; what is chosen is marked by its background alone."""

    WIDTH = 2 * PAD
    """What a cell needs beside its text."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(0, row_height())

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        rect: QRect = option.rect
        _fill(painter, option, rect)
        _write(painter, rect, PAD, str(index.data() or ""))


class RunDelegate(CellDelegate):
    """A cell of the runs' table: one question to the model for all that is painted."""

    def __init__(self, table: RunsTable, parent: QObject) -> None:
        super().__init__(parent)
        self._table = table

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        # Not by a role: Qt would copy the whole view into its own types and back.
        view: dict[str, Any] | None = self._table.view(index.row())
        if view is None:
            return
        rect: QRect = option.rect
        _fill(painter, option, rect)
        column = COLUMNS[index.column()]
        self.paint_run(painter, rect, view, column.text(view), column.is_right)

    def paint_run(self, painter: QPainter, rect: QRect, view: dict[str, Any], text: str, is_right: bool) -> None:
        _write(painter, rect, PAD, text, is_right)


class StateDelegate(RunDelegate):
    """● icon word."""

    WIDTH = PAD + DOT + 6 + ICON + 4 + PAD

    def __init__(self, table: RunsTable, parent: QObject) -> None:
        super().__init__(table, parent)
        self._icons: dict[tuple[str, bool, float], QPixmap] = {}

    def paint_run(self, painter: QPainter, rect: QRect, view: dict[str, Any], text: str, is_right: bool) -> None:
        middle = rect.center().y()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme.run_colour(view["run_id"]))
        painter.drawEllipse(QRectF(rect.left() + PAD, middle + 0.5 - DOT / 2, DOT, DOT))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        left = PAD + DOT + 6
        painter.drawPixmap(QPointF(rect.left() + left, middle - ICON // 2 + 1), self._icon(text, painter))
        _write(painter, rect, left + ICON + 4, text)

    def _icon(self, state: str, painter: QPainter) -> QPixmap:
        """Drawing a glyph anew for each row would take most of the time."""
        scale = painter.device().devicePixelRatioF()
        key = (state, theme.is_dark(), scale)
        if key not in self._icons:
            self._icons[key] = theme.state_icon(state).pixmap(QSize(ICON, ICON), scale)
        return self._icons[key]


class ProgressDelegate(RunDelegate):
    """The percentage, and a thin bar under it while there is a way to go."""

    def paint_run(self, painter: QPainter, rect: QRect, view: dict[str, Any], text: str, is_right: bool) -> None:
        _write(painter, rect, PAD, text, is_right)
        part = words.progress(view)
        if part is None or part >= 1:
            return
        t = theme.tokens()
        left, top, width = rect.left() + PAD, rect.bottom() - BAR_HEIGHT, rect.width() - 2 * PAD
        painter.fillRect(left, top, width, BAR_HEIGHT, QColor(t.line))
        colour = t.muted if view["stage"] == "finished" else t.accent
        painter.fillRect(left, top, round(width * part), BAR_HEIGHT, QColor(colour))


def _write(painter: QPainter, rect: QRect, left: int, text: str, is_right: bool = False) -> None:
    """In the middle of the height; what has no room is cut."""
    metrics = painter.fontMetrics()
    room = rect.width() - left - PAD
    width = metrics.horizontalAdvance(text)
    if width > room + PAD // 2:
        text = metrics.elidedText(text, Qt.TextElideMode.ElideRight, room)
        width = room
    x = rect.right() - PAD - width + 1 if is_right else rect.left() + left
    t = theme.tokens()
    painter.setPen(QColor(t.muted if text == "–" else t.text))
    painter.drawText(QPointF(x, rect.top() + (rect.height() + metrics.ascent() - metrics.descent()) / 2), text)


def _fill(painter: QPainter, option: QStyleOptionViewItem, rect: QRect) -> None:
    if _SELECTED in option.state:
        painter.fillRect(rect, QColor(theme.tokens().raised))
