"""The parts of a chart: the plot with its axes and bands, the x axis that several share, and the legend."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, QObject, QPointF, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPainterPath, QPaintEvent, QPen, QWheelEvent
from PySide6.QtWidgets import QGraphicsGridLayout, QGraphicsWidget, QSizePolicy, QWidget

from mosaic.base.formatting import format_duration
from mosaic.window import theme
from mosaic.window.curves import Floats, round_step

TIME_TICK_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
WHEEL_ZOOM_FACTOR = 0.8
"""What is left of the range after one notch."""
CROSSHAIR_INTERVAL_MS = 33
"""A mouse reports its moves more often than needed."""
LEGEND_WIDTH, LEGEND_MARK_WIDTH = 240, 20
XRange = tuple[float, float]


def format_ticks(values: list[float], spacing: float) -> list[str]:
    """Format round numbers with SI prefixes and just enough digits to distinguish neighbors."""
    largest = max((abs(value) for value in values), default=0.0)
    decimals = math.ceil(-math.log10(spacing) - 1e-6) if spacing > 0 else 0

    def format_tick(value: float) -> str:
        size = abs(value)
        if size <= spacing / 1000:
            return "0"
        if largest < 1e-3:
            return f"{value:.{max(3, math.floor(math.log10(size)) + 1 + decimals)}g}"
        # Whole numbers up to 10,000 are short enough; among larger ones, each has the unit that shortens it most.
        units = ((1e9, 9, "G"), (1e6, 6, "M"), (1e3, 3, "k")) if largest >= 1e4 else ()
        scale, power, unit = next((unit for unit in units if size >= unit[0] * (1 - 1e-9)), (1.0, 0, ""))
        text = f"{value / scale:,.{max(0, decimals + power)}f}"
        return (text.rstrip("0").rstrip(".") if unit and "." in text else text) + unit

    return [format_tick(value) for value in values]


class Axis(pg.AxisItem):  # type: ignore[misc]
    def __init__(self, orientation: str) -> None:
        super().__init__(orientation, maxTickLength=0)
        self.kind = "number"
        """Or `count` (whole numbers), `relative` (seconds), `wall` (seconds since the epoch), `log` (powers of ten)."""
        self._min_spacing_px, self._max_ticks = (32, 8) if orientation == "left" else (64, 12)
        """Minimum of pixels between two ticks, and maximum of ticks."""
        self.enableAutoSIPrefix(False)
        self.setStyle(autoExpandTextSpace=False, hideOverlappingLabels=False, tickTextOffset=6)
        if orientation == "left":
            self.setWidth(60)
        else:
            self.setHeight(22)

    def apply_theme(self, tokens: theme.Tokens) -> None:
        self.setTickFont(theme.text_font(-2))
        self.setTextPen(tokens.muted)
        self.setPen(pg.mkPen(None))
        self.setTickPen(tokens.line if theme.is_dark() else tokens.faint)
        self.setGrid(255 if self.orientation == "left" else False)

    def boundingRect(self) -> QRectF:
        """Add room for the labels at both ends, which would be omitted otherwise."""
        return QRectF(super().boundingRect()).adjusted(-24, -theme.GAP, 24, theme.GAP)

    def set_kind(self, kind: str) -> None:
        if kind != self.kind:
            self.kind = kind
            self.picture = None
            self.update()

    def tickValues(self, minVal: float, maxVal: float, size: float) -> list[tuple[float, Floats]]:
        span = maxVal - minVal
        if span <= 0 or size <= 0:
            return []
        most = min(self._max_ticks, max(2.0, size / self._min_spacing_px))
        if self.kind == "log":
            return _log_ticks(minVal, maxVal, most)
        spacing = round_step(span / most)
        if self.kind == "count":
            spacing = max(1.0, spacing)
        if self.kind in ("relative", "wall") and spacing >= 1:
            days = 86400 * round_step(span / most / 86400)
            spacing = next((float(each) for each in TIME_TICK_STEPS_S if each >= span / most), days)
        first, last = math.ceil(minVal / spacing - 1e-6), math.floor(maxVal / spacing + 1e-6)
        return [(spacing, np.arange(first, last + 1, dtype=np.float64) * spacing)]

    def tickStrings(self, values: Floats, scale: float, spacing: float) -> list[str]:
        if self.kind == "log":
            return [format_ticks([10**value], 10 ** math.floor(value + 1e-9))[0] for value in values]
        if self.kind == "relative":
            return [
                "0" if not value else f"{value:.0f}s" if value < 60 and spacing >= 1 else format_duration(value)
                for value in values
            ]
        if self.kind == "wall":
            form = "%H:%M:%S" if spacing < 60 else "%H:%M" if spacing < 86400 else "%b %d"
            return [time.strftime(form, time.localtime(value)) for value in values]
        return format_ticks([float(value) for value in values], spacing)


def _log_ticks(low: float, high: float, max_ticks: float) -> list[tuple[float, Floats]]:
    if high - low >= 1:
        stride = max(1, math.ceil((high - low) / max_ticks))
        return [(1.0, np.arange(math.ceil(low - 1e-6), math.floor(high + 1e-6) + 1, stride, dtype=np.float64))]
    spacing = round_step((10**high - 10**low) / max_ticks)
    ticks = np.arange(math.ceil(10**low / spacing), math.floor(10**high / spacing) + 1) * spacing
    return [(1.0, np.log10(ticks[ticks > 0]).astype(np.float64))]


class Band(pg.GraphicsObject):  # type: ignore[misc]
    """The area between two lines; a gap where one of them has one."""

    def __init__(self) -> None:
        super().__init__()
        self._path = QPainterPath()
        self._brush = pg.mkBrush(None)
        self.setZValue(-10)

    def set_brush(self, brush: Any) -> None:
        self._brush = brush
        self.update()

    def set_data(self, x: Floats, low: Floats, high: Floats) -> None:
        self.prepareGeometryChange()
        self._path = QPainterPath()
        known = np.isfinite(low) & np.isfinite(high)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(np.int8)))
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            if end - begin > 1 and bool((high[begin:end] > low[begin:end]).any()):
                around = np.concatenate([x[begin:end], x[begin:end][::-1]])
                edge = np.concatenate([high[begin:end], low[begin:end][::-1]])
                self._path.addPolygon(pg.functions.arrayToQPolygonF(around, edge))
        self.update()

    def boundingRect(self) -> QRectF:
        return self._path.boundingRect()

    def paint(self, painter: QPainter, *_: Any) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        painter.fillPath(self._path, self._brush)


class _PlotViewBox(pg.ViewBox):  # type: ignore[misc]
    """Left drag selects a range of x, Shift or the middle button pans. The chart applies the range."""

    def __init__(self, plot: Plot) -> None:
        super().__init__(enableMenu=False, defaultPadding=0.0)
        self._plot = plot
        self.disableAutoRange()
        self._selection = pg.LinearRegionItem(movable=False)
        self._selection.hide()
        self.addItem(self._selection, ignoreBounds=True)

    def apply_theme(self, tokens: theme.Tokens) -> None:
        color = pg.mkColor(tokens.accent)
        color.setAlphaF(0.18)
        self._selection.setBrush(pg.mkBrush(color))
        for line in self._selection.lines:
            line.setPen(pg.mkPen(tokens.accent))

    def mouseDragEvent(self, ev: Any, axis: int | None = None) -> None:
        ev.accept()
        if ev.button() == Qt.MouseButton.RightButton:
            return
        is_pan = ev.button() == Qt.MouseButton.MiddleButton or ev.modifiers() & Qt.KeyboardModifier.ShiftModifier
        begin, now = self.mapToView(ev.buttonDownPos()).x(), self.mapToView(ev.pos()).x()
        if is_pan or axis is not None:
            moved = self.mapToView(ev.lastPos()).x() - now
            low, high = self.viewRange()[0]
            self._plot.zoom_requested.emit(low + moved, high + moved)
        elif ev.isFinish():
            self._selection.hide()
            if abs(ev.pos().x() - ev.buttonDownPos().x()) > 4:
                self._plot.zoom_requested.emit(min(begin, now), max(begin, now))
        else:
            self._selection.setRegion((begin, now))
            self._selection.show()

    def wheelEvent(self, ev: Any, axis: int | None = None) -> None:
        ev.accept()
        factor = WHEEL_ZOOM_FACTOR ** (ev.delta() / 120)
        center = self.mapToView(ev.pos()).x()
        low, high = self.viewRange()[0]
        self._plot.zoom_requested.emit(center - (center - low) * factor, center + (high - center) * factor)


class Plot(pg.GraphicsView):  # type: ignore[misc]
    """Two axes and a faint grid. Dragging asks for a range of x, a double click for all of it.

    Much lighter than pyqtgraph's PlotWidget, whose menus alone take longer to build than all of this.
    """

    zoom_requested = Signal(float, float)
    """The user asks for this range of x."""
    reset_requested = Signal()
    hover_changed = Signal(object)
    """The x under the mouse; None when it left."""
    resized = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, useOpenGL=False)
        self.setAntialiasing(True)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.wheel_needs_ctrl = False
        """Set where the wheel alone scrolls the page."""
        self.view = _PlotViewBox(self)
        self.left, self.bottom = Axis("left"), Axis("bottom")
        middle = QGraphicsWidget()
        grid = QGraphicsGridLayout(middle)
        grid.setContentsMargins(0, theme.GAP, 3 * theme.GAP, 0)
        grid.setSpacing(0)
        grid.addItem(self.left, 0, 0)
        grid.addItem(self.view, 0, 1)
        grid.addItem(self.bottom, 1, 1)
        self.setCentralItem(middle)
        for axis in (self.left, self.bottom):
            axis.linkToView(self.view)
            axis.setZValue(-1000)  # the grid lies behind the data
        self.crosshair_line = pg.InfiniteLine(angle=90)
        self.crosshair_line.hide()
        self.view.addItem(self.crosshair_line, ignoreBounds=True)
        self.view.sigResized.connect(lambda *_: self.resized.emit())
        self._style = theme.tokens(), theme.text_font(-2)
        self._apply_theme(theme.tokens())

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        style = theme.tokens(), theme.text_font(-2)
        if event.type() is QEvent.Type.StyleChange and style != self._style:
            self._style = style
            self._apply_theme(theme.tokens())

    def _apply_theme(self, tokens: theme.Tokens) -> None:
        self.setBackground(tokens.surface)
        self.left.apply_theme(tokens)
        self.bottom.apply_theme(tokens)
        self.view.apply_theme(tokens)
        self.crosshair_line.setPen(pg.mkPen(tokens.muted, width=1, style=Qt.PenStyle.DashLine))

    def show_crosshair(self, x: float | None) -> None:
        self.crosshair_line.setVisible(x is not None)
        if x is not None:
            self.crosshair_line.setValue(x)

    def mouseMoveEvent(self, ev: QMouseEvent) -> None:
        super().mouseMoveEvent(ev)
        place = self.view.mapFromScene(self.mapToScene(ev.position().toPoint()))
        inside = self.view.rect().contains(QPointF(place))
        self.hover_changed.emit(self.view.mapToView(place).x() if inside else None)

    def mouseDoubleClickEvent(self, ev: QMouseEvent) -> None:
        if ev.button() == Qt.MouseButton.LeftButton:
            self.reset_requested.emit()

    def leaveEvent(self, ev: QEvent) -> None:
        super().leaveEvent(ev)
        self.hover_changed.emit(None)

    def wheelEvent(self, ev: QWheelEvent) -> None:
        if self.wheel_needs_ctrl and not ev.modifiers() & Qt.KeyboardModifier.ControlModifier:
            ev.ignore()
            return
        super().wheelEvent(ev)


class SharedAxis(QObject):
    """What charts with the same x axis share: the x under the mouse and, where they are linked, the range of x."""

    moved = Signal(object)
    """The crosshair, to this x; None: gone."""
    range_changed = Signal()
    """To `range`."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.x: float | None = None
        self.is_linked = True
        self._kind = "step"
        self._range: XRange | None = None
        """The last one that was chosen in a chart."""
        self._timer = QTimer(self, singleShot=True, interval=CROSSHAIR_INTERVAL_MS)
        self._timer.timeout.connect(lambda: self.moved.emit(self.x))

    @property
    def range(self) -> XRange | None:
        """The range that all charts show; None for the whole of each, and where they are not linked."""
        return self._range if self.is_linked else None

    def move_to(self, x: float | None) -> None:
        if x != self.x:
            self.x = x
            if not self._timer.isActive():
                self._timer.start()

    def set_range(self, x_range: XRange | None) -> None:
        if x_range != self._range:
            self._range = x_range
            if self.is_linked:
                self.range_changed.emit()

    def set_linked(self, is_linked: bool) -> None:
        """When charts become linked, all of them show the range that was chosen last."""
        if is_linked != self.is_linked:
            self.is_linked = is_linked
            if is_linked:
                self.range_changed.emit()

    def set_kind(self, kind: str) -> None:
        """Set what is on the axis. A range of steps is none of seconds."""
        if kind != self._kind:
            self._kind = kind
            self.move_to(None)
            self.set_range(None)


