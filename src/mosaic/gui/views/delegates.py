"""How cells are painted: plain text, and for the runs' table the run's color, its state and a bar for its progress.

Written for speed: a scroll paints some hundred cells, and each question to a model or a style costs microseconds.
"""

from __future__ import annotations

from PySide6.QtCore import (
    QAbstractItemModel,
    QEvent,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QPointF,
    QRect,
    QRectF,
    QSize,
    Qt,
)
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPixmap
from PySide6.QtWidgets import (
    QApplication,
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
)

from mosaic import formatting
from mosaic.contracts.views import RunView
from mosaic.gui import theme
from mosaic.gui.models.runs_table import COLUMNS, RunsTableModel
from mosaic.gui.views.widgets import plain_table

Index = QModelIndex | QPersistentModelIndex
DOT_SIZE = 8
ICON_SIZE = 16
PADDING = 8
BAR_HEIGHT = 2
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


class CellDelegate(QStyledItemDelegate):
    """Rows of one height; what is chosen is marked by its background alone."""

    EXTRA_WIDTH = 2 * PADDING
    """What a cell needs in addition to its text."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(0, row_height())

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        rect: QRect = option.rect
        _fill_background(painter, option, rect)
        _draw_text(painter, rect, PADDING, str(index.data() or ""))


class RunDelegate(CellDelegate):
    """A cell of the runs' table: one question to the model for all that is painted."""

    def __init__(self, table: RunsTableModel, parent: QObject) -> None:
        super().__init__(parent)
        self._table = table

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        # Not by a role: Qt would copy the whole view into its own types and back.
        view = self._table.view(index.row())
        if view is None:
            return
        rect: QRect = option.rect
        _fill_background(painter, option, rect)
        column = COLUMNS[index.column()]
        self.paint_run(painter, rect, view, column.text(view), column.is_right_aligned)

    def paint_run(self, painter: QPainter, rect: QRect, view: RunView, text: str, is_right_aligned: bool) -> None:
        _draw_text(painter, rect, PADDING, text, is_right_aligned)


class StateDelegate(RunDelegate):
    """● icon word."""

    EXTRA_WIDTH = PADDING + DOT_SIZE + 6 + ICON_SIZE + 4 + PADDING

    def __init__(self, table: RunsTableModel, parent: QObject) -> None:
        super().__init__(table, parent)
        self._icons: dict[tuple[str, bool, float], QPixmap] = {}

    def paint_run(self, painter: QPainter, rect: QRect, view: RunView, text: str, is_right_aligned: bool) -> None:
        middle = rect.center().y()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme.run_color(view.run_id))
        painter.drawEllipse(QRectF(rect.left() + PADDING, middle + 0.5 - DOT_SIZE / 2, DOT_SIZE, DOT_SIZE))
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        left = PADDING + DOT_SIZE + 6
        icon = self._icon("unreadable" if view.problem else text, painter)
        painter.drawPixmap(QPointF(rect.left() + left, middle - ICON_SIZE // 2 + 1), icon)
        _draw_text(painter, rect, left + ICON_SIZE + 4, text)

    def _icon(self, state: str, painter: QPainter) -> QPixmap:
        """Drawing a glyph again for each row would take most of the time."""
        scale = painter.device().devicePixelRatioF()
        key = (state, theme.is_dark(), scale)
        if key not in self._icons:
            self._icons[key] = theme.state_icon(state).pixmap(QSize(ICON_SIZE, ICON_SIZE), scale)
        return self._icons[key]


class ProgressDelegate(RunDelegate):
    """The percentage, and a thin bar under it while there is a way to go."""

    def paint_run(self, painter: QPainter, rect: QRect, view: RunView, text: str, is_right_aligned: bool) -> None:
        _draw_text(painter, rect, PADDING, text, is_right_aligned)
        part = formatting.progress_fraction(view)
        if part is None or part >= 1:
            return
        t = theme.tokens()
        left, top, width = rect.left() + PADDING, rect.bottom() - BAR_HEIGHT, rect.width() - 2 * PADDING
        painter.fillRect(left, top, width, BAR_HEIGHT, QColor(t.line))
        color = t.muted if view.stage == "finished" else t.accent
        painter.fillRect(left, top, round(width * part), BAR_HEIGHT, QColor(color))


def _draw_text(painter: QPainter, rect: QRect, left: int, text: str, is_right_aligned: bool = False) -> None:
    """In the middle of the height; what has no room is cut."""
    metrics = painter.fontMetrics()
    room = rect.width() - left - PADDING
    width = metrics.horizontalAdvance(text)
    if width > room + PADDING // 2:
        text = metrics.elidedText(text, Qt.TextElideMode.ElideRight, room)
        width = room
    x = rect.right() - PADDING - width + 1 if is_right_aligned else rect.left() + left
    t = theme.tokens()
    painter.setPen(QColor(t.muted if text == "–" else t.text))
    painter.drawText(QPointF(x, rect.top() + (rect.height() + metrics.ascent() - metrics.descent()) / 2), text)


def _fill_background(painter: QPainter, option: QStyleOptionViewItem, rect: QRect) -> None:
    if _SELECTED in option.state:
        painter.fillRect(rect, QColor(theme.tokens().raised))
