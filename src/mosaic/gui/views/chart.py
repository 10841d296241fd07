"""One chart: title and values above, lines over faint bands, and what can be done with it in its context menu."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QPoint, QRect, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QColor, QGuiApplication, QImage, QPainter, QPaintEvent, QPalette, QShowEvent
from PySide6.QtSvg import QSvgGenerator
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QLabel, QMenu, QSizePolicy, QToolButton, QVBoxLayout, QWidget

from mosaic.formatting import format_duration, format_si_number, format_timestamp
from mosaic.gui import theme
from mosaic.gui.models.curve_model import ChartCurve, ReducedCurve, finite_range, round_range, to_log_scale
from mosaic.gui.views.crosshair import Crosshair
from mosaic.gui.views.legend import Legend
from mosaic.gui.views.plot import Band, Plot
from mosaic.gui.views.widgets import with_object_name

REDRAW_MS = 100
LINE_WIDTH = 1.5
BAND_OPACITY, RAW_OPACITY = 0.18, 0.35
OVERLAPPING_BAND_OPACITY = 0.07
"""Of the bands of several runs, which lie over one another."""
Y_PADDING = 0.03
"""Above and below the data, as a share of its range: a line at the very edge would be cut in half."""
IMAGE_SCALE = 2
"""Pixels of a saved image for one on the screen."""


@dataclass
class _CurveItems:
    """A curve and the things that show it."""

    label: str
    colour: QColor
    is_dashed: bool
    curve: ChartCurve
    line: Any = field(default_factory=lambda: pg.PlotCurveItem(connect="finite", antialias=True))
    raw: Any = field(default_factory=lambda: pg.PlotCurveItem(connect="finite", antialias=True))
    dots: Any = field(default_factory=lambda: pg.ScatterPlotItem(size=6, pen=None))
    band: Band = field(default_factory=Band)

    def apply_style(self, has_other_curves: bool) -> None:
        style = Qt.PenStyle.DashLine if self.is_dashed else Qt.PenStyle.SolidLine
        faint, fill = QColor(self.colour), QColor(self.colour)
        faint.setAlphaF(RAW_OPACITY)
        fill.setAlphaF(OVERLAPPING_BAND_OPACITY if has_other_curves and not self.curve.has_band else BAND_OPACITY)
        self.line.setPen(pg.mkPen(self.colour, width=LINE_WIDTH, style=style))
        # Piece by piece Qt draws a line of this width many times faster than as one path; dashes need the path.
        self.line.setSegmentedLineMode("off" if self.is_dashed else "on")
        self.raw.setPen(pg.mkPen(faint, width=1))
        self.dots.setBrush(pg.mkBrush(self.colour))
        self.band.set_brush(pg.mkBrush(fill))

    def items(self) -> tuple[Any, ...]:
        return self.band, self.raw, self.line, self.dots

    def set_data(self, reduced: ReducedCurve) -> None:
        is_smooth = self.curve.weight > 0
        self.line.setData(reduced.x, reduced.smooth if is_smooth else reduced.raw)
        self.raw.setData(reduced.x, reduced.raw) if is_smooth else self.raw.setData([], [])
        self.band.set_data(reduced.x, reduced.low, reduced.high)
        self.dots.setData(reduced.x, reduced.raw) if len(reduced.x) == 1 else self.dots.setData([], [])


class Chart(QWidget):
    expand_requested = Signal()
    """The button for more room was pressed; it is shown only where the signal is connected."""

    def __init__(
        self, title: str, name: str = "", crosshair: Crosshair | None = None, has_legend: bool = False
    ) -> None:
        super().__init__()
        self.setObjectName(name or f"chart.{title}")
        self.title = title
        self.is_log = False
        self.includes_zero = False
        """Whether zero is always in sight, as for what is measured in percent or megabytes."""
        self.x_kind = "step"
        self._weight = 0.0
        self._zoom: tuple[float, float] | None = None
        self._needs_redraw = False
        self._redrawn_at = 0.0
        self._items: dict[str, _CurveItems] = {}
        self.crosshair = crosshair or Crosshair(self)
        self.plot = with_object_name(Plot(), f"{self.objectName()}.plot")
        self.legend = Legend() if has_legend else None
        self._build()
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._redraw_if_visible)
        self.plot.zoom_requested.connect(self.zoom)
        self.plot.reset_requested.connect(self.reset_zoom)
        self.plot.hover_changed.connect(self.crosshair.move_to)
        self.plot.resized.connect(self.schedule_redraw)
        self.crosshair.moved.connect(self._show_crosshair)
        self.plot.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.plot.customContextMenuRequested.connect(self._show_menu)

    def _build(self) -> None:
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setBackgroundRole(QPalette.ColorRole.Base)
        self.setAutoFillBackground(True)
        column = QVBoxLayout(self)
        column.setContentsMargins(theme.GAP, theme.GAP // 2, theme.GAP // 2, theme.GAP // 2)
        column.setSpacing(0)
        head = QHBoxLayout()
        head.setSpacing(theme.GAP)
        self._title = QLabel(self.title)
        self._values = with_object_name(QLabel(), f"{self.objectName()}.values")
        self._values.setProperty("muted", True)
        self._values.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._values.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.expand = with_object_name(QToolButton(), f"{self.objectName()}.expand")
        self.expand.setProperty("flat", True)
        self.expand.setCheckable(True)
        self.expand.setIconSize(QSize(14, 14))
        self.expand.setToolTip("Make this chart larger")
        self.expand.clicked.connect(lambda _: self.expand_requested.emit())
        self.expand.hide()
        head.addWidget(self._title)
        head.addWidget(self._values, 1)
        head.addWidget(self.expand)
        column.addLayout(head)
        middle = QHBoxLayout()
        middle.setSpacing(theme.GAP)
        middle.addWidget(self.plot, 1)
        if self.legend is not None:
            middle.addWidget(self.legend)
        column.addLayout(middle, 1)
        self._nothing = QLabel("No points yet", self.plot)
        self._nothing.setProperty("muted", True)
        self._nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._nothing.setWordWrap(True)
        self.repaint_theme()

    # --- what is shown

    def ensure_curve(self, key: str, label: str, colour: QColor, is_dashed: bool = False) -> ChartCurve:
        """Return the curve with this key, created or restyled."""
        drawn = self._items.get(key)
        if drawn is None:
            drawn = self._items[key] = _CurveItems(label, colour, is_dashed, ChartCurve(self._weight))
            for item in drawn.items():
                self.plot.view.addItem(item, ignoreBounds=True)
        drawn.label, drawn.colour, drawn.is_dashed = label, colour, is_dashed
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
            self.legend.show_rows([(key, d.label, d.colour, d.is_dashed) for key, d in self._items.items()])

    def set_title(self, title: str) -> None:
        self.title = title
        self._title.setText(title)

    def set_empty_text(self, text: str) -> None:
        """The text in a chart without points."""
        self._nothing.setText(text)

    def set_smoothing(self, weight: float) -> None:
        self._weight = weight
        for drawn in self._items.values():
            drawn.curve.set_weight(weight)
        self.schedule_redraw()

    def set_log(self, is_log: bool) -> None:
        self.is_log = is_log
        self.schedule_redraw()

    def set_x_kind(self, kind: str) -> None:
        """By what the curves' x is to be read; filling them accordingly is the owner's."""
        if kind != self.x_kind:
            self.x_kind = kind
            self._zoom = None
            self.schedule_redraw()

    # --- looking

    def zoom(self, begin: float, end: float) -> None:
        if end > begin:
            self._zoom = (begin, end)
            self.redraw()

    @property
    def is_zoomed(self) -> bool:
        return self._zoom is not None

    def reset_zoom(self) -> None:
        self._zoom = None
        self.redraw()

    # --- drawing

    def schedule_redraw(self) -> None:
        """Draws what has changed as soon as it may, and only if it can be seen."""
        self._needs_redraw = True
        if self.isVisible():
            self._start_timer()

    def _start_timer(self) -> None:
        """At once after a pause, otherwise at most every REDRAW_MS."""
        if not self._timer.isActive():
            pause_ms = 1000 * (time.monotonic() - self._redrawn_at)
            self._timer.start(max(0, round(REDRAW_MS - pause_ms)))

    def _redraw_if_visible(self) -> None:
        if self._needs_redraw and not self.plot.viewport().visibleRegion().isEmpty():
            self.redraw()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._needs_redraw:
            self._start_timer()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self._needs_redraw:
            self._start_timer()  # it has just come into sight

    def redraw(self) -> None:
        self._needs_redraw = False
        curves = [drawn.curve for drawn in self._items.values() if len(drawn.curve)]
        self._nothing.setVisible(not curves)
        self._nothing.setGeometry(self.plot.rect())
        across = self._zoom or self._full_x_range(curves)
        bins = max(50, int(self.plot.view.width() / 2))
        parts = []
        for drawn in self._items.values():
            reduced = drawn.curve.reduce(*across, bins)
            reduced = to_log_scale(reduced) if self.is_log else reduced
            drawn.set_data(reduced)
            inside = (reduced.x >= across[0]) & (reduced.x <= across[1])
            parts += [part[inside] for part in (reduced.low, reduced.high, reduced.smooth)]
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

    def repaint_theme(self) -> None:
        """Takes up the colours of the theme in use."""
        self.plot.apply_theme(theme.tokens())
        self.expand.setIcon(theme.icon("mdi6.arrow-expand", "muted"))
        self._restyle_curves()

    # --- values

    def _show_crosshair(self, x: float | None) -> None:
        if self.isVisible():
            self.plot.show_crosshair(x)
            self._show_values()

    def _show_values(self) -> None:
        """Of all curves: those under the crosshair, or their newest where there is none."""
        x = self.crosshair.x
        found = {}
        for key, drawn in self._items.items():
            at = drawn.curve.last_point() if x is None else drawn.curve.value_at(x)
            if at is not None and math.isfinite(at[2]):
                found[key] = at
        place = "" if x is None else self.format_x(x)
        if self.legend is not None:
            self.legend.show_values({key: format_si_number(at[2]) for key, at in found.items()})
            self._values.setText(place)
        elif len(found) == 1:
            (at,) = found.values()
            raw = f" (raw {format_si_number(at[1])})" if x is not None and self._weight > 0 else ""
            self._values.setText(
                f"{self.format_x(at[0]) + '   ' if x is not None else ''}{format_si_number(at[2])}{raw}"
            )
        else:
            self._values.setText(place)

    def format_x(self, x: float) -> str:
        if self.x_kind == "wall":
            return format_timestamp(x).partition(" ")[2]
        if self.x_kind == "relative":
            return format_duration(x)
        return f"{self.x_kind} {x:,.0f}"

    # --- taking away

    def _show_menu(self, place: QPoint) -> None:
        menu = self.menu()
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(self.plot.mapToGlobal(place))

    def menu(self) -> QMenu:
        menu = QMenu(self)
        rows = (
            ("Reset zoom", "mdi6.magnify-remove-outline", self.reset_zoom),
            ("Copy image", "mdi6.content-copy", self.copy),
            ("Save as PNG…", "mdi6.file-image-outline", lambda: self._save_as("png", self.save_png)),
            ("Save as SVG…", "mdi6.svg", lambda: self._save_as("svg", self.save_svg)),
            ("Save as CSV…", "mdi6.file-delimited-outline", lambda: self._save_as("csv", self.save_csv)),
        )
        for title, icon, call in rows:
            action = QAction(theme.icon(icon), title, menu)
            action.triggered.connect(call)
            menu.addAction(action)
        return menu

    def _save_as(self, ending: str, save: Any) -> None:
        wanted = f"{self.title.replace('/', '_')}.{ending}"
        path, _ = QFileDialog.getSaveFileName(self, f"Save chart as {ending.upper()}", wanted, f"*.{ending}")
        if path:
            save(Path(path))

    def to_image(self) -> QImage:
        """As on the screen, sharper."""
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
        # The scene by itself: as a widget it would come as one picture of pixels.
        self.plot.render(painter, QRectF(self.plot.geometry()), self.plot.viewport().rect())
        painter.end()

    def save_csv(self, path: Path) -> None:
        path.write_text("\n".join(self.csv_lines()) + "\n")

    def csv_lines(self) -> Iterator[str]:
        yield f"run,tag,{self.x_kind},value,smoothed"
        for drawn in self._items.values():
            curve = drawn.curve
            label = drawn.label.replace(",", " ")
            for x, y, smooth in np.column_stack([curve.x, curve.y, curve.smooth]).tolist():
                yield f"{label},{self.title},{x:.15g},{y:.9g},{smooth:.9g}"
