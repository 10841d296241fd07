"""Parts of the main window: its banner, its messages, and the bar with the pages and the trainer's button."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, QObject, QSize, Qt, QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QAbstractButton, QFrame, QSizePolicy, QToolBar, QToolButton, QWidget

from mosaic.contracts.views import DaemonStatus
from mosaic.gui import theme
from mosaic.gui.views.widgets import IconLabel, PlainLabel, button, row, with_object_name
from mosaic.gui.workbench import Workbench

MESSAGE_KINDS = {
    "info": ("mdi6.information", "accent", 5000),
    "good": ("mdi6.check-circle", "good", 5000),
    "warning": ("mdi6.alert", "warning", 9000),
    "bad": ("mdi6.close-circle", "bad", 15000),
}
"""By kind: icon, color, and how long a message is shown, in milliseconds."""
MESSAGE_PADDING = 4


class Banner(QFrame):
    """Shown above the page as long as its state lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("banner", True)
        icon = IconLabel(18)
        icon.set_icon(theme.icon("mdi6.alert", "warning"))
        self.label = PlainLabel(name="banner")
        self.label.setWordWrap(True)
        self._act: Callable[[], object] = lambda: None
        self._button = button("", "banner.button", lambda: self._act())
        row(icon, (self.label, 1), self._button, parent=self, margins=(theme.MARGIN, 6, theme.MARGIN, 6))
        self.hide()

    def show_text(self, text: str, tooltip: str = "", title: str = "", act: Callable[[], object] = bool) -> None:
        """`title` is that of a button, which calls `act`; empty: there is none."""
        self.label.setText(text)
        self.label.setToolTip(tooltip)
        self._button.setText(title)
        self._button.setVisible(bool(title))
        self._act = act
        self.show()


