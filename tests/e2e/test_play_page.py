"""The play page with real keys: the real window, trainer, keeper and sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget
from tests.helpers.gui import click, find, pump
from tests.helpers.gui_fixtures import make_program, program, qapp, settings_path, the_window_is_quiet

from mosaic.contracts.views import SessionState
from mosaic.gui.app import Application
from mosaic.gui.models.game_draft import GameDraft
from mosaic.gui.panels.play_panel import PlayView
from mosaic.gui.views.session_view import GRID, SessionView

__all__ = ["make_program", "program", "qapp", "settings_path", "the_window_is_quiet"]

SAFE_PATH = (
    Qt.Key.Key_Down, Qt.Key.Key_Down, Qt.Key.Key_Right, Qt.Key.Key_Right, Qt.Key.Key_Down, Qt.Key.Key_Right,
)  # fmt: skip
"""To the goal of FrozenLake without ice that slips."""


Open = Callable[..., PlayView]


@pytest.fixture
def open_page(program: Application) -> Open:
    """Opens the play page with what was configured for an environment before."""

    def open_game(env_id: str, **draft: Any) -> PlayView:
        program.settings.put_for_workspace("play_environment", env_id)
        program.settings.put_for_workspace("play_games", {env_id: GameDraft(env_id, **draft).to_json()})
        return show_page(program)

    return open_game


def show_page(program: Application) -> PlayView:
    program.start()
    program.window.show_page("play")
    pump(lambda: program.workbench.status, "the trainer")
    view = program.window.findChild(PlayView)
    assert view is not None
    pump(lambda: view.configuration.problem() == "", "the configuration to be checked")
    program.window.activateWindow()
    pump(program.window.isActiveWindow, "the window to be active")
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


def test_frozen_lake_is_played_with_arrow_keys_to_the_goal(open_page: Open) -> None:
    """R9.1, R9.5: the keys are the session's, and the grid shows each move."""
    page = open_page("FrozenLake-v1", setting_texts={"is_slippery": "false"})
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
