"""Draws one image, or those of several environments as a grid: to fit, pixel by pixel, or zoomed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QHideEvent,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QShowEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from mosaic.base.fastlane import CONNECTED, UNAVAILABLE, WAITING, describe_cost, grid_shape
from mosaic.base.formatting import capitalize_first, format_si_number
from mosaic.window import theme
from mosaic.window.lanes import FrameCell, Lanes
from mosaic.window.widgets import column, create_timer, with_object_name
from mosaic.window.workbench import Workbench

CELL_GAP_PX = 2
"""Between the cells of a grid."""
MAX_PIXELATED_SIDE_PX = 256
"""Images up to this size are enlarged without smoothing: the pixels of a small world stay squares."""
SCALE_RANGE = (0.1, 32.0)
ZOOM_STEP = 1.25
PIXELATED_FROM_SCALE = 4.0
"""From this scale on, frames are not smoothed."""
DRAG_THRESHOLD_PX = 4
TEXT_PADDING_PX = 6


class GridArrangement(NamedTuple):
    scale: float
    cells: list[QRect]
    """In the order of the grid, centered in the view."""

    @property
    def bounds(self) -> QRect:
        return self.cells[0].united(self.cells[-1]) if self.cells else QRect()


def arrange_grid(count: int, cell: QSize, room: QSize, scale: float | None = None) -> GridArrangement:
    """Arrange cells of one size in the grid that best fits the shape of the room; no scale: the largest that fits."""
    if not count or cell.isEmpty() or room.isEmpty():
        return GridArrangement(1.0, [])
    shape = grid_shape(count, room.width() / room.height(), cell.width() / cell.height())
    across, down = CELL_GAP_PX * (shape.columns - 1), CELL_GAP_PX * (shape.rows - 1)
    if scale is None:
        scale = min(
            (room.width() - across) / (shape.columns * cell.width()),
            (room.height() - down) / (shape.rows * cell.height()),
        )
        scale = max(scale, 1 / max(cell.width(), cell.height()))
    width, height = max(1, int(cell.width() * scale)), max(1, int(cell.height() * scale))
    left = (room.width() - shape.columns * width - across) // 2
    top = (room.height() - shape.rows * height - down) // 2
    return GridArrangement(
        scale,
        [
            QRect(
                left + at % shape.columns * (width + CELL_GAP_PX),
                top + at // shape.columns * (height + CELL_GAP_PX),
                width,
                height,
            )
            for at in range(count)
        ],
    )


def is_smooth(image: QImage, scale: float) -> bool:
    """Whether to smooth: what is reduced always, what is enlarged only if it is not a small world of pixels."""
    return scale < 1 or (max(image.width(), image.height()) > MAX_PIXELATED_SIDE_PX and scale < PIXELATED_FROM_SCALE)


class FrameGrid(QWidget):
    """Wheel: zoom. Drag: move. Double click: fit. Click on a cell: show it alone."""

    env_clicked = Signal(int)
    """The environment whose cell was clicked."""
    escape_pressed = Signal()
    """Esc."""
    env_step_requested = Signal(int)
    """An arrow key: to the next environment or the one before."""
    hovered_env_changed = Signal(object)
    """The environment under the mouse, or None."""
    zoom_changed = Signal()

    def __init__(self, has_text: bool = True) -> None:
        """`has_text`: leave room for a line of text below the frames."""
        super().__init__()
        self._has_text = has_text
        self.cells: list[FrameCell] = []
        self.text = ""
        self._message = ""
        self._icon = ""
        self._scale: float | None = None
        self._pan = QPointF()
        self._hovered_env: int | None = None
        self._press_position: QPointF | None = None
        self._is_dragged = False
        self._arrangement = GridArrangement(1.0, [])
        self.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(120, 90)

    def sizeHint(self) -> QSize:
        return QSize(480, 320)

    # --- what is shown

    def show_cells(self, cells: Sequence[FrameCell], new: set[int] | None = None) -> None:
        """`new`: the environments whose frame has changed; None: possibly all."""
        is_same = [_layout_key(cell) for cell in cells] == [_layout_key(cell) for cell in self.cells]
        self.cells = list(cells)
        if new is None or not is_same:
            self._arrange()
            self.update()
            return
        for cell, rect in zip(self.cells, self.rects(), strict=False):
            if cell.env in new:
                self.update(rect)

    def show_text(self, text: str) -> None:
        """Show a line with the frames: below them, or over them where they are zoomed."""
        if text != self.text:
            before = self._text_rect()
            self.text = text
            self.update(before.united(self._text_rect()))

    def show_message(self, text: str, icon: str = "") -> None:
        """Show a text, and an icon above it, while there is no frame."""
        if (text, icon) != (self._message, self._icon):
            self._message, self._icon = text, icon
            if not self.has_image:
                self.update()

    @property
    def message(self) -> str:
        """The text in the middle; empty while there is a frame."""
        return "" if self.has_image else self._message

    @property
    def has_image(self) -> bool:
        return any(cell.image is not None for cell in self.cells)

    def rects(self) -> list[QRect]:
        """Return the rectangles of the cells."""
        offset = self._pan.toPoint()
        return [rect.translated(offset) for rect in self._arrangement.cells]

    # --- zoom

    @property
    def scale(self) -> float:
        return self._arrangement.scale

    @property
    def is_fit(self) -> bool:
        return self._scale is None

    def fit(self) -> None:
        self._zoom(None)

    def show_actual_pixels(self) -> None:
        """One pixel of the frame for one of the screen."""
        self._zoom(1 / self.devicePixelRatioF())

    def zoom_by(self, factor: float, around: QPointF | None = None) -> None:
        scale = min(max(self.scale * factor, SCALE_RANGE[0]), SCALE_RANGE[1])
        middle = QRectF(self.rect()).center()
        fixed = (around or middle) - middle
        self._zoom(scale, fixed + (self._pan - fixed) * (scale / self.scale))

    def _zoom(self, scale: float | None, pan: QPointF | None = None) -> None:
        self._scale = scale
        self._pan = pan or QPointF()
        self._arrange()
        self.update()
        self.zoom_changed.emit()

    def _arrange(self) -> None:
        first = next((cell.image for cell in self.cells if cell.image is not None), None)
        size = first.size() if first is not None else QSize()
        room = self.size()
        if self._scale is None and self._has_text:  # it is over the frames only where they are zoomed
            room.setHeight(max(1, room.height() - self._text_height() - theme.GAP))
        self._arrangement = arrange_grid(len(self.cells), size, room, self._scale)
        self._clamp_pan()

    def _clamp_pan(self) -> None:
        """A frame that is larger than the view covers it; a smaller one is centered."""
        bounds = self._arrangement.bounds
        max_x = max(0.0, (bounds.width() - self.width()) / 2)
        max_y = max(0.0, (bounds.height() - self.height()) / 2)
        self._pan = QPointF(min(max(self._pan.x(), -max_x), max_x), min(max(self._pan.y(), -max_y), max_y))

    # --- drawing

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        t = theme.tokens()
        painter.fillRect(event.rect(), QColor(t.window))
        if not self.has_image:
            self._paint_message(painter)
            return
        region = event.region()
        is_grid = len(self.cells) > 1
        for cell, rect in zip(self.cells, self.rects(), strict=False):
            if not region.intersects(rect):
                continue
            if cell.image is None:
                painter.fillRect(rect, QColor(t.raised))
            else:
                self._paint_image(painter, cell.image, rect)
            if is_grid:
                self._paint_index(painter, str(cell.env), rect)
            if is_grid and cell.env == self._hovered_env:
                painter.setPen(QColor(t.accent))
                painter.drawRect(rect.adjusted(0, 0, -1, -1))
        if self.text:
            place, is_over = self._text_position()
            self._paint_text(painter, self.text, place, is_over)

    def _paint_image(self, painter: QPainter, image: QImage, rect: QRect) -> None:
        size = image.size().scaled(rect.size(), Qt.AspectRatioMode.KeepAspectRatio).expandedTo(QSize(1, 1))
        scale = size.width() / image.width()
        target = QRect(QPoint(), size)
        target.moveCenter(rect.center())
        if size != rect.size():
            painter.fillRect(rect, QColor(theme.tokens().raised))
        if scale < 0.5:  # the painter averages four pixels only and would lose thin lines
            smooth = Qt.TransformationMode.SmoothTransformation
            painter.drawImage(target.topLeft(), image.scaled(size, Qt.AspectRatioMode.IgnoreAspectRatio, smooth))
            return
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, is_smooth(image, scale))
        painter.drawImage(target, image)

    def _paint_index(self, painter: QPainter, text: str, rect: QRect) -> None:
        place = QRect(rect.topLeft() + QPoint(4, 4), self._text_size(text))
        if rect.contains(place.adjusted(0, 0, 4, 4)):
            self._paint_text(painter, text, place, is_over=True)

    def _paint_text(self, painter: QPainter, text: str, place: QRect, is_over: bool) -> None:
        painter.save()
        painter.setPen(QColor(theme.tokens().text))
        if is_over:  # white on a shade that is dark enough on any frame
            shade = QColor(theme.HUD_SHADE)
            shade.setAlpha(170)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(shade)
            painter.drawRoundedRect(place, 4, 4)
            painter.setPen(QColor(theme.HUD_TEXT))
        width = place.width() - 2 * TEXT_PADDING_PX
        shown = self.fontMetrics().elidedText(text, Qt.TextElideMode.ElideRight, width)
        painter.drawText(place, Qt.AlignmentFlag.AlignCenter, shown)
        painter.restore()

    def _paint_message(self, painter: QPainter) -> None:
        t = theme.tokens()
        room = self.rect().adjusted(theme.MARGIN, theme.MARGIN, -theme.MARGIN, -theme.MARGIN)
        painter.setPen(QColor(t.muted))
        flags = int(Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap)
        text = painter.boundingRect(room, flags, self._message)
        if self._icon and text.top() - 40 > room.top():
            icon = theme.icon(self._icon, "muted")
            icon.paint(painter, QRect(room.center().x() - 16, text.top() - 40, 32, 32))
        painter.drawText(room, flags, self._message)

    def _text_height(self) -> int:
        return self.fontMetrics().height() + 6

    def _text_size(self, text: str) -> QSize:
        width = self.fontMetrics().horizontalAdvance(text) + 2 * TEXT_PADDING_PX + 2
        return QSize(min(width, self.width()), self._text_height())

    def _text_rect(self) -> QRect:
        return self._text_position()[0] if self.text else QRect()

    def _text_position(self) -> tuple[QRect, bool]:
        """Return where the text is, below the frames where it fits, and whether it is over them."""
        visible = self._arrangement.bounds.translated(self._pan.toPoint()).intersected(self.rect())
        size = self._text_size(self.text)
        left = (self.width() - size.width()) // 2
        if self.height() - visible.bottom() > size.height() + theme.GAP:
            return QRect(QPoint(left, visible.bottom() + theme.GAP), size), False
        return QRect(QPoint(left, visible.bottom() - size.height() - theme.GAP), size), True

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._arrange()
        super().resizeEvent(event)

    # --- mouse and keys

    def wheelEvent(self, event: QWheelEvent) -> None:
        if self.has_image:
            self.zoom_by(ZOOM_STEP ** (event.angleDelta().y() / 120), event.position())
            event.accept()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton:
            self._press_position, self._is_dragged = event.position(), False

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._press_position is None:
            self._update_hover(event.position().toPoint())
            return
        moved = event.position() - self._press_position
        if self._is_dragged or moved.manhattanLength() > DRAG_THRESHOLD_PX:
            self._is_dragged = True
            self._press_position = event.position()
            self._pan += moved
            self._clamp_pan()
            self.update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() is not Qt.MouseButton.LeftButton:
            return
        was_click = self._press_position is not None and not self._is_dragged
        self._press_position = None
        env = self._env_at(event.position().toPoint())
        if was_click and env is not None and len(self.cells) > 1:
            self.env_clicked.emit(env)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.fit()

    def leaveEvent(self, event: QEvent) -> None:
        self._update_hover(QPoint(-1, -1))

    def _env_at(self, at: QPoint) -> int | None:
        return next((cell.env for cell, rect in zip(self.cells, self.rects(), strict=False) if rect.contains(at)), None)

    def _update_hover(self, at: QPoint) -> None:
        env = self._env_at(at)
        if env == self._hovered_env:
            return
        self._hovered_env = env
        is_grid = len(self.cells) > 1
        self.setCursor(Qt.CursorShape.PointingHandCursor if is_grid and env is not None else Qt.CursorShape.ArrowCursor)
        if is_grid:
            self.update()
        self.hovered_env_changed.emit(env)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        key = event.key()
        if key == Qt.Key.Key_Escape:
            self.escape_pressed.emit()
        elif key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            self.env_step_requested.emit(1 if key == Qt.Key.Key_Right else -1)
        elif key in (Qt.Key.Key_Plus, Qt.Key.Key_Equal, Qt.Key.Key_Minus):
            self.zoom_by(1 / ZOOM_STEP if key == Qt.Key.Key_Minus else ZOOM_STEP)
        elif key == Qt.Key.Key_0:
            self.fit()
        elif key == Qt.Key.Key_1:
            self.show_actual_pixels()
        else:
            super().keyPressEvent(event)


def _layout_key(cell: FrameCell) -> tuple[int, QSize | None]:
    return cell.env, None if cell.image is None else cell.image.size()


# --- The live frames of a run, and the line of text with them. They are read only while they are visible.


POLL_MS = 16
IDLE_POLL_MS = 100
"""While there are no frames."""
SESSION_POLL_MS = 8
"""While a session is played: a frame is shown soon after the key that caused it."""
TEXT_INTERVAL_S = 0.1
SEPARATOR = "   "
FRAME_STATE_ICONS = {UNAVAILABLE: "mdi6.monitor-off", WAITING: "mdi6.timer-sand", CONNECTED: "mdi6.monitor-eye"}


def to_sentence(text: str) -> str:
    """Capitalize `the run has ended` and add the period."""
    sentence = capitalize_first(text)
    return sentence if not sentence or sentence[-1] in ".…!?)" else f"{sentence}."


def format_short_hud(cells: Sequence[FrameCell]) -> str:
    """Return what matters most of one environment or several."""
    huds = [cell.hud for cell in cells if cell.hud]
    if not huds:
        return ""
    mean = format_si_number(sum(hud.episodic_return for hud in huds) / len(huds))
    if len(cells) > 1:
        return SEPARATOR.join((f"{len(cells)} environments", f"mean return {mean}"))
    return SEPARATOR.join((f"episode {huds[0].episode:,}", f"return {mean}"))


def format_hud(
    cells: Sequence[FrameCell], frame_rate_hz: float, hovered_env: int | None = None, limit_hint: str = ""
) -> str:
    """Return the status of one environment, of the one under the pointer, or the range of several.

    `limit_hint`: how to have more frames, where their cost limits them.
    """
    huds = [cell.hud for cell in cells if cell.hud]
    if not huds:
        return ""
    one = huds[0] if len(cells) == 1 else next((hud for hud in huds if hud.env == hovered_env), None)
    if one is not None:
        parts = [f"environment {one.env}"] if len(cells) > 1 or one.env else []
        parts += [f"episode {one.episode:,}", f"step {one.step:,}"]
        parts += [f"reward {format_si_number(one.reward)}", f"return {format_si_number(one.episodic_return)}"]
    else:
        returns = [hud.episodic_return for hud in huds]
        episodes = _format_range([hud.episode for hud in huds])
        mean = format_si_number(sum(returns) / len(returns))
        parts = [f"{len(cells)} environments", f"episode {episodes}", f"return {_format_range(returns)}, mean {mean}"]
    hint = f": {limit_hint}" if limit_hint and any(hud.is_limited for hud in huds) else ""
    parts.append(f"{frame_rate_hz:.1f} frames/s, {describe_cost(huds)}".rstrip(", ") + hint)
    return SEPARATOR.join(parts)


def _format_range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return format_si_number(low) if low == high else f"{format_si_number(low)} to {format_si_number(high)}"


class FramesView(QWidget):
    """The frames of all environments; a click on one shows it alone, Esc shows all again."""

    changed = Signal()
    """The status line or the shown environment has changed."""
    frames_received = Signal()
    """New frames are in `lanes.cells`."""

    def __init__(self, workbench: Workbench, is_small: bool = False, is_session: bool = False) -> None:
        """`is_small`: next to other widgets, with the shortest line of text.

        `is_session`: of a play session, without a line of text, and polled often also while it waits for a key.
        """
        super().__init__()
        self._workbench = workbench
        self._is_small = is_small
        self._is_session = is_session
        self.lanes = Lanes(workbench.bridge, workbench.runs, workbench.events, workbench.is_remote, self)
        self.grid = with_object_name(FrameGrid(has_text=not is_session), "frames.grid")
        self.is_kept_active = False
        """Keeps reading while hidden, for a recording."""
        self.limit_hint = ""
        """How to have more frames, where their cost limits them."""
        self._hovered_env: int | None = None
        self._next_text_at = 0.0
        self._timer = create_timer(self, IDLE_POLL_MS, self._poll)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        column(self.grid, parent=self)
        self.lanes.changed.connect(self._update_status)
        self.grid.env_clicked.connect(self.show_env)
        self.grid.escape_pressed.connect(lambda: self.show_env(None))
        self.grid.env_step_requested.connect(self._step)
        self.grid.hovered_env_changed.connect(self._on_hover)

    # --- what is shown

    def show_run(self, run_id: str) -> None:
        if run_id == self.lanes.run_id:
            return
        self.lanes.show_run(run_id)
        self._refresh()
        if self.isVisible():
            self._poll()

    def show_env(self, env: int | None) -> None:
        """Show one environment alone; None: all of them."""
        if env == self.env:
            return
        self.lanes.select_envs(() if env is None else (env,))
        self.grid.fit()
        self._refresh()

    @property
    def env(self) -> int | None:
        """The environment that is shown alone."""
        return self.lanes.envs[0] if self.lanes.envs else None

    def _step(self, by: int) -> None:
        if self.env is not None and self.env + by >= 0:
            self.show_env(self.env + by)

    def _on_hover(self, env: int | None) -> None:
        self._hovered_env = env
        self.lanes.ask(self.lanes.request, env)
        self._update_text()

    def _refresh(self) -> None:
        self.grid.show_cells(self.lanes.cells)
        self._update_status()

    # --- reading while visible

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._timer.start()
        self._poll()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if not self.is_kept_active:
            self.suspend()

    def suspend(self) -> None:
        self._timer.stop()
        self.lanes.suspend()

    def keep_active(self, is_kept_active: bool) -> None:
        self.is_kept_active = is_kept_active
        if not is_kept_active and not self.isVisible():
            self.suspend()

    def _poll(self) -> None:
        if self.window().isMinimized() and not self.is_kept_active:
            self.lanes.suspend()
            return
        before = len(self.lanes.cells)
        new = self.lanes.poll()
        if new or len(self.lanes.cells) != before:
            if self.isVisible():
                self.grid.show_cells(self.lanes.cells, new)
            self.frames_received.emit()
        if time.monotonic() >= self._next_text_at:
            self._update_text()

    def _update_status(self) -> None:
        status = self.lanes.status
        interval = POLL_MS if status.state == CONNECTED else IDLE_POLL_MS
        if self._is_session and not self.lanes.is_suspended:
            interval = SESSION_POLL_MS
        if self._timer.interval() != interval:
            self._timer.setInterval(interval)
        self.grid.show_message(to_sentence(status.text), FRAME_STATE_ICONS[status.state])
        self._update_text()
        self.changed.emit()

    def _update_text(self) -> None:
        self._next_text_at = time.monotonic() + TEXT_INTERVAL_S
        status, cells = self.lanes.status, self.lanes.cells
        if self._is_session:
            return
        if status.state != CONNECTED and self.grid.has_image:
            self.grid.show_text(to_sentence(status.text))
        elif self._is_small:
            self.grid.show_text(format_short_hud(cells))
        else:
            self.grid.show_text(format_hud(cells, self.lanes.frame_rate_hz(), self._hovered_env, self.limit_hint))
