"""The play page with real keys: the real window, trainer, keeper and sessions."""

from __future__ import annotations

from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from tests.helpers.gui import click, find, pump
from tests.helpers.gui_fixtures import make_program, program, qapp, settings_path, the_window_is_quiet

from mosaic.contracts.views import SessionState
from mosaic.gui.app import Application
from mosaic.gui.panels.play_panel import PlayView
from mosaic.gui.views.session_view import GRID, SessionView

__all__ = ["make_program", "program", "qapp", "settings_path", "the_window_is_quiet"]

SAFE_PATH = (
    Qt.Key.Key_Down, Qt.Key.Key_Down, Qt.Key.Key_Right, Qt.Key.Key_Right, Qt.Key.Key_Down, Qt.Key.Key_Right,
)  # fmt: skip
"""To the goal of FrozenLake without ice that slips."""


@pytest.fixture
def page(program: Application) -> PlayView:
    """The play page of a window that is connected."""
    program.start()
    program.window.activateWindow()
    program.window.show_page("play")
    pump(lambda: program.workbench.status, "the trainer")
    view = program.window.findChild(PlayView)
    assert view is not None
    return view


def session_view(page: PlayView) -> SessionView:
    return find(page, "play.session", SessionView)


def state_of(page: PlayView) -> SessionState:
    state = page.match.first.state
    assert state is not None
    return state


def start(page: PlayView) -> None:
    click(find(page, "play.start"))
    pump(lambda: page.match.first.is_playing or page.match.first.problem, "the session")
    assert page.match.first.problem == ""


def focused() -> QWidget:
    widget = QApplication.focusWidget()
    assert widget is not None
    return widget


def tap(key: Qt.Key) -> None:
    """As a person would: the key goes to the widget that has the focus."""
    QTest.keyPress(focused(), key)
    QTest.keyRelease(focused(), key)


def test_frozen_lake_is_played_with_arrow_keys_to_the_goal(page: PlayView, program: Application) -> None:
    """R9.1, R9.5: the keys are the session's, and the grid shows each move."""
    start(page)
    view = session_view(page)
    assert view.current_tab == GRID
    for number, key in enumerate(SAFE_PATH, 1):
        tap(key)
        pump(lambda: state_of(page).step == number, f"step {number}")  # noqa: B023
        assert view.isAncestorOf(focused()) or focused() is view
    assert state_of(page).ending == "terminated"
    symbols: Any = view.grid.symbols
    assert symbols.rows[3][3] == "goal+agent"
    assert state_of(page).seats[0].episodic_return == 1.0
    pump(lambda: state_of(page).episode == 2, "the next episode")
    click(find(page, "play.start"))
    pump(lambda: not page.match.is_active, "the end")
    assert page.match.first.problem == ""
    assert page.match.first.view is not None
    assert page.match.first.view.outcome == "cancelled"
