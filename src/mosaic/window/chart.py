"""One chart: title and values above, lines over faint bands, and what can be done with it in its context menu."""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QPoint, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QGuiApplication, QImage, QPainter, QPaintEvent, QPalette, QResizeEvent, QShowEvent
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QCheckBox, QFileDialog, QSizePolicy, QSlider, QWidget

from mosaic.base.formatting import format_duration, format_si_number, format_timestamp
from mosaic.contracts.printable import csv_text
from mosaic.window import theme
from mosaic.window.curves import ChartCurve, Floats, ReducedCurve, finite_range, log_values, round_range, to_log_scale
from mosaic.window.plot import Band, Legend, LegendRow, Plot, SharedAxis, XRange
from mosaic.window.settings import GuiSettings
from mosaic.window.widgets import (
    ElidedLabel,
    PlainLabel,
    column,
    create_timer,
    muted_label,
    row,
    tool_button,
    with_object_name,
)

# --- The graphics items that show a curve in a chart.


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


# --- One chart: title and values above, lines over faint bands, and what can be done with it in its context menu.


REDRAW_MS = 100
Y_PADDING = 0.03
"""Above and below the data, as a share of its range: a line at the very edge would be cut in half."""
MIN_LEGEND_CHART_WIDTH = 560
"""Of a chart whose legend is shown; in a narrower one, the values are in the title line."""
IMAGE_SCALE = 2
"""Pixels of a saved image for one on the screen."""
DEFAULT_SMOOTHING, MAX_SMOOTHING = 0.6, 0.99


