"""A QApplication for all tests of the window, and what none of them may leave: a slot that raised, a warning of Qt's, a
timer that still ticks or a thread that still runs."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import pytest

if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
    # The screen of this platform is 800 by 800 unless it is told otherwise; a relative path, as a colon would end it.
    screen = os.path.relpath(Path(__file__).with_name("screen.json"))
    os.environ.setdefault("QT_QPA_PLATFORM", f"offscreen:configfile={screen}")
os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")

from PySide6.QtCore import QMessageLogContext, QStandardPaths, QThread, QTimer, QtMsgType, qInstallMessageHandler
from PySide6.QtWidgets import QApplication
from shiboken6 import isValid
from tests.helpers.gui import settle, workbench_program

from mosaic.contracts.folder import Workspace
from mosaic.window import theme
from mosaic.window.app import Application

HARMLESS = (
    "This plugin does not support",  # what the offscreen platform says about raise() and size hints
    "propagateSizeHints",
    "QFontDatabase",  # a machine without fonts is ugly, not wrong
    "Populating font family aliases",
    "qt.qpa.",
    "Release of profile requested",  # WebEngine, when the program ends
)


@pytest.fixture(scope="session")
def qapp() -> Iterator[QApplication]:
    QStandardPaths.setTestModeEnabled(True)
    app = QApplication.instance() or QApplication(["mosaic-test"])
    assert isinstance(app, QApplication)
    app.setQuitOnLastWindowClosed(False)
    theme.apply(app, "light")
    yield app
    settle()


@pytest.fixture
def settings_path(tmp_path: Path) -> Path:
    """Where a test's window remembers things: never among the user's own."""
    return tmp_path / "settings.ini"


@pytest.fixture
def make_program(qapp: QApplication, workspace: Workspace, settings_path: Path) -> Iterator[Callable[[], Application]]:
    """Makes the whole program (not started) on the test's workspace; call it again for a second window."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(workbench_program(qapp, workspace, settings_path))


@pytest.fixture
def program(make_program: Callable[[], Application]) -> Application:
    return make_program()


ELDERS: weakref.WeakSet[QTimer | QThread] = weakref.WeakSet()
"""The timers and threads that earlier tests left in peace, where the collector looks no more."""


@pytest.fixture(autouse=True)
def the_window_is_quiet(qapp: QApplication, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    said: list[str] = []
    raised: list[str] = []

    def hear(kind: QtMsgType, context: QMessageLogContext, text: str) -> None:
        is_bad = kind in (QtMsgType.QtWarningMsg, QtMsgType.QtCriticalMsg, QtMsgType.QtFatalMsg)
        category = str(context.category or "")
        if is_bad and category != "js" and not any(word in text or word in category for word in HARMLESS):
            said.append(f"{category}: {text}")

    def catch(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        raised.append(f"{kind.__name__}: {error}")
        usual(kind, error, trace)

    usual = sys.excepthook
    sys.excepthook = catch
    before = qInstallMessageHandler(hear)
    # Going through every object of every module, twice a test, would take longer than most tests. What is there already
    # is put out of the collector's sight, and what the program would put there stays in it.
    gc.collect()
    ELDERS.update(timers_and_threads())
    gc.freeze()
    monkeypatch.setattr(gc, "freeze", lambda: None)
    earlier = active()
    yield
    for widget in QApplication.topLevelWidgets():  # one that stays would keep the focus from the next test's
        widget.close()
        widget.deleteLater()
    settle()
    gc.collect()
    settle()
    sys.excepthook = usual
    qInstallMessageHandler(before)
    left = [describe(thing) for thing in active() - earlier]
    assert not raised, f"A slot raised: {raised}"
    assert not left, f"Still active after the test: {left}"
    assert not said, f"Qt warned: {said}"


def timers_and_threads() -> list[QTimer | QThread]:
    """Of all that the collector sees."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), QTimer | QThread) and isValid(thing)]


def active() -> set[QTimer | QThread]:
    """Timers that tick, threads that run."""
    known = {thing for thing in ELDERS if isValid(thing)}
    return {
        thing
        for thing in known.union(timers_and_threads())
        if (thing.isActive() if isinstance(thing, QTimer) else thing.isRunning())
    }


def describe(thing: QTimer | QThread) -> str:
    parent = thing.parent()
    where = f" of {type(parent).__name__} {parent.objectName()!r}" if parent is not None else ""
    every = f", every {thing.interval()} ms" if isinstance(thing, QTimer) else ""
    return f"{type(thing).__name__} {thing.objectName()!r}{where}{every}"
