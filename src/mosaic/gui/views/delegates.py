"""Tables with rows of one height, and how their cells are painted.

Written for speed: a scroll paints some hundred cells, and each question to a model or a style costs microseconds.
"""

from __future__ import annotations

from PySide6.QtCore import (
    QAbstractItemModel,
    QEvent,
    QModelIndex,
    QPersistentModelIndex,
    QPointF,
    QRect,
    QSize,
    Qt,
)
from PySide6.QtGui import QColor, QFontMetrics, QPainter
from PySide6.QtWidgets import (
    QApplication,
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
)

from mosaic.gui import theme
from mosaic.gui.views.widgets import plain_table

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