class Chart(QWidget):
    expand_requested = Signal()
    """The button `expand` was pressed, which is hidden by default."""

    def __init__(self, title: str, name: str = "", axis: SharedAxis | None = None, has_legend: bool = False) -> None:
        super().__init__()
        self.setObjectName(name or f"chart.{title}")
        self.title = title
        self.is_log = False
        self.includes_zero = False
        """Whether zero is always in sight, as for what is measured in percent or megabytes."""
        self.x_kind = "step"
        self._weight = 0.0
        self.axis = axis or SharedAxis(self)
        self._zoom: XRange | None = self.axis.range
        self._needs_redraw = False
        self._redrawn_at = 0.0
        self._items: dict[str, CurveItems] = {}
        self.plot = with_object_name(Plot(), f"{self.objectName()}.plot")
        self.legend = Legend() if has_legend else None
        self._build()
        self._timer = create_timer(self, 0, self._redraw_if_visible, is_single_shot=True)
        self.plot.zoom_requested.connect(self.zoom)
        self.plot.reset_requested.connect(self.reset_zoom)
        self.plot.hover_changed.connect(self.axis.move_to)
        self.plot.resized.connect(self.schedule_redraw)
        self.axis.moved.connect(self._show_crosshair)
        self.axis.range_changed.connect(self._on_range_changed)
        self.plot.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        for title, icon, call in (
            ("Reset zoom", "mdi6.magnify-remove-outline", self.reset_zoom),
            ("Copy image", "mdi6.content-copy", self.copy),
            ("Save as PNG…", "mdi6.file-image-outline", lambda: self._save_as("png", self.save_png)),
            ("Save as SVG…", "mdi6.svg", lambda: self._save_as("svg", self.save_svg)),
            ("Save as CSV…", "mdi6.file-delimited-outline", lambda: self._save_as("csv", self.save_csv)),
        ):
            self.plot.addAction(theme.icon(icon), title, call)

    def _build(self) -> None:
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setBackgroundRole(QPalette.ColorRole.Base)
        self.setAutoFillBackground(True)
        self._title = PlainLabel(self.title)
        self._values = with_object_name(ElidedLabel(mode=Qt.TextElideMode.ElideLeft), f"{self.objectName()}.values")
        self._values.setProperty("muted", True)
        self._values.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._values.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.expand = tool_button(
            f"{self.objectName()}.expand", "", "Make this chart larger", self.expand_requested.emit, is_checkable=True
        )
        self.expand.setIcon(theme.icon("mdi6.arrow-expand", "muted"))
        self.expand.setIconSize(QSize(14, 14))
        self.expand.hide()
        body = row((self.plot, 1))
        if self.legend is not None:
            body.addWidget(self.legend)
        column(
            row(self._title, (self._values, 1), self.expand),
            (body, 1),
            parent=self,
            margins=(theme.GAP, theme.GAP // 2, theme.GAP // 2, theme.GAP // 2),
            spacing=0,
        )
        self._empty_label = muted_label("No points yet")
        self._empty_label.setParent(self.plot)
        self._empty_label.setAlignment(Qt.AlignmentFlag.AlignCenter)

    # --- what is shown

    def ensure_curve(self, key: str, label: str, color: QColor, is_dashed: bool = False) -> ChartCurve:
        """Return the curve with this key, created or restyled."""
        legend_row = LegendRow(key, label, color, is_dashed)
        drawn = self._items.get(key)
        if drawn is None:
            drawn = self._items[key] = CurveItems(legend_row, ChartCurve(self._weight))
            for item in drawn.items():
                self.plot.view.addItem(item, ignoreBounds=True)
        drawn.row = legend_row
        self._restyle_curves()
        return drawn.curve

    def remove_curve(self, key: str) -> None:
        for item in self._items.pop(key).items():
            self.plot.view.removeItem(item)
        self._restyle_curves()
        self.schedule_redraw()

    def order_curves(self, keys: Sequence[str]) -> None:
        """Order the curves as they are listed in the legend."""
        self._items = {key: self._items[key] for key in keys}
        self._restyle_curves()

    def curves(self) -> dict[str, ChartCurve]:
        return {key: drawn.curve for key, drawn in self._items.items()}

    def _restyle_curves(self) -> None:
        for drawn in self._items.values():
            drawn.apply_style(len(self._items) > 1)
        if self.legend is not None:
            self.legend.show_rows([drawn.row for drawn in self._items.values()])

    def set_title(self, title: str) -> None:
        self.title = title
        self._title.setText(title)

    def set_empty_text(self, text: str) -> None:
        """Set the text in a chart without points."""
        self._empty_label.setText(text)

    def set_smoothing(self, weight: float) -> None:
        self._weight = weight
        for drawn in self._items.values():
            drawn.curve.set_weight(weight)
        self.schedule_redraw()

    def set_log(self, is_log: bool) -> None:
        self.is_log = is_log
        self.schedule_redraw()

    def set_x_kind(self, kind: str) -> None:
        """Set what the x of the curves is; the owner fills them accordingly."""
        self.axis.set_kind(kind)
        if kind != self.x_kind:
            self.x_kind = kind
            self._zoom = self.axis.range
            self.schedule_redraw()

    # --- zoom

    def zoom(self, begin: float, end: float) -> None:
        """Show this range of x, also in the charts that are linked with this one."""
        if end > begin:
            self._set_zoom((begin, end))

    def reset_zoom(self) -> None:
        self._set_zoom(None)

    def _set_zoom(self, x_range: XRange | None) -> None:
        self._zoom = x_range
        self.redraw()
        self.axis.set_range(x_range)

    def _on_range_changed(self) -> None:
        if self._zoom != self.axis.range:
            self._zoom = self.axis.range
            self.schedule_redraw()

    # --- drawing

    def schedule_redraw(self, delay_ms: int = 0) -> None:
        """Redraw soon, and only if the chart can be seen."""
        self._needs_redraw = True
        if self.isVisible():
            self._start_timer(delay_ms)

    def _start_timer(self, delay_ms: int = 0) -> None:
        """Start at once after a pause, otherwise so that REDRAW_MS are between two drawings."""
        if not self._timer.isActive():
            pause_ms = 1000 * (time.monotonic() - self._redrawn_at)
            self._timer.start(max(delay_ms, round(REDRAW_MS - pause_ms)))

    def _redraw_if_visible(self) -> None:
        if self._needs_redraw and not self.plot.viewport().visibleRegion().isEmpty():
            self.redraw()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self._needs_redraw:
            self._start_timer()  # it has just become visible

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self.legend is not None:
            self.legend.setVisible(self.width() >= MIN_LEGEND_CHART_WIDTH)

    def redraw(self) -> None:
        self._needs_redraw = False
        curves = [drawn.curve for drawn in self._items.values() if len(drawn.curve)]
        self._empty_label.setVisible(not curves)
        self._empty_label.setGeometry(self.plot.view.sceneBoundingRect().toRect())
        for axis in (self.plot.left, self.plot.bottom):
            axis.setOpacity(1.0 if curves else 0.0)  # numbers that stand for nothing; hidden axes would move the plot
        across = self._zoom or self._full_x_range(curves)
        bins = max(50, int(self.plot.view.width() / 2))
        parts = [part for drawn in self._items.values() for part in drawn.draw(*across, bins, self.is_log)]
        up = finite_range(*parts, *([np.zeros(1)] if self.includes_zero and not self.is_log else []))
        # What the axes count changes with their range: a range of 500 is not one of 500 powers of ten.
        self.plot.left.set_kind("log" if self.is_log else "number")
        self.plot.bottom.set_kind(self.x_kind if self.x_kind in ("relative", "wall") else "number")
        self.plot.view.setXRange(*across, padding=0)
        self.plot.view.setYRange(*(round_range(*up) if up else (0.0, 1.0)), padding=Y_PADDING)
        self._show_values()
        self._redrawn_at = time.monotonic()

    def _full_x_range(self, curves: list[ChartCurve]) -> tuple[float, float]:
        known = finite_range(*(curve.x[[0, -1]] for curve in curves))
        if known is None:
            return 0.0, 1.0
        if self.x_kind == "wall":
            return known[0], max(known[1], known[0] + 1)
        return round_range(*known)

    # --- values

    def _show_crosshair(self, x: float | None) -> None:
        if self.isVisible():
            self.plot.show_crosshair(x)
            self._show_values()

    def _show_values(self) -> None:
        """Show the values of all curves: those under the crosshair, or the newest where there is none."""
        x = self.axis.x
        values = {}
        for key, curve in self.curves().items():
            point = curve.last_point() if x is None else curve.value_at(x)
            if point is not None and math.isfinite(point[2]):
                values[key] = point
        text = "" if x is None else self.format_x(x)
        if self.legend is not None and not self.legend.isHidden():
            self.legend.show_values({key: format_si_number(smooth) for key, (_, _, smooth) in values.items()})
        elif len(values) == 1:
            [(at, raw, smooth)] = values.values()
            text = format_si_number(smooth) if x is None else f"{self.format_x(at)}   {format_si_number(smooth)}"
            if x is not None and self._weight > 0:
                text += f" (raw {format_si_number(raw)})"
        elif values:
            figures = (f"{self._items[key].row.label} {format_si_number(value[2])}" for key, value in values.items())
            text = "   ".join(filter(None, (text, *figures)))
        self._values.setText(text)

    def format_x(self, x: float) -> str:
        if self.x_kind == "wall":
            return format_timestamp(x).partition(" ")[2]
        if self.x_kind == "relative":
            return format_duration(x)
        return f"{self.x_kind} {x:,.0f}"

    # --- export

    def _save_as(self, suffix: str, save: Callable[[Path], None]) -> None:
        name = f"{self.title.replace('/', '_')}.{suffix}"
        path, _ = QFileDialog.getSaveFileName(self, f"Save chart as {suffix.upper()}", name, f"*.{suffix}")
        if path:
            save(Path(path))

    def to_image(self) -> QImage:
        """Render the chart with IMAGE_SCALE times the pixels of the screen."""
        image = QImage(self.size() * IMAGE_SCALE, QImage.Format.Format_ARGB32)
        image.setDevicePixelRatio(IMAGE_SCALE)
        image.fill(QColor(theme.tokens().surface))
        self.redraw()
        self.render(image)
        return image

    def copy(self) -> None:
        QGuiApplication.clipboard().setImage(self.to_image())

    def save_png(self, path: Path) -> None:
        self.to_image().save(str(path))

    def save_svg(self, path: Path) -> None:
        self.redraw()
        generator = QSvgGenerator()
        generator.setFileName(str(path))
        generator.setSize(self.size())
        generator.setViewBox(QRect(QPoint(0, 0), self.size()))
        generator.setTitle(self.title)
        painter = QPainter(generator)
        painter.fillRect(self.rect(), QColor(theme.tokens().surface))
        for part in (self._title, self._values, self.legend):
            if part is not None:
                part.render(painter, part.pos(), renderFlags=QWidget.RenderFlag.DrawChildren)
        # The scene itself: the widget would be rendered as one bitmap.
        self.plot.render(painter, QRectF(self.plot.geometry()), self.plot.viewport().rect())
        painter.end()

    def save_csv(self, path: Path) -> None:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("run", "tag", self.x_kind, "value", "smoothed"))
            for drawn in self._items.values():
                curve, names = drawn.curve, (csv_text(drawn.row.label), csv_text(self.title))
                for x, y, smooth in np.column_stack([curve.x, curve.y, curve.smooth]).tolist():
                    writer.writerow((*names, f"{x:.15g}", f"{y:.9g}", f"{smooth:.9g}"))


