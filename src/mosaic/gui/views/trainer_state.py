"""The corner that tells whether the trainer is there and how busy it is."""

from __future__ import annotations

from PySide6.QtWidgets import QHBoxLayout, QLabel, QWidget

from mosaic.gui import theme
from mosaic.gui.views.made import named
from mosaic.gui.workbench import Json, Workbench


class TrainerState(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, theme.MARGIN, 0)
        row.setSpacing(6)
        self._icon = QLabel()
        self.label = named(QLabel("trainer …"), "trainer")
        row.addWidget(self._icon)
        row.addWidget(self.label)
        workbench.bridge.connected.connect(self._show)
        workbench.bridge.polled.connect(lambda _, status: self._show(status))
        workbench.bridge.lost.connect(lambda why: self._lost(why))

    def _show(self, status: Json) -> None:
        slots = status["slots"]
        draining = ", draining" if status.get("is_draining") else ""
        self._icon.setPixmap(theme.icon("mdi6.circle", "good").pixmap(12, 12))
        self.label.setText(f"trainer local  {slots['busy']}/{slots['runs']} busy  queue {slots['queued']}{draining}")
        self.label.setToolTip(f"{status['address']}, pid {status['pid']}\n{status['workspace']}")

    def _lost(self, why: str) -> None:
        self._icon.setPixmap(theme.icon("mdi6.circle-outline", "bad").pixmap(12, 12))
        self.label.setText("trainer lost")
        self.label.setToolTip(why)
