"""The graphics items that show a curve in a chart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor

from mosaic.gui.models.curve_model import ChartCurve, ReducedCurve, log_values, to_log_scale
from mosaic.gui.models.series import Floats
from mosaic.gui.views.plot import Band, LegendRow

LINE_WIDTH = 1.5
BAND_OPACITY, RAW_OPACITY, LINES_OPACITY = 0.18, 0.35, 0.25
OVERLAPPING_BAND_OPACITY = 0.07
"""Of the bands of several runs, which lie over one another."""


@dataclass
class CurveItems:
    """A curve and the graphics items that show it."""

    row: LegendRow
    curve: ChartCurve
    line: Any = field(default_factory=lambda: pg.PlotCurveItem(connect="finite", antialias=True))
    raw: Any = field(default_factory=lambda: pg.PlotCurveItem(connect="finite", antialias=True))
    tail: Any = field(default_factory=lambda: pg.PlotCurveItem(connect="finite", antialias=True))
    lines: Any = field(default_factory=lambda: pg.PlotCurveItem(connect="finite"))
    dots: Any = field(default_factory=lambda: pg.ScatterPlotItem(size=6, pen=None))
    band: Band = field(default_factory=Band)
    _style: tuple[object, ...] = ()
    """What was applied last: pens are expensive."""

    def apply_style(self, has_other_curves: bool) -> None:
        color, is_dashed = self.row.color, self.row.is_dashed
        style = (color.rgba(), is_dashed, has_other_curves, self.curve.has_band)
        if style == self._style:
            return
        self._style = style
        faint, fainter, fill = QColor(color), QColor(color), QColor(color)
        faint.setAlphaF(RAW_OPACITY)
        fainter.setAlphaF(LINES_OPACITY)
        fill.setAlphaF(OVERLAPPING_BAND_OPACITY if has_other_curves and not self.curve.has_band else BAND_OPACITY)
        pen_style = Qt.PenStyle.DashLine if is_dashed else Qt.PenStyle.SolidLine
        self.line.setPen(pg.mkPen(color, width=LINE_WIDTH, style=pen_style))
        # Piece by piece Qt draws a line of this width many times faster than as one path; dashes need the path.
        self.line.setSegmentedLineMode("off" if is_dashed else "on")
        self.raw.setPen(pg.mkPen(faint, width=1))
        self.lines.setPen(pg.mkPen(fainter, width=1))
        self.lines.setSegmentedLineMode("on")
        self.lines.setZValue(-5)
        self.tail.setPen(pg.mkPen(color, width=LINE_WIDTH, style=Qt.PenStyle.DotLine))
        self.dots.setBrush(pg.mkBrush(color))
        self.band.set_brush(pg.mkBrush(fill))

    def items(self) -> tuple[Any, ...]:
        return self.band, self.lines, self.raw, self.line, self.tail, self.dots

    def draw(self, begin: float, end: float, bins: int, is_log: bool) -> list[Floats]:
        """Show the part of the curve from `begin` to `end`. Return the values that are to be in sight."""
        reduced = self.curve.reduce(begin, end, bins)
        reduced = to_log_scale(reduced) if is_log else reduced
        self._set_data(reduced)
        inside = (reduced.x >= begin) & (reduced.x <= end)
        parts = [part[inside] for part in (reduced.low, reduced.high, reduced.smooth)]
        for item, (x, y) in ((self.tail, self.curve.tail), (self.lines, self.curve.lines)):
            y = log_values(y) if is_log else y
            item.setData(x, y)
            parts.append(y[(x >= begin) & (x <= end)])
        return parts

    def _set_data(self, reduced: ReducedCurve) -> None:
        is_smooth = self.curve.weight > 0
        self.line.setData(reduced.x, reduced.smooth if is_smooth else reduced.raw)
        self.raw.setData(reduced.x, reduced.raw) if is_smooth else self.raw.setData([], [])
        self.band.set_data(reduced.x, reduced.low, reduced.high)
        is_known = np.isfinite(reduced.raw)
        self.dots.setVisible(int(is_known.sum()) == 1)  # a line needs two points
        if self.dots.isVisible():
            self.dots.setData(reduced.x[is_known], reduced.raw[is_known])
