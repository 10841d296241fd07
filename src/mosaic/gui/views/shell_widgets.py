"""Parts of the main window: its banner, its messages, the trainer's button, and the keys that widgets keep."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QApplication,
    QComboBox,
    QFrame,
    QLabel,
    QToolButton,
    QWidget,
)

from mosaic.contracts.views import DaemonStatus
from mosaic.gui import theme
from mosaic.gui.views.widgets import IconLabel, button, row, selectable_label, with_object_name
from mosaic.gui.workbench import Workbench

MESSAGE_KINDS = {
    "info": ("mdi6.information", "accent", 5000),
    "good": ("mdi6.check-circle", "good", 5000),
    "warning": ("mdi6.alert", "warning", 9000),
    "bad": ("mdi6.close-circle", "bad", 15000),
}
"""By kind: icon, color, and how long a message is shown, in milliseconds."""
SPACE_SHORTCUT_WIDGETS = ("runs.table",)
"""Lists that do nothing with the space bar themselves."""


class Banner(QFrame):
    """Shown above the page as long as its state lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("banner", True)
        icon = IconLabel(18)
        icon.set_icon(theme.icon("mdi6.alert", "warning"))
        self.label = with_object_name(QLabel(), "banner")
        self.label.setWordWrap(True)
        row(icon, (self.label, 1), parent=self, margins=(theme.MARGIN, 6, theme.MARGIN, 6))
        self.hide()

    def show_text(self, text: str, tooltip: str = "") -> None:
        self.label.setText(text)
        self.label.setToolTip(tooltip)
        self.show()


class Messages(QObject):
    """One message at a time at the bottom of the window; it disappears by itself or by a click."""

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self._window = window
        self._frame = with_object_name(QFrame(window), "message")
        self._icon = IconLabel(18)
        self.label = selectable_label("")
        self._button = button("", "message.button", self._run_action)
        self._action: Callable[[], None] | None = None
        margins = (theme.MARGIN, theme.GAP, theme.MARGIN, theme.GAP)
        row(self._icon, (self.label, 1), self._button, parent=self._frame, margins=margins)
        self._frame.hide()
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._frame.hide)
        window.installEventFilter(self)
        self._frame.installEventFilter(self)

    def show_action(self, text: str, title: str, action: Callable[[], None]) -> None:
        """Show a message with a button; it stays as long as a warning."""
        self.show_message(text, "info")
        self._action = action
        self._button.setText(title)
        self._button.show()
        self._place()
        self._timer.start(MESSAGE_KINDS["warning"][2])

    def _run_action(self) -> None:
        self._frame.hide()
        if self._action is not None:
            self._action()

    def show_message(self, text: str, kind: str = "info") -> None:
        self._button.hide()
        icon, color, duration_ms = MESSAGE_KINDS[kind]
        t = theme.tokens()
        self._frame.setStyleSheet(
            f"#message {{ background: {t.raised}; border: 1px solid {getattr(t, color)}; border-radius: 4px; }}"
        )
        self._icon.set_icon(theme.icon(icon, color))
        self.label.setText(text)
        self._place()
        self._frame.show()
        self._frame.raise_()
        self._timer.start(duration_ms)

    def _place(self) -> None:
        width = min(720, self._window.width() - 64)
        self._frame.setFixedWidth(width)
        self._frame.adjustSize()
        left = (self._window.width() - width) // 2
        self._frame.move(left, self._window.height() - self._frame.height() - 40)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._window and event.type() is QEvent.Type.Resize and self._frame.isVisible():
            self._place()
        elif watched is self._frame and event.type() is QEvent.Type.MouseButtonPress:
            self._frame.hide()
        return False


class TrainerStatusButton(QToolButton):
    """Shows whether the trainer is connected and how busy it is; a click opens its page."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self.setObjectName("trainer")
        self.setProperty("flat", True)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.setText("trainer: connecting…")
        self.setIcon(theme.icon("mdi6.circle-outline", "muted"))
        self.clicked.connect(lambda: workbench.page_requested.emit("trainer"))
        workbench.bridge.connected.connect(self._show_status)
        workbench.bridge.status_polled.connect(lambda _, status: self._show_status(status))
        workbench.bridge.connection_lost.connect(self._on_lost)

    def _show_status(self, status: DaemonStatus) -> None:
        slots = status.slots
        where = "remote" if self._workbench.is_remote else "local"
        state = ", draining" if status.is_draining else ", paused" if status.paused else ""
        self.setIcon(theme.icon("mdi6.circle", "good"))
        self.setText(f"trainer: {where}, {slots.busy}/{slots.runs} busy, queue {slots.queued}{state}")
        self.setToolTip(f"{status.address}, pid {status.pid}\n{status.workspace}\nClick for its queue and log")

    def _on_lost(self, reason: str) -> None:
        self.setIcon(theme.icon("mdi6.circle-outline", "bad"))
        self.setText("trainer: drained" if self._workbench.bridge.is_suspended else "trainer: lost")
        self.setToolTip(reason)


def overrides_shortcut(event: QEvent) -> bool:
    """Whether the focused widget uses the space bar itself: a button is pressed and a row checked by it."""
    if event.type() is not QEvent.Type.ShortcutOverride or not isinstance(event, QKeyEvent):
        return False
    widget = QApplication.focusWidget()
    if not isinstance(widget, QAbstractButton | QComboBox | QAbstractItemView):
        return False
    return event.key() == Qt.Key.Key_Space and widget.objectName() not in SPACE_SHORTCUT_WIDGETS
