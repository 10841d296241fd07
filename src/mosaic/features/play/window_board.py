"""The state of a grid world or a board as tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QPainter, QPainterPath, QPaintEvent, QPen, QPixmap, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from mosaic.contracts.views import SymbolGrid
from mosaic.window import theme

# --- Draws the symbols of grid worlds and boards as tiles: each function draws into a square of 100 by 100.


SIDE = 100.0
DIRECTIONS = {"right": 0.0, "down": 90.0, "left": 180.0, "up": 270.0}
COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
STOPS = {"R": "red", "G": "green", "Y": "yellow", "B": "blue"}
Draw = Callable[[QPainter], None]
_color = theme.tile_color


def _fill(painter: QPainter, color: str) -> None:
    painter.fillRect(QRectF(0, 0, SIDE, SIDE), _color(color))


def _polygon(painter: QPainter, color: str, *points: tuple[float, float]) -> None:
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(_color(color))
    painter.drawPolygon(QPolygonF([QPointF(x, y) for x, y in points]))


def _disk(painter: QPainter, color: str, x: float, y: float, radius: float, radius_y: float | None = None) -> None:
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(_color(color))
    painter.drawEllipse(QPointF(x, y), radius, radius if radius_y is None else radius_y)


def _box(painter: QPainter, color: str, x: float, y: float, width: float, height: float, radius: float = 0.0) -> None:
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(_color(color))
    painter.drawRoundedRect(QRectF(x, y, width, height), radius, radius)


def _line(painter: QPainter, color: str, width: float, *points: tuple[float, float]) -> None:
    pen = QPen(_color(color), width, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin)
    painter.setPen(pen)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawPolyline(QPolygonF([QPointF(x, y) for x, y in points]))


def _letter(painter: QPainter, text: str, color: str, size: float, area: QRectF | None = None) -> None:
    font = QFont(theme.text_font(is_bold=True))
    font.setPixelSize(round(size))
    painter.setFont(font)
    painter.setPen(_color(color))
    painter.drawText(area or QRectF(0, 0, SIDE, SIDE), Qt.AlignmentFlag.AlignCenter, text)


# --- grounds


def _floor(painter: QPainter) -> None:
    _fill(painter, "floor")


def _ice(painter: QPainter) -> None:
    _fill(painter, "ice")
    for start, length in ((18, 26), (50, 34)):
        _line(painter, "shine", 5, (start, start + length), (start + length, start))


def _hole(painter: QPainter) -> None:
    _fill(painter, "ice")
    _disk(painter, "water", 50, 54, 38, 33)
    _disk(painter, "deep", 50, 58, 29, 23)


def _start(painter: QPainter) -> None:
    _fill(painter, "start")
    _letter(painter, "S", "grey", 34, QRectF(4, 2, 30, 36))


def _flag(painter: QPainter) -> None:
    _line(painter, "ink", 6, (34, 18), (34, 84))
    _polygon(painter, "red", (36, 18), (78, 32), (36, 48))
    _line(painter, "ink", 6, (22, 84), (48, 84))


def _goal(painter: QPainter) -> None:
    _fill(painter, "grass")
    _flag(painter)


def _cliff(painter: QPainter) -> None:
    _fill(painter, "rock_dark")
    _polygon(painter, "rock", (0, 0), (100, 0), (100, 22), (84, 40), (66, 24), (48, 44), (30, 26), (14, 40), (0, 24))
    _line(painter, "rock", 4, (22, 66), (34, 58), (46, 70))
    _line(painter, "rock", 4, (60, 84), (74, 74), (86, 86))


def _stop(painter: QPainter, letter: str) -> None:
    _fill(painter, "floor")
    painter.setPen(QPen(_color(STOPS[letter]), 8))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawRect(QRectF(7, 7, 86, 86))
    _letter(painter, letter, STOPS[letter], 28, QRectF(12, 10, 26, 30))


def _wall(painter: QPainter) -> None:
    _fill(painter, "wall")
    for y in (33, 67):
        _line(painter, "wall_line", 4, (0, y), (100, y))
    for x, top in ((50, 0), (25, 33), (75, 33), (50, 67)):
        _line(painter, "wall_line", 4, (x, top), (x, top + 33))


def _lava(painter: QPainter) -> None:
    _fill(painter, "lava")
    for y in (24, 52, 80):
        _line(painter, "lava_light", 7, (6, y), (28, y - 12), (50, y), (72, y - 12), (94, y))


def _colored_floor(painter: QPainter, color: str) -> None:
    _fill(painter, "floor")
    painter.setOpacity(0.45)
    _box(painter, color, 0, 0, SIDE, SIDE)
    painter.setOpacity(1.0)


def _colored_goal(painter: QPainter, color: str) -> None:
    _fill(painter, "floor")
    _box(painter, color, 6, 6, 88, 88, 6)
    _flag(painter)


def _door(painter: QPainter, color: str, state: str) -> None:
    _fill(painter, "floor")
    if state == "open":
        _box(painter, color, 4, 4, 16, 92, 3)
        _disk(painter, "paper", 12, 50, 4)
        return
    _box(painter, color, 4, 4, 92, 92, 4)
    _box(painter, "floor" if state == "closed" else "ink", 14, 14, 72, 72, 3)
    _box(painter, color, 20, 20, 60, 60, 2)
    if state == "closed":
        _disk(painter, "paper", 70, 50, 6)
    else:  # locked: a keyhole
        _disk(painter, "ink", 50, 44, 10)
        _polygon(painter, "ink", (50, 44), (61, 70), (39, 70))


def _key(painter: QPainter, color: str) -> None:
    _fill(painter, "floor")
    painter.setPen(QPen(_color(color), 10))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawEllipse(QPointF(50, 30), 15, 15)
    _line(painter, color, 10, (50, 46), (50, 84))
    _line(painter, color, 10, (50, 68), (66, 68))
    _line(painter, color, 10, (50, 84), (66, 84))


def _ball(painter: QPainter, color: str) -> None:
    _fill(painter, "floor")
    _disk(painter, color, 50, 50, 32)
    painter.setOpacity(0.45)
    _disk(painter, "paper", 40, 38, 9)
    painter.setOpacity(1.0)


def _box_tile(painter: QPainter, color: str) -> None:
    _fill(painter, "floor")
    _box(painter, color, 14, 14, 72, 72, 4)
    _box(painter, "floor", 23, 23, 54, 54, 2)
    _line(painter, color, 9, (23, 50), (77, 50))


def _cross(painter: QPainter) -> None:
    _fill(painter, "floor")
    _line(painter, "cross", 14, (24, 24), (76, 76))
    _line(painter, "cross", 14, (76, 24), (24, 76))


def _circle(painter: QPainter) -> None:
    _fill(painter, "floor")
    painter.setPen(QPen(_color("circle"), 14))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawEllipse(QPointF(50, 50), 28, 28)


def _piece(painter: QPainter, color: str, letter: str) -> None:
    """A disk with a mark inside, which tells the colors apart without seeing them."""
    _fill(painter, "floor")
    _disk(painter, color, 50, 50, 40)
    painter.setOpacity(0.35)
    _letter(painter, letter, "ink", 44)
    painter.setOpacity(1.0)


# --- what is on a ground


def _agent(painter: QPainter) -> None:
    _disk(painter, "ink", 50, 88, 26, 6)
    _disk(painter, "agent", 50, 30, 17)
    path = QPainterPath(QPointF(22, 86))
    path.cubicTo(22, 44, 78, 44, 78, 86)
    path.closeSubpath()
    painter.fillPath(path, _color("agent"))
    for x in (44, 56):
        _disk(painter, "ink", x, 29, 3)


def _directed_agent(painter: QPainter, direction: str) -> None:
    painter.save()
    painter.translate(50, 50)
    painter.rotate(DIRECTIONS[direction])
    _polygon(painter, "agent", (-30, -30), (38, 0), (-30, 30), (-16, 0))
    painter.restore()


def _taxi(painter: QPainter, has_passenger: bool) -> None:
    _polygon(painter, "taxi", (26, 46), (36, 24), (66, 24), (76, 46))
    _polygon(painter, "ink", (33, 44), (40, 29), (49, 29), (49, 44))
    _polygon(painter, "ink", (53, 44), (53, 29), (62, 29), (69, 44))
    _box(painter, "taxi", 12, 44, 76, 28, 8)
    for x in (18, 34, 50, 66):
        _box(painter, "ink", x, 54, 8, 5)
    for x in (30, 70):
        _disk(painter, "ink", x, 73, 11)
        _disk(painter, "grey", x, 73, 4)
    if has_passenger:
        _disk(painter, "agent", 59, 15, 9)
        _box(painter, "agent", 51, 24, 16, 14, 4)


def _passenger(painter: QPainter) -> None:
    _disk(painter, "agent", 68, 46, 10)
    _box(painter, "agent", 56, 57, 24, 28, 8)


def _destination(painter: QPainter) -> None:
    """A house: the passenger wants to go there."""
    _polygon(painter, "purple", (62, 20), (92, 44), (32, 44))
    _box(painter, "purple", 40, 44, 44, 34)
    _box(painter, "floor", 56, 56, 12, 22)


def _draw_in(draw: Callable[[QPainter, str], None], color: str, painter: QPainter) -> None:
    draw(painter, color)


def _with_colors(name: str, draw: Callable[[QPainter, str], None]) -> dict[str, Draw]:
    return {f"{name}_{color}": partial(_draw_in, draw, color) for color in COLORS}


TILES: Mapping[str, Draw] = {
    "floor": _floor,
    "ice": _ice,
    "hole": _hole,
    "start": _start,
    "goal": _goal,
    "cliff": _cliff,
    "wall": _wall,
    "lava": _lava,
    "cross": _cross,
    "circle": _circle,
    "red_piece": partial(_piece, color="red", letter="R"),
    "yellow_piece": partial(_piece, color="yellow", letter="Y"),
    "agent": _agent,
    "taxi": partial(_taxi, has_passenger=False),
    "taxi_with_passenger": partial(_taxi, has_passenger=True),
    "passenger": _passenger,
    "destination": _destination,
    **{f"stop_{letter}": partial(_stop, letter=letter) for letter in STOPS},
    **{f"agent_{direction}": partial(_directed_agent, direction=direction) for direction in DIRECTIONS},
    **_with_colors("floor", _colored_floor),
    **_with_colors("goal", _colored_goal),
    **_with_colors("key", _key),
    **_with_colors("ball", _ball),
    **_with_colors("box", _box_tile),
    **{
        f"door_{color}_{state}": partial(_door, color=color, state=state)
        for color in COLORS
        for state in ("open", "closed", "locked")
    },
}
"""By the name of a symbol."""


def draw_symbol(painter: QPainter, cell: str) -> None:
    """Draw a cell such as `ice+agent` into 100 by 100; a name without a drawing is written."""
    ground, *tops = cell.split("+")
    for number, name in enumerate((ground, *tops)):
        painter.save()
        if name in TILES:
            TILES[name](painter)
        else:
            if number == 0:
                _floor(painter)
            _write_name(painter, name, 18 if number == 0 else 60)
        painter.restore()


def _write_name(painter: QPainter, name: str, top: float) -> None:
    font = QFont(theme.text_font())
    font.setPixelSize(20)
    painter.setFont(font)
    painter.setPen(QColor(theme.tokens().text))
    flags = int(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop | Qt.TextFlag.TextWrapAnywhere)
    painter.drawText(QRectF(4, top, 92, 96 - top), flags, name.replace("_", " "))


def render_symbol(cell: str, side_px: int, pixel_ratio: float) -> QPixmap:
    """Return the tile of a cell, `side_px` logical pixels wide."""
    pixels = max(1, round(side_px * pixel_ratio))
    pixmap = QPixmap(pixels, pixels)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.scale(pixels / SIDE, pixels / SIDE)
    draw_symbol(painter, cell)
    painter.end()
    pixmap.setDevicePixelRatio(pixel_ratio)
    return pixmap


# --- The state of a grid world or a board as tiles.


GAP_PX = 1
"""Between tiles."""
MAX_TILE_PX = 120
MIN_TILE_PX = 6
MAX_CACHED_TILES = 512


class SymbolGridView(QWidget):
    """Draws tiles of whole pixels, as large as they fit, and the caption below them."""

    def __init__(self) -> None:
        super().__init__()
        self._symbols: SymbolGrid | None = None
        self._message = ""
        self._tiles: dict[tuple[str, int, float], QPixmap] = {}
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(120, 90)

    def sizeHint(self) -> QSize:
        return QSize(480, 320)

    @property
    def symbols(self) -> SymbolGrid | None:
        return self._symbols

    @property
    def message(self) -> str:
        """The text in place of a grid; empty while there is one."""
        return "" if self._symbols is not None else self._message

    def show_symbols(self, symbols: SymbolGrid | None, message: str = "") -> None:
        """Show a grid, or a message where there is none."""
        if (symbols, message) != (self._symbols, self._message):
            self._symbols, self._message = symbols, message
            self.update()

    def tile_rects(self) -> list[list[QRect]]:
        """Return the rectangles of the cells, by row."""
        grid = self._symbols
        if grid is None or not grid.rows or not grid.rows[0]:
            return []
        rows, columns = len(grid.rows), max(map(len, grid.rows))
        width = self.width() - 2 * theme.MARGIN
        height = self.height() - 2 * theme.MARGIN - self._caption_height()
        side = min((width + GAP_PX) // columns, (height + GAP_PX) // rows) - GAP_PX
        side = min(max(side, MIN_TILE_PX), MAX_TILE_PX)
        step = side + GAP_PX
        left = (self.width() - columns * step + GAP_PX) // 2
        top = theme.MARGIN + max(0, (height - rows * step + GAP_PX) // 2)
        return [
            [QRect(left + column * step, top + row * step, side, side) for column in range(len(cells))]
            for row, cells in enumerate(grid.rows)
        ]

    def _caption_height(self) -> int:
        has_caption = self._symbols is not None and self._symbols.caption
        return self.fontMetrics().height() + theme.GAP if has_caption else 0

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        t = theme.tokens()
        painter.fillRect(event.rect(), QColor(t.window))
        rects = self.tile_rects()
        if self._symbols is None or not rects:
            painter.setPen(QColor(t.muted))
            room = self.rect().adjusted(theme.MARGIN, theme.MARGIN, -theme.MARGIN, -theme.MARGIN)
            painter.drawText(room, int(Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap), self._message)
            return
        for cells, places in zip(self._symbols.rows, rects, strict=True):
            for cell, place in zip(cells, places, strict=True):
                painter.drawPixmap(place.topLeft(), self._tile(cell, place.width()))
        for row, column in self._symbols.walls:
            if row < len(rects) and column < len(rects[row]):
                place = rects[row][column]
                thickness = max(3, place.width() // 10)
                wall = QRect(QPoint(place.right() + 1, place.top()), QSize(thickness, place.height()))
                wall.moveLeft(place.right() + 1 - thickness // 2)
                painter.fillRect(wall, theme.tile_color("wall_side"))
        if self._symbols.caption:
            below = rects[-1][0].bottom() + theme.GAP
            room = QRect(theme.MARGIN, below, self.width() - 2 * theme.MARGIN, self._caption_height())
            text = self.fontMetrics().elidedText(self._symbols.caption, Qt.TextElideMode.ElideRight, room.width())
            painter.setPen(QColor(t.text))
            painter.drawText(room, int(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop), text)

    def _tile(self, cell: str, side: int) -> QPixmap:
        key = (cell, side, self.devicePixelRatioF())
        if key not in self._tiles:
            if len(self._tiles) >= MAX_CACHED_TILES:
                self._tiles.clear()
            self._tiles[key] = render_symbol(*key)
        return self._tiles[key]

    def changeEvent(self, event: QEvent) -> None:
        if event.type() in (QEvent.Type.StyleChange, QEvent.Type.PaletteChange):
            self._tiles.clear()  # the theme may be another one
        super().changeEvent(event)
