"""How cells of the runs' table are painted: the run's colour, its state, a bar for its progress."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QApplication, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from mosaic.gui import theme
from mosaic.gui.models.runs_table import VIEW_ROLE
from mosaic.gui.views import words

Index = QModelIndex | QPersistentModelIndex
DOT = 8
ICON = 16
PAD = 8
BAR_HEIGHT = 4


class RunDelegate(QStyledItemDelegate):
    """Rows of one height; what is chosen is marked by its background alone."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(0, row_height())

    def initStyleOption(self, option: QStyleOptionViewItem, index: Index) -> None:
        super().initStyleOption(option, index)
        option.state &= ~QStyle.StateFlag.State_HasFocus  # type: ignore[attr-defined]


def row_height() -> int:
    return QApplication.fontMetrics().height() + 10


class StateDelegate(RunDelegate):
    """● icon word."""

    WIDTH = PAD + DOT + 6 + ICON + 4 + PAD
    """What stands beside the word."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        view: dict[str, Any] | None = index.data(VIEW_ROLE)
        if view is None:
            return
        _fill(painter, option)
        rect: QRect = option.rect  # type: ignore[attr-defined]
        state = words.state_of(view)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme.run_colour(view["run_id"]))
        middle = rect.center().y() + 0.5
        painter.drawEllipse(QRectF(rect.left() + PAD, middle - DOT / 2, DOT, DOT))
        left = rect.left() + PAD + DOT + 6
        theme.state_icon(state).paint(painter, QRect(left, rect.center().y() - ICON // 2 + 1, ICON, ICON))
        room = QRect(left + ICON + 4, rect.top(), rect.right() - left - ICON - 4 - PAD // 2, rect.height())
        painter.setPen(QColor(theme.tokens().text))
        text = QApplication.fontMetrics().elidedText(state, Qt.TextElideMode.ElideRight, room.width())
        painter.drawText(room, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), text)
        painter.restore()


class ProgressDelegate(RunDelegate):
    """A thin bar with the percentage over it."""

    WIDTH = 2 * PAD + 12

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        view: dict[str, Any] | None = index.data(VIEW_ROLE)
        if view is None:
            return
        _fill(painter, option)
        part = words.progress(view)
        rect = option.rect.adjusted(PAD, 0, -PAD, 0)  # type: ignore[attr-defined]
        t = theme.tokens()
        painter.save()
        if part is None:
            painter.setPen(QColor(t.muted))
            painter.drawText(rect, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight), "–")
            painter.restore()
            return
        text = rect.adjusted(0, 0, 0, -BAR_HEIGHT - 2)
        painter.setPen(QColor(t.text))
        painter.drawText(text, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight), f"{100 * part:.0f}%")
        bar = QRectF(rect.left(), rect.bottom() - BAR_HEIGHT - 2, rect.width(), BAR_HEIGHT)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(t.line))
        painter.drawRoundedRect(bar, 2, 2)
        _, colour = theme.STATE_ICONS.get(words.state_of(view), ("", "muted"))
        painter.setBrush(QColor(getattr(t, colour)))
        bar.setWidth(bar.width() * part)
        painter.drawRoundedRect(bar, 2, 2)
        painter.restore()


def _fill(painter: QPainter, option: QStyleOptionViewItem) -> None:
    if option.state & QStyle.StateFlag.State_Selected:  # type: ignore[attr-defined]
        painter.fillRect(option.rect, QColor(theme.tokens().raised))  # type: ignore[attr-defined]
