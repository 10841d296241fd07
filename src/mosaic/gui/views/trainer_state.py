"""The corner that tells whether the trainer is there and how busy it is; a click opens its page."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QToolButton

from mosaic.gui import theme
from mosaic.gui.workbench import Json, Workbench


class TrainerState(QToolButton):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._has_trainer: bool | None = None
        self.setObjectName("trainer")
        self.setProperty("flat", True)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.setText("trainer: connecting…")
        self._paint()
        self.clicked.connect(lambda: workbench.page_wanted.emit("trainer"))
        workbench.bridge.connected.connect(self._show)
        workbench.bridge.polled.connect(lambda _, status: self._show(status))
        workbench.bridge.lost.connect(self._lost)
        workbench.theme_changed.connect(self._paint)

    def _paint(self) -> None:
        name, colour = {
            True: ("mdi6.circle", "good"),
            False: ("mdi6.circle-outline", "bad"),
            None: ("mdi6.circle-outline", "muted"),
        }[self._has_trainer]
        self.setIcon(theme.icon(name, colour))

    def _show(self, status: Json) -> None:
        slots = status["slots"]
        where = "remote" if self._workbench.is_remote else "local"
        state = ", draining" if status.get("is_draining") else ", paused" if status.get("paused") else ""
        self._turn(True)
        self.setText(f"trainer: {where}, {slots['busy']}/{slots['runs']} busy, queue {slots['queued']}{state}")
        self.setToolTip(f"{status['address']}, pid {status['pid']}\n{status['workspace']}\nClick for its queue and log")

    def _lost(self, why: str) -> None:
        self._turn(False)
        self.setText("trainer: drained" if self._workbench.bridge.is_resting else "trainer: lost")
        self.setToolTip(why)

    def _turn(self, has_trainer: bool) -> None:
        if has_trainer is not self._has_trainer:
            self._has_trainer = has_trainer
            self._paint()
