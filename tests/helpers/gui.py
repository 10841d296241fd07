"""The window in tests: pump its events, find its widgets by name, click and type as a person would."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, overload

from PySide6.QtCore import QCoreApplication, QEvent, QObject, QPoint, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QPushButton, QWidget

from mosaic.contracts.folder import Workspace
from mosaic.window.app import Application
from mosaic.window.bridge import CALL_THREADS, Bridge

Found = TypeVar("Found", bound=QObject)
PATIENCE_S = 60.0


def pump(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    """Runs the event loop until `condition()` holds, and returns what it gave."""
    deadline = time.monotonic() + seconds
    while True:
        QApplication.processEvents()
        if found := condition():
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"Waited {seconds:g} s for {what}.")
        time.sleep(0.005)


def pump_for(seconds: float) -> None:
    """Run the event loop for a while, so that screenshots show a settled window."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        QApplication.processEvents()
        time.sleep(0.005)


def pump_ticks(interval_ms: int, count: int = 3) -> None:
    """Run the event loop until a new timer has fired `count` times.

    For what must not happen: a running timer of the same interval, or a shorter one, has fired as well by then,
    however slow the machine is.
    """
    ticks: list[None] = []
    timer = QTimer(interval=interval_ms, timerType=Qt.TimerType.PreciseTimer)
    timer.timeout.connect(lambda: ticks.append(None))
    timer.start()
    pump(lambda: len(ticks) >= count, f"{count} ticks of {interval_ms} ms")
    timer.stop()


def finish_calls(bridge: Bridge) -> None:
    """Wait until every background call requested so far has ended and its result has been delivered."""
    everyone = threading.Barrier(CALL_THREADS, timeout=PATIENCE_S)
    arrived: list[int] = []
    settle()
    for _ in range(CALL_THREADS):
        bridge.run_in_background(everyone.wait, arrived.append)
    pump(lambda: len(arrived) == CALL_THREADS, "the calls to end")


def settle() -> None:
    """Lets everything that is already waiting happen, deletions too."""
    for _ in range(3):
        QApplication.processEvents()
        QCoreApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


@overload
def find(root: QObject, name: str) -> QWidget: ...
@overload
def find(root: QObject, name: str, kind: type[Found]) -> Found: ...
def find(root: QObject, name: str, kind: type[Any] = QWidget) -> Any:
    """The child with this object name; there must be one."""
    if root.objectName() == name and isinstance(root, kind):
        return root
    found = root.findChild(kind, name)
    if found is None:
        near = sorted({child.objectName() for child in root.findChildren(kind) if child.objectName()})
        raise AssertionError(f"No {kind.__name__} is named {name!r}. Known: {', '.join(near)}")
    return found


def awaited(root: QObject, name: str, kind: type[Any] = QWidget) -> Any:
    """The same, of a page that is still being made."""
    pump(lambda: root.findChild(kind, name) is not None, name)
    return find(root, name, kind)


def question_button(name: str) -> QPushButton:
    """A button of a question that is open, wherever its parent is."""

    def look() -> QPushButton | None:
        widgets = QApplication.topLevelWidgets()
        return next((found for one in widgets if (found := one.findChild(QPushButton, name)) is not None), None)

    button: QPushButton = pump(look, name)
    return button


def has(root: QObject, name: str) -> bool:
    return root.findChild(QObject, name) is not None


def click(widget: QWidget, at: QPoint | None = None) -> None:
    assert widget.isEnabled(), f"{widget.objectName()} cannot be clicked: it is disabled."
    QTest.mouseClick(widget, Qt.MouseButton.LeftButton, pos=at or widget.rect().center())
    QApplication.processEvents()


def type_text(widget: QWidget, text: str) -> None:
    """Replaces what stands in the field, key by key."""
    widget.setFocus()
    QTest.keyClick(widget, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    QTest.keyClick(widget, Qt.Key.Key_Delete)
    QTest.keyClicks(widget, text)
    QApplication.processEvents()


def press(widget: QWidget, key: Qt.Key, modifier: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    QTest.keyClick(widget, key, modifier)
    QApplication.processEvents()


@contextmanager
def workbench_program(app: QApplication, workspace: Workspace, settings_path: Path) -> Iterator[Application]:
    """The whole program on a workspace, made but not started; ended and deleted afterwards."""
    program = Application(app, workspace, settings_path)
    try:
        yield program
    finally:
        close(program)


def close(program: Application) -> None:
    program.stop()
    program.window.deleteLater()
    program.workbench.deleteLater()
    program.bridge.deleteLater()
    settle()
