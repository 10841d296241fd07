"""Charts of a sweep: the score of each trial with the best so far, and the importance of its settings."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFontMetricsF,
    QLinearGradient,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPalette,
    QPen,
    QPolygonF,
)
from PySide6.QtWidgets import QWidget

from mosaic.features.sweeps.core import TrialRow, TrialStatus
from mosaic.features.sweeps.window_model import SettingAxis, TrialLine
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.curves import finite_range, round_range
from mosaic.window.plot import Plot

MIN_TRIALS_SHOWN = 4
POINT_SIZE = 7
MIN_HEIGHT, MAX_HEIGHT = 190, 260


class HistoryChart(QWidget):
    """The score of each completed trial, the last report of each pruned one, and the best score so far."""

    hovered = Signal(object)
    """The number of the trial under the mouse, or None."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.setBackgroundRole(QPalette.ColorRole.Base)
        self.setAutoFillBackground(True)
        self._rows: Sequence[TrialRow] = ()
        self._trial_count = 1
        self._zoom: tuple[float, float] | None = None
        self.plot = ui.with_object_name(Plot(), f"{name}.plot")
        self.plot.wheel_needs_ctrl = True
        self.plot.bottom.set_kind("count")
        self.best = pg.PlotCurveItem(antialias=True)
        self.done = pg.ScatterPlotItem(size=POINT_SIZE, pen=None)
        self.pruned = pg.ScatterPlotItem(size=POINT_SIZE, symbol="x")
        for item in (self.best, self.pruned, self.done):
            self.plot.view.addItem(item, ignoreBounds=True)
        self.plot.hover_changed.connect(self._on_hover)
        self.plot.zoom_requested.connect(self._zoom_to)
        self.plot.reset_requested.connect(lambda: self._zoom_to(0.0, 0.0))
        legend = ui.muted_label("● done   ✕ pruned, last report   ━ best so far")
        legend.setProperty("note", True)
        head = ui.row(ui.section_label("Score by trial"), ui.Stretch())
        margins = (theme.GAP, theme.GAP // 2, theme.GAP // 2, theme.GAP // 2)
        ui.column(head, (self.plot, 1), legend, parent=self, margins=margins, spacing=0)
        self.setMinimumSize(200, MIN_HEIGHT)
        self.setMaximumHeight(MAX_HEIGHT)

    def show_trials(self, rows: Sequence[TrialRow], trial_count: int) -> None:
        self._rows, self._trial_count = rows, trial_count
        self.redraw()

    def redraw(self) -> None:
        tokens = theme.tokens()
        done = [row for row in self._rows if row.score is not None]
        pruned = [row for row in self._rows if row.status is TrialStatus.PRUNED and row.last_score is not None]
        scores = [row.score or 0.0 for row in done]
        self.done.setData([row.number for row in done], scores, brush=pg.mkBrush(tokens.accent))
        self.pruned.setData(
            [row.number for row in pruned], [row.last_score or 0.0 for row in pruned], pen=pg.mkPen(tokens.muted)
        )
        xs, ys = best_so_far(self._rows)
        self.best.setData(np.array(xs), np.array(ys), pen=pg.mkPen(tokens.good, width=1.5))
        known = finite_range(np.array(scores), np.array([row.last_score or 0.0 for row in pruned]))
        self.plot.view.setYRange(*(round_range(*known) if known else (0.0, 1.0)), padding=0.05)
        every = -0.5, max(MIN_TRIALS_SHOWN, self._trial_count, len(self._rows)) - 0.5
        self.plot.view.setXRange(*(self._zoom or every), padding=0)

    def _zoom_to(self, begin: float, end: float) -> None:
        """Show a range of trials; an empty one: all of them."""
        self._zoom = (begin, end) if end > begin else None
        self.redraw()

    def _on_hover(self, x: float | None) -> None:
        known = {row.number for row in self._rows}
        number = None if x is None else round(x)
        self.hovered.emit(number if number in known else None)


def best_so_far(rows: Sequence[TrialRow]) -> tuple[list[float], list[float]]:
    """Return the corners of a line that rises with each trial that scores higher than all before it."""
    done = [row for row in rows if row.score is not None]
    best = list(itertools.accumulate((row.score or 0.0 for row in done), max))
    xs = [float(row.number) for row in done]
    if done and rows[-1].number > done[-1].number:
        xs, best = [*xs, float(rows[-1].number)], [*best, best[-1]]
    return [x for x in xs for _ in range(2)][1:], [y for y in best for _ in range(2)][: max(0, 2 * len(best) - 1)]


class ImportanceBars(QWidget):
    """A bar for each setting; a sentence where there are none."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self._values: Mapping[str, float] = {}
        self._text = ""
        self.setMinimumHeight(60)

    def show_values(self, values: Mapping[str, float], text: str) -> None:
        """`text` says why there are no values."""
        if (values, text) != (self._values, self._text):
            self._values, self._text = values, text
            self.setToolTip("\n".join(f"{name}: {100 * value:.0f} %" for name, value in values.items()))
            self.updateGeometry()
            self.update()

    def _row_height(self) -> int:
        return self.fontMetrics().height() + 4

    def sizeHint(self) -> QSize:
        return QSize(240, max(60, self._row_height() * len(self._values)))

    def minimumSizeHint(self) -> QSize:
        return QSize(160, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        tokens, metrics = theme.tokens(), self.fontMetrics()
        if not self._values:
            painter.setPen(QColor(tokens.muted))
            flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop | Qt.TextFlag.TextWordWrap
            painter.drawText(self.rect(), flags, self._text)
            return
        height = self._row_height()
        names = min(max(map(metrics.horizontalAdvance, self._values)), round(0.45 * self.width()))
        figure = metrics.horizontalAdvance("100 %")
        left = names + theme.GAP
        room = max(1, self.width() - left - figure - theme.GAP)
        largest = max(self._values.values()) or 1.0
        for number, (name, value) in enumerate(self._values.items()):
            top = number * height
            painter.setPen(QColor(tokens.text))
            text = metrics.elidedText(name, Qt.TextElideMode.ElideMiddle, names)
            painter.drawText(QRectF(0, top, names, height), Qt.AlignmentFlag.AlignVCenter, text)
            painter.fillRect(QRectF(left, top + 4, room, height - 8), QColor(tokens.raised))
            painter.fillRect(QRectF(left, top + 4, room * value / largest, height - 8), QColor(tokens.accent))
            box = QRectF(self.width() - figure, top, figure, height)
            painter.drawText(box, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight, f"{100 * value:.0f} %")


# --- Parallel coordinates: one axis for each searched setting, one line for each trial, colored by its score.


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
