"""Buttons next to each other, in as many rows as they need."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPoint, QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from mosaic.gui import theme

SPACING = theme.GAP // 2


class ButtonRow(QWidget):
    def __init__(self, buttons: Sequence[QWidget]) -> None:
        super().__init__()
        self._buttons = buttons
        for button in buttons:
            button.setParent(self)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setFixedHeight(max(button.sizeHint().height() for button in buttons))

    def minimumSizeHint(self) -> QSize:
        return QSize(max((button.sizeHint().width() for button in self._buttons), default=0), 0)

    def sizeHint(self) -> QSize:
        return QSize(0, self.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest:  # a button's text, icon or visibility has changed
            self._arrange()
        return super().event(event)

    def _arrange(self) -> None:
        place, height = QPoint(0, 0), 0
        for button in self._buttons:
            if button.isHidden():
                continue
            size = button.sizeHint()
            if place.x() and place.x() + size.width() > self.width():
                place, height = QPoint(0, place.y() + height + SPACING), 0
            button.setGeometry(place.x(), place.y(), min(size.width(), self.width()), size.height())
            place.setX(place.x() + size.width() + SPACING)
            height = max(height, size.height())  # a button without text is lower than the others
        if self.height() != place.y() + height:
            self.setFixedHeight(place.y() + height)
