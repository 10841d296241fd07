"""The state of a grid world or a board as tiles."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, QRect, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPixmap
from PySide6.QtWidgets import QSizePolicy, QWidget

from mosaic.contracts.views import SymbolGrid
from mosaic.gui import theme
from mosaic.gui.views.symbol_tiles import render_symbol

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
