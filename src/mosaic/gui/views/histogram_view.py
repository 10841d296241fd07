"""How often each return came, with the mean and how sure it is."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from mosaic.gui import theme
from mosaic.gui.models.curve_model import round_step
from mosaic.gui.views.plot import format_ticks
from mosaic.gui.views.read_only_table import format_interval
from mosaic.gui.views.widgets import with_object_name
from mosaic.statistics import ConfidenceInterval, mean_with_interval

Floats = npt.NDArray[np.float64]
MAX_BINS = 30
LEFT, BOTTOM, TOP, RIGHT = 44, 22, 22, 12
MIN_TICK_SPACING_PX = 72
"""Pixels between the numbers below, at least."""


def bin_values(values: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    """Counts and edges; one bin where all values are the same."""
    known = values[np.isfinite(values)]
    if not len(known):
        return np.zeros(0, np.int64), np.zeros(1)
    low, high = float(known.min()), float(known.max())
    if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):
        half = max(0.5, 0.05 * abs(low))
        return np.array([len(known)]), np.array([low - half, low + half])
    bins = int(np.clip(2 * np.sqrt(len(known)), 5, MAX_BINS))
    counts, edges = np.histogram(known, bins)
    return counts, edges


class Histogram(QWidget):
    def __init__(self, name: str) -> None:
        super().__init__()
        with_object_name(self, name)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(200, 110)
        self.values: Floats = np.zeros(0)
        self.mean = ConfidenceInterval(float("nan"), float("nan"), float("nan"))
        self._colour = QColor()

    def sizeHint(self) -> QSize:
        return QSize(480, 220)

    def show_values(self, values: Floats, colour: QColor) -> None:
        self.values, self._colour = values, colour
        self.mean = mean_with_interval(values)
        counted = "1 episode" if len(values) == 1 else f"{len(values):,} episodes"
        self.setAccessibleName(f"Returns of {counted}: mean {format_interval(self.mean)}")
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        counts, edges = bin_values(self.values)
        if not len(counts):
            return
        painter = QPainter(self)
        plot = QRectF(LEFT, TOP, self.width() - LEFT - RIGHT, self.height() - TOP - BOTTOM)
        low, high = float(edges[0]), float(edges[-1])
        pad = 0.04 * (high - low)
        low, high = low - pad, high + pad

        def x(value: float) -> float:
            return plot.left() + (value - low) / (high - low) * plot.width()

        self._draw_grid(painter, plot, int(counts.max()))
        at, sure_from, sure_to = (x(value) for value in self.mean)
        self._draw_interval(painter, plot, sure_from, sure_to)
        self._draw_bars(painter, plot, [(x(a), x(b)) for a, b in itertools.pairwise(edges)], counts)
        self._draw_mean(painter, plot, at)
        self._draw_numbers(painter, plot, low, high)
        painter.end()

    def _draw_grid(self, painter: QPainter, plot: QRectF, max_count: int) -> None:
        tokens = theme.tokens()
        painter.setFont(theme.small_font())
        step = max(1, round(round_step(max_count / max(1.0, plot.height() / 32))))
        for count in range(0, max_count + 1, step):
            y = plot.bottom() - count / max_count * plot.height()
            painter.setPen(QColor(tokens.line if theme.is_dark() else tokens.faint))
            painter.drawLine(round(plot.left()), round(y), round(plot.right()), round(y))
            painter.setPen(QColor(tokens.muted))
            where = QRectF(0, y - 8, LEFT - 6, 16)
            painter.drawText(where, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, f"{count:,}")

    def _draw_bars(
        self, painter: QPainter, plot: QRectF, places: list[tuple[float, float]], counts: npt.NDArray[np.int64]
    ) -> None:
        fill = QColor(self._colour)
        fill.setAlpha(190)
        gap = 1.0 if len(places) > 1 else 0.3 * plot.width()
        for (left, right), count in zip(places, counts, strict=True):
            height = plot.height() * int(count) / int(counts.max())
            painter.fillRect(QRectF(left + gap, plot.bottom() - height, right - left - 2 * gap, height), fill)

    def _draw_interval(self, painter: QPainter, plot: QRectF, low: float, high: float) -> None:
        if np.isfinite(low):
            shade = QColor(theme.tokens().text)
            shade.setAlpha(24)
            painter.fillRect(QRectF(low, plot.top(), high - low, plot.height()).intersected(plot), shade)

    def _draw_mean(self, painter: QPainter, plot: QRectF, at: float) -> None:
        if not np.isfinite(at):
            return
        painter.setPen(QPen(QColor(theme.tokens().text), 1.5))
        painter.drawLine(round(at), round(plot.top()), round(at), round(plot.bottom()))
        text = f"mean {format_interval(self.mean)}"
        width = painter.fontMetrics().horizontalAdvance(text) + 4
        left = min(max(0.0, at - width / 2), self.width() - width)
        painter.drawText(QRectF(left, 0, width, TOP - 4), Qt.AlignmentFlag.AlignCenter, text)

    def _draw_numbers(self, painter: QPainter, plot: QRectF, low: float, high: float) -> None:
        spacing = round_step((high - low) / max(2.0, plot.width() / MIN_TICK_SPACING_PX))
        ticks = [float(n) * spacing for n in range(int(np.ceil(low / spacing)), int(np.floor(high / spacing)) + 1)]
        painter.setPen(QColor(theme.tokens().muted))
        for tick, text in zip(ticks, format_ticks(ticks, spacing), strict=True):
            at = plot.left() + (tick - low) / (high - low) * plot.width()
            where = QRectF(at - MIN_TICK_SPACING_PX / 2, plot.bottom() + 4, MIN_TICK_SPACING_PX, BOTTOM - 4)
            painter.drawText(where, Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop, text)