class LegendRow(NamedTuple):
    key: str
    label: str
    color: QColor
    is_dashed: bool


class Legend(QWidget):
    """The color, name and value of each curve. Painted, since the values change with every move of the mouse."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("legend")
        self._rows: Sequence[LegendRow] = ()
        self._values: Mapping[str, str] = {}
        self.setFixedWidth(LEGEND_WIDTH)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Expanding)

    def show_rows(self, rows: Sequence[LegendRow]) -> None:
        self._rows = rows
        self.setToolTip("\n".join(row.label for row in rows))
        self.update()

    def show_values(self, values: Mapping[str, str]) -> None:
        if values != self._values:
            self._values = values
            self.update()

    def _row_height(self) -> int:
        return self.fontMetrics().height() + 6

    def minimumSizeHint(self) -> QSize:
        return QSize(LEGEND_WIDTH, self._row_height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        tokens, metrics, height = theme.tokens(), self.fontMetrics(), self._row_height()
        left, right = Qt.AlignmentFlag.AlignVCenter, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight
        capacity = max(0, self.height() // height)
        rows = self._rows if len(self._rows) <= capacity else self._rows[: capacity - 1]
        for number, row in enumerate(rows):
            top = number * height
            painter.setPen(QPen(row.color, 2.5, Qt.PenStyle.DashLine if row.is_dashed else Qt.PenStyle.SolidLine))
            painter.drawLine(QPointF(0, top + height / 2), QPointF(LEGEND_MARK_WIDTH - 6, top + height / 2))
            value = self._values.get(row.key, "")
            room = self.width() - LEGEND_MARK_WIDTH - metrics.horizontalAdvance(value) - theme.GAP
            name = metrics.elidedText(row.label, Qt.TextElideMode.ElideMiddle, room)
            painter.setPen(QColor(tokens.text))
            painter.drawText(QRectF(LEGEND_MARK_WIDTH, top, room, height), left, name)
            painter.drawText(QRectF(0, top, self.width(), height), right, value)
        if len(rows) < len(self._rows):
            painter.setPen(QColor(tokens.muted))
            place = QRectF(LEGEND_MARK_WIDTH, len(rows) * height, self.width(), height)
            painter.drawText(place, left, f"and {len(self._rows) - len(rows)} more")
