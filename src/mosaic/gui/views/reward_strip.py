"""The rewards of an episode as a small chart with the current position; a click goes there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from mosaic.gui import theme

HEIGHT_PX = 36
BAR_ALPHA = 170


class RewardStrip(QWidget):
    step_chosen = Signal(int)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.setToolTip("Reward of each step. A click goes to that step.")
        self.setAccessibleName("Rewards of the episode")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._parts: Sequence[tuple[float, float]] = ()
        self._steps = 0
        self._position = 0
        self._different_step: int | None = None

    def sizeHint(self) -> QSize:
        return QSize(200, HEIGHT_PX)

    def show_rewards(self, parts: Sequence[tuple[float, float]], steps: int) -> None:
        """`parts`: the lowest and highest reward in equal parts of the episode."""
        self._parts = parts
        self._steps = steps
        self._different_step = None
        self.update()

    def show_position(self, step: int, different_step: int | None = None) -> None:
        if (step, different_step) != (self._position, self._different_step):
            self._position, self._different_step = step, different_step
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        t = theme.tokens()
        painter.fillRect(self.rect(), QColor(t.surface))
        finite = [value for part in self._parts for value in part if math.isfinite(value)]
        if not finite:
            return
        low, high = min(0.0, *finite), max(0.0, *finite)
        room = QRectF(self.rect()).adjusted(0, 3, 0, -3)
        scale = room.height() / ((high - low) or 1.0)
        zero_y = room.bottom() + low * scale
        width = room.width() / len(self._parts)
        painter.setPen(Qt.PenStyle.NoPen)
        for place, (lowest, highest) in enumerate(self._parts):
            if not (math.isfinite(lowest) and math.isfinite(highest)):
                continue
            top, bottom = min(zero_y, zero_y - highest * scale), max(zero_y, zero_y - lowest * scale)
            bar = QRectF(room.left() + place * width, top, max(1.0, width - (1 if width > 4 else 0)), bottom - top)
            color = QColor(t.bad if highest <= 0 else t.accent)
            color.setAlpha(BAR_ALPHA)
            painter.fillRect(bar, color)
        painter.fillRect(QRectF(room.left(), zero_y, room.width(), 1), QColor(t.line))
        if self._different_step is not None:
            self._paint_marker(painter, self._different_step, QColor(t.warning))
        self._paint_marker(painter, self._position, QColor(t.text))

    def _paint_marker(self, painter: QPainter, step: int, color: QColor) -> None:
        x = step / max(1, self._steps) * (self.width() - 2)
        painter.fillRect(QRectF(x, 0, 2, self.height()), color)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._choose(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._choose(event)

    def _choose(self, event: QMouseEvent) -> None:
        if self._steps and event.buttons() & Qt.MouseButton.LeftButton:
            share = event.position().x() / max(1, self.width())
            self.step_chosen.emit(min(self._steps, max(0, round(share * self._steps))))
