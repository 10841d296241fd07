"""The button that shows whether the trainer is connected and how busy it is; a click opens its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QToolButton

from mosaic.gui import theme
from mosaic.gui.workbench import Workbench

if TYPE_CHECKING:
    from mosaic.contracts.views import DaemonStatus


class TrainerStatusButton(QToolButton):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._is_connected: bool | None = None
        self.setObjectName("trainer")
        self.setProperty("flat", True)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.setText("trainer: connecting…")
        self._update_icon()
        self.clicked.connect(lambda: workbench.page_requested.emit("trainer"))
        workbench.bridge.connected.connect(self._show_status)
        workbench.bridge.status_polled.connect(lambda _, status: self._show_status(status))
        workbench.bridge.connection_lost.connect(self._on_lost)
        workbench.theme_changed.connect(self._update_icon)

    def _update_icon(self) -> None:
        name, colour = {
            True: ("mdi6.circle", "good"),
            False: ("mdi6.circle-outline", "bad"),
            None: ("mdi6.circle-outline", "muted"),
        }[self._is_connected]
        self.setIcon(theme.icon(name, colour))

    def _show_status(self, status: DaemonStatus) -> None:
        slots = status.slots
        where = "remote" if self._workbench.is_remote else "local"
        state = ", draining" if status.is_draining else ", paused" if status.paused else ""
        self._set_connected(True)
        self.setText(f"trainer: {where}, {slots.busy}/{slots.runs} busy, queue {slots.queued}{state}")
        self.setToolTip(f"{status.address}, pid {status.pid}\n{status.workspace}\nClick for its queue and log")

    def _on_lost(self, reason: str) -> None:
        self._set_connected(False)
        self.setText("trainer: drained" if self._workbench.bridge.is_suspended else "trainer: lost")
        self.setToolTip(reason)

    def _set_connected(self, is_connected: bool) -> None:
        if is_connected is not self._is_connected:
            self._is_connected = is_connected
            self._update_icon()