class SmoothingSlider(QWidget):
    """Sets how strongly curves are smoothed."""

    changed = Signal(float)
    """The weight, from 0 to 0.99; while the slider moves, ten times a second at most."""

    def __init__(self, name: str, weight: float = DEFAULT_SMOOTHING) -> None:
        super().__init__()
        self.slider = with_object_name(QSlider(Qt.Orientation.Horizontal), name)
        self.slider.setRange(0, round(MAX_SMOOTHING * 100))
        self.slider.setFixedWidth(120)
        self.slider.setToolTip("How strongly the line is smoothed; the faint line shows the measured values")
        self._number = PlainLabel()
        label = PlainLabel("Smoothing")
        label.setBuddy(self.slider)
        row(label, self.slider, self._number, parent=self)
        self._timer = create_timer(self, 100, lambda: self.changed.emit(self.weight), is_single_shot=True)
        self.slider.setValue(round(weight * 100))
        self.slider.valueChanged.connect(self._on_moved)
        self._number.setText(f"{self.weight:.2f}")

    @property
    def weight(self) -> float:
        return self.slider.value() / 100

    def _on_moved(self) -> None:
        self._number.setText(f"{self.weight:.2f}")
        if not self._timer.isActive():
            self._timer.start()


class LinkBox(QCheckBox):
    """Chooses whether charts with the same x axis are zoomed together; remembered for the workspace."""

    def __init__(self, name: str, settings: GuiSettings, set_linked: Callable[[bool], None]) -> None:
        super().__init__("Link x")
        self.setObjectName(name)
        self.setToolTip("Zooming or panning one chart does the same in all charts with the same horizontal axis")
        self._settings = settings
        self.setChecked(self._saved())
        set_linked(self.isChecked())
        self.toggled.connect(set_linked)
        self.toggled.connect(lambda is_linked: settings.put_for_workspace("link_x", is_linked))

    def _saved(self) -> bool:
        return bool(self._settings.get_for_workspace("link_x", True))

    def showEvent(self, event: QShowEvent) -> None:
        """Other pages have one, too."""
        super().showEvent(event)
        self.setChecked(self._saved())
