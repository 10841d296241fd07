"""Notifications of the desktop about runs that have ended: by the system's tray, else by D-Bus, else none."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from PySide6.QtCore import SLOT, QObject, Qt, QTimer, Signal, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QSystemTrayIcon, QWidget

from mosaic.base.formatting import count_noun, format_duration, format_number, run_title
from mosaic.contracts.options import RunKind
from mosaic.contracts.states import Stage
from mosaic.contracts.views import RunView
from mosaic.window import theme
from mosaic.window.runs import RunsModel
from mosaic.window.settings import GuiSettings
from mosaic.window.workbench import Workbench

# --- Runs that have ended since the user looked: which are worth a notification, and its text.


COLLECT_MS = 2000
"""Runs that end within this time of each other are reported together."""
LONG_RUN_S = 60.0
FAILURES = ("failed", "lost", "rejected")
NOTIFY_SETTING = "notify"


class NotifyMode(StrEnum):
    ALWAYS = "always"
    LONG = "long"
    NEVER = "never"


NOTIFY_TITLES = {NotifyMode.ALWAYS: "Always", NotifyMode.LONG: "Long runs (1 min)", NotifyMode.NEVER: "Never"}


def notify_mode(settings: GuiSettings) -> NotifyMode:
    value = settings.get(NOTIFY_SETTING, NotifyMode.LONG)
    return NotifyMode(value) if value in list(NotifyMode) else NotifyMode.LONG


class Notification(NamedTuple):
    title: str
    text: str
    run_id: str
    """What a click on it shows."""


def is_notable(view: RunView, mode: NotifyMode) -> bool:
    if mode is NotifyMode.NEVER or view.kind == RunKind.PLAY:
        return False
    return mode is NotifyMode.ALWAYS or (view.active_s or 0.0) > LONG_RUN_S


def summarize_ends(views: Sequence[RunView]) -> Notification:
    """One text for all of them; a click shows the first that failed, else the last."""
    failed = [view for view in views if view.outcome in FAILURES]
    if len(views) > 1:
        names = "\n".join(run_title(view) for view in (*failed, *views)[:3])
        parts = [f"{count_noun(len(views), 'run')} ended", *([f"{len(failed):,} failed"] if failed else [])]
        return Notification(", ".join(parts), names, (failed or views)[-1].run_id)
    view = views[0]
    parts = [f"{view.status.capitalize()} after {format_duration(view.active_s or 0.0)}"]
    if failed and view.reason:
        parts.append(view.reason)
    elif view.episodic_return is not None:
        parts.append(f"return {format_number(view.episodic_return)}")
    return Notification(run_title(view), ", ".join(parts), view.run_id)


class RunEnds(QObject):
    """Collects runs that end while this program watches them."""

    ended = Signal(list)
    """Views of runs that ended within a short time."""

    def __init__(self, runs: RunsModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._runs = runs
        self._active: set[str] = set()
        self._ended: list[str] = []
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._emit)
        runs.changed.connect(self._follow)
        runs.reset.connect(self._on_reset)

    def _on_reset(self) -> None:
        """Follow the active runs, and those that were active: there may be thousands of others."""
        finished = Stage.FINISHED
        self._follow({*self._active, *(view.run_id for view in self._runs.all() if view.stage is not finished)})

    def _follow(self, run_ids: set[str]) -> None:
        for view in filter(None, map(self._runs.get, run_ids)):
            if view.stage != "finished":
                self._active.add(view.run_id)
            elif view.run_id in self._active:
                self._active.discard(view.run_id)
                self._ended.append(view.run_id)
        if self._ended and not self._timer.isActive():
            self._timer.start(COLLECT_MS)

    def _emit(self) -> None:
        views = [view for view in map(self._runs.get, self._ended) if view is not None and view.stage == "finished"]
        self._ended = []
        if views:
            self.ended.emit(views)


# --- Notifications of the desktop about runs that have ended: by the system's tray, else by D-Bus, else none.


try:
    from PySide6.QtDBus import QDBusConnection, QDBusInterface, QDBusMessage
except ImportError:  # not on every system
    HAS_DBUS = False
else:
    HAS_DBUS = True

DBUS_NAME, DBUS_PATH = "org.freedesktop.Notifications", "/org/freedesktop/Notifications"
SHOWN_MS = 10_000


class NotificationService(Protocol):
    clicked: Any
    """A signal without arguments."""

    def show(self, notification: Notification) -> bool:
        """Return whether the service is there."""


class TrayNotifications(QObject):
    """The icon is in the tray from the first notification until it or the window is clicked."""

    clicked = Signal()

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._icon: QSystemTrayIcon | None = None

    def show(self, notification: Notification) -> bool:
        if not (QSystemTrayIcon.isSystemTrayAvailable() and QSystemTrayIcon.supportsMessages()):
            return False
        if self._icon is None:
            self._icon = QSystemTrayIcon(theme.icon("mdi6.view-grid-outline", "accent"), self)
            self._icon.messageClicked.connect(self.clicked)
            self._icon.activated.connect(lambda _: self.clicked.emit())
        self._icon.show()
        # Where the tray is the desktop's, it may take this for markup, too; elsewhere, entities would be shown.
        text = notification.text.replace("<", "‹")
        self._icon.showMessage(notification.title, text, QSystemTrayIcon.MessageIcon.Information, SHOWN_MS)
        return True

    def hide(self) -> None:
        if self._icon is not None:
            self._icon.hide()


class DBusNotifications(QObject):
    """The service of the desktop, which is asked in the background: it may have to start first, or not answer."""

    clicked = Signal()

    def __init__(self, run_in_background: Callable[..., None], parent: QObject) -> None:
        super().__init__(parent)
        self._run_in_background = run_in_background
        self._is_listening = False
        self._shown_ids: set[int] = set()

    def show(self, notification: Notification) -> bool:
        if not HAS_DBUS:
            return False
        self._run_in_background(lambda: _send(notification), self._on_sent, lambda _: None, self)
        return True

    def _on_sent(self, number: int) -> None:
        if not number:
            return
        self._shown_ids.add(number)
        if not self._is_listening:
            self._is_listening = True
            bus = QDBusConnection.sessionBus()
            slot = SLOT("_on_action(QDBusMessage)")
            bus.connect("", DBUS_PATH, DBUS_NAME, "ActionInvoked", self, slot)  # type: ignore[call-overload]

    if HAS_DBUS:

        @Slot(QDBusMessage)
        def _on_action(self, message: QDBusMessage) -> None:
            number, *_ = message.arguments()
            if number in self._shown_ids:  # not one of another program
                self.clicked.emit()


def _send(notification: Notification) -> int:
    """Return the number of the notification; 0 where there is no service."""
    bus = QDBusConnection.sessionBus()
    if not bus.isConnected():
        return 0
    # By its description: an argument is unsigned, which Python's numbers are not otherwise.
    service: Any = QDBusInterface(DBUS_NAME, DBUS_PATH, DBUS_NAME, bus)
    if not service.isValid():
        return 0
    actions = ["default", "Show run"]
    text = html.escape(notification.text, quote=False)  # the body of a notification is markup, its title is not
    return int(service.Notify("MOSAIC", 0, "", notification.title, text, actions, {}, SHOWN_MS) or 0)


class RunNotifier(QObject):
    """Notifies of runs that end while the window is not active."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__(workbench)
        self._workbench = workbench
        self._tray = TrayNotifications(self)
        self.services: list[NotificationService] = [
            self._tray,
            DBusNotifications(workbench.bridge.run_in_background, self),
        ]
        """Tried in this order."""
        for service in self.services:
            service.clicked.connect(self.show_run)
        self._run_id = ""
        self.ends = RunEnds(workbench.runs, self)
        self.ends.ended.connect(self._on_ended)
        QGuiApplication.instance().applicationStateChanged.connect(self._on_state_changed)  # type: ignore[union-attr]
        workbench.closing.connect(self._tray.hide)

    def _on_ended(self, views: list[RunView]) -> None:
        mode = notify_mode(self._workbench.settings)
        notable = [view for view in views if is_notable(view, mode)]
        if notable and not self.is_window_active():
            notification = summarize_ends(notable)
            self._run_id = notification.run_id
            any(service.show(notification) for service in self.services)

    def is_window_active(self) -> bool:
        return QApplication.activeWindow() is not None

    def _on_state_changed(self, state: Qt.ApplicationState) -> None:
        if state is Qt.ApplicationState.ApplicationActive:
            self._tray.hide()

    def show_run(self) -> None:
        """Bring the window to the front, with the run of the last notification."""
        window = self._workbench.window
        if isinstance(window, QWidget):
            window.setWindowState(window.windowState() & ~Qt.WindowState.WindowMinimized)
            window.show()
            window.raise_()
            window.activateWindow()
        if self._workbench.runs.get(self._run_id) is not None:
            self._workbench.select(self._run_id)
        self._tray.hide()
