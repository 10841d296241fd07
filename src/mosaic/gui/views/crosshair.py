"""One x under the mouse, shared by all charts that lie on the same axis."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer, Signal

UPDATE_INTERVAL_MS = 33
"""A mouse reports its moves more often than needed."""


class Crosshair(QObject):
    moved = Signal(object)
    """To this x; None: gone."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.x: float | None = None
        self._timer = QTimer(self, singleShot=True, interval=UPDATE_INTERVAL_MS)
        self._timer.timeout.connect(lambda: self.moved.emit(self.x))

    def move_to(self, x: float | None) -> None:
        if x != self.x:
            self.x = x
            if not self._timer.isActive():
                self._timer.start()
