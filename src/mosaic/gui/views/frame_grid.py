"""Draws one image, or those of several environments as a grid: to fit, pixel by pixel, or zoomed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from mosaic.fastlane import grid_shape
from mosaic.gui import theme
from mosaic.gui.models.lanes import FrameCell

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
