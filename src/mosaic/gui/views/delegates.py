"""How cells of the runs' table are painted: the run's colour, its state, a bar for its progress."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter
from PySide6.QtWidgets import QApplication, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from mosaic.gui import theme
from mosaic.gui.models.runs_table import VIEW_ROLE
from mosaic.gui.views import words

Index = QModelIndex | QPersistentModelIndex
DOT = 8
ICON = 16
PAD = 8
BAR_HEIGHT = 2


class RunDelegate(QStyledItemDelegate):
    """Rows of one height; what is chosen is marked by its background alone."""

    WIDTH = 2 * PAD
    """What a cell needs beside its text."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(0, row_height())

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        _fill(painter, option)
        text = str(index.data() or "")
        align = Qt.AlignmentFlag(index.data(Qt.ItemDataRole.TextAlignmentRole) or Qt.AlignmentFlag.AlignVCenter)
        t = theme.tokens()
        _write(painter, option.rect.adjusted(PAD, 0, -PAD, 0), text, t.muted if text == "–" else t.text, align)


def row_height() -> int:
    return QFontMetrics(QApplication.font()).height() + 10


class StateDelegate(RunDelegate):
    """● icon word."""

    WIDTH = PAD + DOT + 6 + ICON + 4 + PAD

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        view: dict[str, Any] | None = index.data(VIEW_ROLE)
        if view is None:
            return
        _fill(painter, option)
        rect: QRect = option.rect
        state = words.state_of(view)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme.run_colour(view["run_id"]))
        painter.drawEllipse(QRectF(rect.left() + PAD, rect.center().y() + 0.5 - DOT / 2, DOT, DOT))
        painter.restore()
        left = rect.left() + PAD + DOT + 6
        theme.state_icon(state).paint(painter, QRect(left, rect.center().y() - ICON // 2 + 1, ICON, ICON))
        room = rect.adjusted(left + ICON + 4 - rect.left(), 0, -4, 0)
        _write(painter, room, state, theme.tokens().text, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft)


class ProgressDelegate(RunDelegate):
    """The percentage, and a thin bar under it while there is a way to go."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        view: dict[str, Any] | None = index.data(VIEW_ROLE)
        if view is None:
            return
        super().paint(painter, option, index)
        part = words.progress(view)
        if part is None or part >= 1:
            return
        rect: QRect = option.rect
        t = theme.tokens()
        bar = QRectF(rect.left() + PAD, rect.bottom() - BAR_HEIGHT - 1, rect.width() - 2 * PAD, BAR_HEIGHT)
        painter.save()
        painter.setPen(Qt.PenStyle.NoPen)
        painter.fillRect(bar, QColor(t.line))
        bar.setWidth(bar.width() * part)
        painter.fillRect(bar, QColor(t.muted if view["stage"] == "finished" else t.accent))
        painter.restore()


def _write(painter: QPainter, room: QRect, text: str, colour: str, align: Qt.AlignmentFlag) -> None:
    painter.setPen(QColor(colour))
    shown = painter.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, room.width())
    painter.drawText(room, int(align), shown)


def _fill(painter: QPainter, option: QStyleOptionViewItem) -> None:
    if option.state & QStyle.StateFlag.State_Selected:
        painter.fillRect(option.rect, QColor(theme.tokens().raised))
