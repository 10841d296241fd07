"""Messages of the window: a banner while a state lasts, a temporary message after an event."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QWidget

from mosaic.gui import theme
from mosaic.gui.views.widgets import with_object_name

DURATION_MS = {"info": 5000, "good": 5000, "warning": 9000, "bad": 15000}
ICONS = {"info": "mdi6.information", "good": "mdi6.check-circle", "warning": "mdi6.alert", "bad": "mdi6.close-circle"}


class Banner(QFrame):
    """Shown above the page as long as its state lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("banner", True)
        row = QHBoxLayout(self)
        row.setContentsMargins(theme.MARGIN, 6, theme.MARGIN, 6)
        self._icon = QLabel()
        self.label = with_object_name(QLabel(), "banner")
        self.label.setWordWrap(True)
        row.addWidget(self._icon)
        row.addWidget(self.label, 1)
        self.hide()

    def show_text(self, text: str, tooltip: str = "") -> None:
        self._icon.setPixmap(theme.icon("mdi6.alert", "warning").pixmap(18, 18))
        self.label.setText(text)
        self.label.setToolTip(tooltip)
        self.show()


class Messages(QObject):
    """One message at a time at the bottom of the window, gone by itself or by a click."""

    def __init__(self, window: QWidget) -> None:
        super().__init__(window)
        self._window = window
        self._frame = with_object_name(QFrame(window), "message")
        row = QHBoxLayout(self._frame)
        row.setContentsMargins(theme.MARGIN, theme.GAP, theme.MARGIN, theme.GAP)
        self._icon = QLabel()
        self.label = QLabel()
        self.label.setWordWrap(True)
        self.label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        row.addWidget(self._icon)
        row.addWidget(self.label, 1)
        self._button = with_object_name(QPushButton(), "message.button")
        self._button.clicked.connect(self._run_action)
        self._action: Callable[[], None] | None = None
        row.addWidget(self._button)
        self._frame.hide()
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._frame.hide)
        window.installEventFilter(self)
        self._frame.installEventFilter(self)

    def show_action(self, text: str, title: str, action: Callable[[], None]) -> None:
        """A message with a button that does something about it; it stays as long as a warning."""
        self.show_message(text, "info")
        self._action = action
        self._button.setText(title)
        self._button.show()
        self._place()
        self._timer.start(DURATION_MS["warning"])

    def _run_action(self) -> None:
        self._frame.hide()
        if self._action is not None:
            self._action()

    def show_message(self, text: str, kind: str = "info") -> None:
        self._button.hide()
        t = theme.tokens()
        colour = {"info": "accent", "good": "good", "warning": "warning", "bad": "bad"}[kind]
        self._frame.setStyleSheet(
            f"#message {{ background: {t.raised}; border: 1px solid {getattr(t, colour)}; border-radius: 4px; }}"
        )
        self._icon.setPixmap(theme.icon(ICONS[kind], colour).pixmap(18, 18))
        self.label.setText(text)
        self._place()
        self._frame.show()
        self._frame.raise_()
        self._timer.start(DURATION_MS[kind])

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
