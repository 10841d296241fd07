"""Parallel coordinates: one axis for each searched setting, one line for each trial, colored by its score."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetricsF, QLinearGradient, QMouseEvent, QPainter, QPaintEvent, QPen, QPolygonF
from PySide6.QtWidgets import QWidget

from mosaic.gui import theme
from mosaic.gui.models.sweep_state import SettingAxis, TrialLine

HOVER_DISTANCE_PX = 8
LINE_WIDTH, PRUNED_WIDTH, HIGHLIGHT_WIDTH = 1.5, 1.0, 3.0
DIMMED_OPACITY = 0.25
SCORE_BAR_WIDTH = 6
EDGE_WIDTH = 64
"""For the labels of the last axis."""


class ParallelPlot(QWidget):
    hovered = Signal(object)
    """The number of the trial under the mouse, or None."""
    clicked = Signal(int)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.setMouseTracking(True)
        self.setMinimumHeight(220)
        self._axes: Sequence[SettingAxis] = ()
        self._lines: Sequence[TrialLine] = ()
        self._highlighted: int | None = None
        self._empty_text = ""

    def show_trials(self, axes: Sequence[SettingAxis], lines: Sequence[TrialLine], empty_text: str = "") -> None:
        if (list(axes), list(lines), empty_text) != (list(self._axes), list(self._lines), self._empty_text):
            self._axes, self._lines, self._empty_text = axes, lines, empty_text
            self.update()

    def highlight(self, number: int | None) -> None:
        """Draw a trial on top of the others, which are dimmed."""
        known = number if any(line.number == number for line in self._lines) else None
        if known != self._highlighted:
            self._highlighted = known
            self.update()

    @property
    def highlighted(self) -> int | None:
        return self._highlighted

    def sizeHint(self) -> QSize:
        return QSize(480, 260)

    # --- geometry

    def _plot_area(self) -> QRectF:
        title = QFontMetricsF(theme.text_font(-1)).height()
        top = (2 * title if self._is_staggered() else title) + theme.GAP
        return QRectF(theme.GAP, top, max(1, self.width() - theme.GAP - EDGE_WIDTH), self.height() - top - theme.GAP)

    def _is_staggered(self) -> bool:
        """Whether titles take two rows, as neighbors would overlap."""
        metrics = QFontMetricsF(theme.text_font(-1))
        widest = max((metrics.horizontalAdvance(axis.title) for axis in self._axes), default=0.0)
        return widest + theme.GAP > (self.width() - theme.GAP - EDGE_WIDTH) / max(1, len(self._axes) - 1)

    def _axis_x(self, number: int) -> float:
        area = self._plot_area()
        return area.left() + area.width() * number / max(1, len(self._axes) - 1)

    def points_of(self, line: TrialLine) -> list[QPointF]:
        """Where a line crosses the axes."""
        area = self._plot_area()
        return [QPointF(self._axis_x(n), area.bottom() - place * area.height()) for n, place in enumerate(line.places)]

    def trial_at(self, position: QPointF) -> int | None:
        """Return the trial whose line is nearest; the best one where several are as near."""
        best, found = float(HOVER_DISTANCE_PX), None
        for line in self._lines:
            for one, other in zip(points := self.points_of(line), points[1:], strict=False):
                if one.x() <= position.x() <= other.x() and other.x() > one.x():
                    share = (position.x() - one.x()) / (other.x() - one.x())
                    distance = abs(one.y() + share * (other.y() - one.y()) - position.y())
                    if distance <= best:
                        best, found = distance, line.number
        return found

    # --- the mouse

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        number = self.trial_at(event.position())
        if number != self._highlighted:
            self.highlight(number)
            self.hovered.emit(number)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        number = self.trial_at(event.position())
        if event.button() == Qt.MouseButton.LeftButton and number is not None:
            self.clicked.emit(number)

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.highlight(None)
        self.hovered.emit(None)

    # --- drawing

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tokens = theme.tokens()
        painter.fillRect(self.rect(), QColor(tokens.surface))
        if not self._lines:
            painter.setPen(QColor(tokens.muted))
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap, self._empty_text)
            return
        for line in self._lines:
            if line.number != self._highlighted:
                self._draw_line(painter, line)
        for line in self._lines:
            if line.number == self._highlighted:
                self._draw_line(painter, line)
        for number, axis in enumerate(self._axes):
            self._draw_axis(painter, number, axis)

    def _draw_line(self, painter: QPainter, line: TrialLine) -> None:
        is_highlighted = line.number == self._highlighted
        color = QColor(theme.tokens().line) if line.share is None else theme.score_color(line.share)
        if line.share is None and is_highlighted:
            color = QColor(theme.tokens().muted)
        if self._highlighted is not None and not is_highlighted:
            color.setAlphaF(DIMMED_OPACITY)
        width = HIGHLIGHT_WIDTH if is_highlighted else PRUNED_WIDTH if line.share is None else LINE_WIDTH
        painter.setPen(QPen(color, width))
        painter.drawPolyline(QPolygonF(self.points_of(line)))

    def _draw_axis(self, painter: QPainter, number: int, axis: SettingAxis) -> None:
        tokens, area, x = theme.tokens(), self._plot_area(), self._axis_x(number)
        is_score = number == len(self._axes) - 1
        if is_score:
            self._draw_score_bar(painter, area, x)
        else:
            painter.setPen(QPen(QColor(tokens.muted), 1))
            painter.drawLine(QPointF(x, area.top()), QPointF(x, area.bottom()))
        painter.setFont(theme.text_font(-2))
        metrics = QFontMetricsF(painter.font())
        height, last = metrics.height(), -2 * metrics.height()
        backdrop = QColor(tokens.surface)
        backdrop.setAlphaF(0.75)
        for place, label in sorted(axis.ticks, key=lambda tick: (tick[0] not in (0.0, 1.0), tick[0])):
            y = area.bottom() - place * area.height()
            if place not in (0.0, 1.0) and (abs(y - last) < height or min(y - area.top(), area.bottom() - y) < height):
                continue  # it would cover another label
            last = y if place not in (0.0, 1.0) else last
            room = EDGE_WIDTH - SCORE_BAR_WIDTH if is_score else area.width() / max(1, len(self._axes) - 1) - 8
            text = metrics.elidedText(label, Qt.TextElideMode.ElideRight, room)
            left = x + (SCORE_BAR_WIDTH if is_score else 4)
            top = min(max(y - height / 2, area.top() - height / 2), area.bottom() - height / 2)
            box = QRectF(left, top, metrics.horizontalAdvance(text) + 2, height)
            painter.fillRect(box, backdrop)
            painter.setPen(QColor(tokens.text if is_score else tokens.muted))
            painter.drawText(box, Qt.AlignmentFlag.AlignVCenter, text)
        self._draw_title(painter, number, axis, area)

    def _draw_score_bar(self, painter: QPainter, area: QRectF, x: float) -> None:
        gradient = QLinearGradient(0, area.bottom(), 0, area.top())
        for step in range(5):
            gradient.setColorAt(step / 4, theme.score_color(step / 4))
        painter.fillRect(QRectF(x - SCORE_BAR_WIDTH / 2, area.top(), SCORE_BAR_WIDTH, area.height()), gradient)

    def _draw_title(self, painter: QPainter, number: int, axis: SettingAxis, area: QRectF) -> None:
        painter.setFont(theme.text_font(-1))
        metrics = QFontMetricsF(painter.font())
        is_staggered, x = self._is_staggered(), self._axis_x(number)
        spacing = area.width() / max(1, len(self._axes) - 1)
        text = f"{axis.title} (log)" if axis.is_log and not is_staggered else axis.title
        room = 2 * spacing - theme.GAP if is_staggered else spacing + theme.GAP
        text = metrics.elidedText(text, Qt.TextElideMode.ElideMiddle, room)
        width = metrics.horizontalAdvance(text)
        left = min(max(x - width / 2, theme.GAP), self.width() - width - theme.GAP)
        top = metrics.height() if is_staggered and number % 2 else 0.0
        painter.setPen(QColor(theme.tokens().text))
        painter.drawText(QPointF(left, top + metrics.ascent()), text)
