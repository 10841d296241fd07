"""Notifications of the desktop about runs that have ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QComboBox
from tests.helpers.gui import find, pump
from tests.helpers.gui_runs import FakeTrainer, run_id, running, start_with, view

from mosaic.window import notifications as run_ends
from mosaic.window.app import Application
from mosaic.window.notifications import Notification, NotifyMode, is_notable, summarize_ends

LONG = {"started_at": 1_700_000_000.0, "finished_at": 1_700_000_192.0}
NAME = "org.freedesktop.Notifications"
SERVER = f"""
from PySide6.QtCore import ClassInfo, QCoreApplication, QObject, QTimer, Slot
from PySide6.QtDBus import QDBusConnection, QDBusMessage

app = QCoreApplication([])
bus = QDBusConnection.sessionBus()


@ClassInfo({{"D-Bus Interface": "{NAME}"}})
class Desktop(QObject):
    @Slot(str, "uint", str, str, str, "QStringList", "QVariantMap", int, result="uint")
    def Notify(self, name, replaces, icon, title, text, actions, hints, timeout):
        print(title, actions[0], text, flush=True)
        QTimer.singleShot(200, self.invoke)  # a click, once the number is known
        return 7

    def invoke(self):
        signal = QDBusMessage.createSignal("/org/freedesktop/Notifications", "{NAME}", "ActionInvoked")
        signal.setArguments([7, "default"])
        bus.send(signal)
        QTimer.singleShot(200, self.invoke)


desktop = Desktop()
bus.registerObject("/org/freedesktop/Notifications", desktop, QDBusConnection.RegisterOption.ExportAllSlots)
print(bus.registerService("{NAME}"), flush=True)
app.exec()
"""


class FakeService(QObject):
    clicked = Signal()

    def __init__(self, is_there: bool = True) -> None:
        super().__init__()
        self.is_there = is_there
        self.shown: list[Notification] = []

    def show(self, notification: Notification) -> bool:
        if self.is_there:
            self.shown.append(notification)
        return self.is_there


@pytest.fixture
def background(program: Application, monkeypatch: pytest.MonkeyPatch) -> Application:
    """A window in the background that follows four runs."""
    monkeypatch.setattr(run_ends, "COLLECT_MS", 0)
    monkeypatch.setattr(program.notifier, "is_window_active", lambda: False)
    start_with(program, FakeTrainer([running(number) for number in range(1, 5)]))
    return program


def end(program: Application, *numbers: int, **fields: object) -> None:
    program.workbench.runs.update([view(number, **{**LONG, **fields}) for number in numbers])


def test_a_text_names_the_run_and_its_end() -> None:
    one = summarize_ends([view(1, **LONG, episodic_return=482.0)])
    assert run_id(1)[-6:] in one.title
    assert one.text == "Succeeded after 3m 12s, return 482"
    failed = summarize_ends([view(2, **LONG, outcome="failed", reason="It ended with exit code 3.")])
    assert failed.text == "Failed after 3m 12s, It ended with exit code 3."
    many = [view(number, outcome="failed" if number in (4, 5) else "succeeded") for number in range(1, 13)]
    assert summarize_ends(many).title == "12 runs ended, 2 failed"
    assert summarize_ends(many).run_id == run_id(5)


def test_short_runs_and_play_sessions_are_reported_only_on_request() -> None:
    short, long = view(1), view(2, **LONG)
    assert [is_notable(one, NotifyMode.LONG) for one in (short, long)] == [False, True]
    assert is_notable(short, NotifyMode.ALWAYS)
    assert not is_notable(long, NotifyMode.NEVER)
    assert not is_notable(view(3, **LONG, kind="play"), NotifyMode.ALWAYS)
    assert not is_notable(view(4, started_at=None), NotifyMode.LONG), "it never started"


def test_runs_that_end_together_give_one_notification_and_a_click_shows_the_run(background: Application) -> None:
    missing, service = FakeService(is_there=False), FakeService()
    background.notifier.services[:] = [missing, service]
    service.clicked.connect(background.notifier.show_run)
    end(background, 1, 2)
    end(background, 3, outcome="failed")
    pump(lambda: service.shown, "the notification")
    assert [one.title for one in service.shown] == ["3 runs ended, 1 failed"]
    background.window.showMinimized()
    service.clicked.emit()
    assert background.workbench.selection == run_id(3)
    assert not background.window.isMinimized()
    end(background, 3, notes="changed later")
    end(background, 4)
    pump(lambda: len(service.shown) == 2, "the other run")
    assert run_id(4)[-6:] in service.shown[1].title, "a run is reported once"


@pytest.mark.parametrize("mode", ["never", "active window"])
def test_nothing_is_shown_when_it_is_not_wanted(
    background: Application, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    service = FakeService()
    background.notifier.services[:] = [service]
    if mode == "never":
        background.window.show_page("settings")
        choice = find(background.window, "settings.notify", QComboBox)
        assert choice.currentData() == "long"
        choice.setCurrentIndex(choice.findData("never"))
        choice.activated.emit(choice.currentIndex())
        assert background.settings.get("notify") == "never"
    else:
        monkeypatch.setattr(background.notifier, "is_window_active", lambda: True)
    ended: list[object] = []
    background.notifier.ends.ended.connect(ended.append)
    end(background, 1)
    pump(lambda: ended, "the end of the run")
    assert service.shown == []


@pytest.fixture
def desktop(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A session bus with a notification service, which clicks on what it shows."""
    if shutil.which("dbus-daemon") is None:
        pytest.skip("needs dbus-daemon")
    address = f"unix:path={tmp_path}/bus"
    command = ["dbus-daemon", "--session", "--nofork", "--print-address=1", f"--address={address}"]
    bus = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert bus.stdout is not None
    assert bus.stdout.readline()
    environment = {**os.environ, "DBUS_SESSION_BUS_ADDRESS": address}
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    assert server.stdout.readline().strip() == "True"
    yield server
    for process in (server, bus):
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_the_service_of_the_desktop_is_used_and_its_click_shows_the_run(
    desktop: subprocess.Popen[str], tmp_path: Path
) -> None:
    """In a process of its own, as Qt connects to a session bus once."""
    script = """
import threading
from PySide6.QtCore import QCoreApplication, QObject, QTimer
from mosaic.window.notifications import Notification
from mosaic.window.notifications import DBusNotifications

app = QCoreApplication([])
parent = QObject()


def run_in_background(call, then, failed, owner):
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()

    def look():
        if results:
            timer.stop()
            then(results[0])

    timer = QTimer(parent, interval=10)
    timer.timeout.connect(look)
    timer.start()


service = DBusNotifications(run_in_background, parent)
service.clicked.connect(lambda: (print("clicked", flush=True), app.quit()))
print(service.show(Notification("a <b> run", "<img src=x>", "id")), flush=True)
app.exec()
"""
    environment = {**os.environ, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={tmp_path}/bus"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["True", "clicked"]
    assert desktop.stdout is not None
    assert desktop.stdout.readline().strip() == "a <b> run default &lt;img src=x&gt;", (
        "the title is text, the body is markup"
    )


def test_without_any_service_nothing_breaks(background: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
    ended: list[object] = []
    background.notifier.ends.ended.connect(ended.append)
    end(background, 1)
    pump(lambda: ended, "the end of the run")