class Messages(QObject):
    """One message at a time over the menus and page buttons, where nothing is edited; it disappears by itself.

    Clicks pass through it to what it covers. Only its button, which is not a child of the frame, takes them.
    """

    def __init__(self, window: QWidget, bar: QWidget) -> None:
        """`bar` is at the top of the window; messages are placed over it."""
        super().__init__(window)
        self._window = window
        self._bar = bar
        self._frame = with_object_name(QFrame(window), "message")
        self._frame.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._icon = IconLabel(18)
        self.label = PlainLabel()
        self.label.setWordWrap(True)
        self._button = button("", "message.button", self._run_action)
        self._button.setParent(window)
        self._action: Callable[[], None] | None = None
        self._request: Callable[[], str] | None = None
        """Returns the text of now of a message that follows the runs."""
        self._kind = "info"
        self._layout = row(self._icon, (self.label, 1), parent=self._frame)
        self._hide()
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._hide)
        # Its parts have the new size of the text only after the window.
        self._place_timer = QTimer(self, singleShot=True)
        self._place_timer.timeout.connect(self._place)
        window.installEventFilter(self)

    def show_action(self, text: str, title: str, action: Callable[[], None]) -> None:
        """Show a message with a button; it stays as long as a warning."""
        self._action = action
        self._button.setText(title)
        self._button.show()
        self._request = None
        self._show(text, "info")
        self._timer.start(MESSAGE_KINDS["warning"][2])

    def show_message(self, text: str, kind: str = "info") -> None:
        self._button.hide()
        self._request = None
        self._show(text, kind)

    def show_request(self, request: Callable[[], str]) -> None:
        """Show what was requested of runs, until they have done it."""
        if text := request():
            self.show_message(text)
            self._request = request

    def update_request(self) -> None:
        """Show the text of now of a request that is shown; runs have changed."""
        if self._request is None or not self._frame.isVisible():
            return
        text = self._request()
        if not text:
            self._hide()
        elif text != self.label.text():
            self._show(text, self._kind)

    def _run_action(self) -> None:
        self._hide()
        if self._action is not None:
            self._action()

    def _hide(self) -> None:
        self._frame.hide()
        self._button.hide()

    def _show(self, text: str, kind: str) -> None:
        self._kind = kind
        self._apply_colors()
        self.label.setText(text)
        self._place()
        self._frame.show()
        self._frame.raise_()
        self._button.raise_()
        self._timer.start(MESSAGE_KINDS[kind][2])

    def _apply_colors(self) -> None:
        icon, color, _ = MESSAGE_KINDS[self._kind]
        t = theme.tokens()
        self._frame.setStyleSheet(
            f"#message {{ background: {t.raised}; border: 1px solid {getattr(t, color)}; border-radius: 4px; }}"
        )
        self._icon.set_icon(theme.icon(icon, color))

    def _place(self) -> None:
        """As wide as its text in one line; only a text that is wider than the window takes more lines."""
        has_button = not self._button.isHidden()
        self._button.adjustSize()
        button_width = self._button.width() + theme.GAP if has_button else 0
        margins = theme.MARGIN, MESSAGE_PADDING, theme.MARGIN + button_width, MESSAGE_PADDING
        self._layout.setContentsMargins(*margins)
        room = self._window.width() - 2 * theme.GAP
        line = self.label.fontMetrics().size(0, self.label.text())
        wanted = line.width() + self._icon.minimumWidth() + self._layout.spacing() + margins[0] + margins[2] + 4
        width = min(wanted, room)
        # With a button or without, so that all messages of one line are equally high.
        line_height = max(self._button.sizeHint().height(), self._icon.minimumHeight()) + 2 * MESSAGE_PADDING
        height = max(self._layout.heightForWidth(width), line_height)
        top, bottom = 3, self._bar.geometry().bottom() - 3
        left, top = (self._window.width() - width) // 2, max(top, (top + bottom - height) // 2)
        self._frame.setGeometry(left, top, width, height)
        right, middle = left + width - theme.MARGIN, top + height // 2
        self._button.move(right - self._button.width(), middle - self._button.height() // 2)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Resize and self._frame.isVisible():
            self._place()
        elif event.type() is QEvent.Type.StyleChange and self._frame.isVisible():
            self._apply_colors()  # the theme was switched
            self._place_timer.start()
        return False


class TrainerStatusButton(QToolButton):
    """Shows whether the trainer is connected and how busy it is; a click opens its page."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self.setObjectName("trainer")
        self.setProperty("flat", True)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._texts = ("", "")
        self.is_short = False
        self._show_texts("trainer: connecting…", "connecting…")
        self.setIcon(theme.icon("mdi6.circle-outline", "muted"))
        self.clicked.connect(lambda: workbench.page_requested.emit("trainer"))
        workbench.bridge.connected.connect(self._show_status)
        workbench.bridge.status_polled.connect(lambda _, status: self._show_status(status))
        workbench.bridge.connection_lost.connect(self._on_lost)

    def _show_status(self, status: DaemonStatus) -> None:
        slots = status.slots
        where = self._workbench.trainer_name or "remote" if self._workbench.is_remote else "local"
        state = ", draining" if status.is_draining else ", paused" if status.paused else ""
        self.setIcon(theme.icon("mdi6.circle", "good"))
        busy = f"{slots.busy}/{slots.runs} busy"
        text = f"trainer: {where}, {busy}, queue {slots.queued}{state}"
        self._show_texts(text, busy + state)
        place = f"{status.address}, pid {status.pid}\n{status.workspace}"
        self.setToolTip(f"{text}\n{place}\nClick for its queue and log")

    def _on_lost(self, reason: str) -> None:
        self.setIcon(theme.icon("mdi6.circle-outline", "bad"))
        state = "drained" if self._workbench.bridge.is_suspended else "lost"
        self._show_texts(f"trainer: {state}", state)
        self.setToolTip(reason)

    def _show_texts(self, text: str, short: str) -> None:
        self._texts = (text, short)
        self.setText(self._texts[self.is_short])

    @property
    def saved_width(self) -> int:
        """By how much the short text is narrower."""
        text, short = map(self.fontMetrics().horizontalAdvance, self._texts)
        return text - short

    def set_short(self, is_short: bool) -> None:
        if is_short != self.is_short:
            self.is_short = is_short
            self.setText(self._texts[is_short])


class PagesBar(QToolBar):
    """The buttons of the pages, the search and the trainer's state; the last two are short where there is no room."""

    def __init__(self, buttons: Sequence[QAbstractButton], search: QToolButton, trainer: TrainerStatusButton) -> None:
        super().__init__("Pages")
        self.setObjectName("bar")
        self.setMovable(False)
        self.setIconSize(QSize(16, 16))
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)  # it would offer to hide the bar for good
        self._search, self._trainer = search, trainer
        self._parts = (*buttons, search, trainer)
        self._widths: tuple[int, ...] = ()
        """Of the parts, when they were placed."""
        gap = QWidget()
        gap.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        for widget in (*buttons, gap, search, trainer):
            self.addWidget(widget)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.fit()
        super().resizeEvent(event)

    def fit(self) -> None:
        """Shorten the search first, then the trainer's state."""
        layout = self.layout()
        spacing = layout.spacing() if layout is not None else theme.GAP
        room = self.width() - 2 * theme.GAP - sum(part.sizeHint().width() + spacing for part in self._parts)
        # What is short now would take more in full.
        is_short = self._search.toolButtonStyle() is Qt.ToolButtonStyle.ToolButtonIconOnly
        search_width = self._search.fontMetrics().horizontalAdvance(self._search.text()) + theme.GAP
        room -= search_width * is_short + self._trainer.saved_width * self._trainer.is_short
        self._search.setToolButtonStyle(
            Qt.ToolButtonStyle.ToolButtonIconOnly if room < 0 else Qt.ToolButtonStyle.ToolButtonTextBesideIcon
        )
        self._trainer.set_short(room + search_width < 0)
        widths = tuple(part.sizeHint().width() for part in self._parts)
        if layout is not None and widths != self._widths:
            # With another size of the text, a tool bar keeps the places of its widgets.
            self._widths = widths
            layout.invalidate()
            layout.activate()
