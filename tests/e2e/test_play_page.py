"""The play page with real keys: the real window, trainer, keeper and sessions."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QComboBox, QLabel, QLineEdit, QToolButton, QWidget
from tests.helpers import shared_daemon
from tests.helpers.daemons import LiveDaemon, ended
from tests.helpers.gui import click, find, pump, type_text
from tests.helpers.gui_fixtures import make_program, program, qapp, settings_path, the_window_is_quiet
from tests.helpers.llm_server import fails, running_llm_server, says

from mosaic.base.run_payloads import build_train_payload
from mosaic.contracts.views import SessionState
from mosaic.features.play.window import GRID, RAW, VIDEO, PlayView, SessionView
from mosaic.features.play.window_draft import ActorDraft, ControlMode, GameDraft
from mosaic.features.play.window_sessions import PlaySession
from mosaic.features.replay.api import replay_episodes
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application

__all__ = ["make_program", "program", "qapp", "settings_path", "the_window_is_quiet"]
plugins, workspace, live, trainer = shared_daemon.FIXTURES

SAFE_PATH = (
    Qt.Key.Key_Down, Qt.Key.Key_Down, Qt.Key.Key_Right, Qt.Key.Key_Right, Qt.Key.Key_Down, Qt.Key.Key_Right,
)  # fmt: skip
"""To the goal of FrozenLake without ice that slips."""
NOT_SLIPPERY = {"env_kwargs": "is_slippery=false"}
Open = Callable[..., PlayView]


@pytest.fixture(autouse=True, scope="module")
def _warm_checker(live: tuple[LiveDaemon, TrainerClient]) -> None:
    """It would otherwise start during a test, which would take it for a process of its own."""
    live[1].ask_worker("play", {"ask": "ping"})


@pytest.fixture
def open_page(program: Application, trainer: TrainerClient) -> Open:
    """Opens the play page with what was configured for an environment before."""

    def open_game(env_id: str, **draft: Any) -> PlayView:
        program.settings.put_for_workspace("play_environment", env_id)
        program.settings.put_for_workspace("play_games", {env_id: GameDraft(env_id, **draft).to_json()})
        program.start()
        program.window.show_page("play")
        pump(lambda: program.workbench.status, "the trainer")
        view = program.window.findChild(PlayView)
        assert view is not None
        pump(lambda: view.configuration.problem() == "", "the configuration to be checked")
        program.window.activateWindow()
        pump(program.window.isActiveWindow, "the window to be active")
        return view

    return open_game


def session_view(page: PlayView) -> SessionView:
    return find(page, "play.session", SessionView)


def state_of(session: PlaySession) -> SessionState:
    assert session.state is not None
    return session.state


def start(page: PlayView) -> PlaySession:
    click(find(page, "play.start"))
    pump(lambda: all(one.is_playing or one.problem for one in page.match.sessions), "the session")
    assert [one.problem for one in page.match.sessions if one.problem] == []
    return page.match.first


def stop(page: PlayView) -> None:
    click(find(page, "play.start"))
    pump(lambda: not page.match.is_active, "the end")
    assert [one.view.status for one in page.match.sessions if one.view] == ["ended"] * len(page.match.sessions)


def focused() -> QWidget:
    widget = QApplication.focusWidget()
    assert widget is not None
    return widget


def tap(key: Qt.Key, modifier: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    """As a person would: the key goes to the widget that has the focus."""
    QTest.keyPress(focused(), key, modifier)
    QTest.keyRelease(focused(), key, modifier)


def test_frozen_lake_is_played_with_arrow_keys_to_the_goal(open_page: Open, program: Application) -> None:
    """R9.1, R9.5, R9.6: the keys are the session's, the grid shows each move, and the recording is the same again."""
    page = open_page("FrozenLake-v1", texts=NOT_SLIPPERY)
    session, view = start(page), session_view(page)
    assert view.current_tab == GRID
    for number, key in enumerate(SAFE_PATH, 1):
        tap(key)
        pump(lambda: state_of(session).step == number, f"step {number}")  # noqa: B023
        assert focused() is view
    assert state_of(session).ending == "terminated"
    assert view.grid.symbols is not None
    assert view.grid.symbols.rows[3][3] == "goal+agent"
    assert "return 1" in find(view, "play.session.score", QLabel).text()
    pump(lambda: state_of(session).episode == 2, "the next episode")

    view.show_tab(RAW)
    assert "Observation\n0" in view.raw.toPlainText()
    view.show_tab(VIDEO)
    pump(lambda: view.frames.grid.has_image, "a frame")

    speed = find(page, "play.speed", QComboBox)
    for title, rate_hz in (("10 per second", 10.0), ("Fastest", None)):
        speed.setCurrentIndex(speed.findText(title))
        speed.activated.emit(speed.currentIndex())
        pump(lambda: state_of(session).rate_hz == rate_hz, title)  # noqa: B023

    click(find(page, "play.pause"))
    pump(lambda: state_of(session).is_paused, "the pause")
    type_text(find(page, "play.reset_seed", QLineEdit), "77")
    click(find(page, "play.reset"))
    pump(lambda: state_of(session).seed == 77, "the reset")
    click(find(page, "play.step"))
    tap(Qt.Key.Key_Down)
    pump(lambda: state_of(session).step == 1, "one step")
    tap(Qt.Key.Key_Down)
    click(find(page, "play.pause"))
    pump(lambda: not state_of(session).is_paused, "the end of the pause")

    # The palette opens with its keys, and with them the session has none.
    tap(Qt.Key.Key_K, Qt.KeyboardModifier.ControlModifier)
    pump(lambda: program.window.findChild(QWidget, "palette") is not None, "the palette")
    find(program.window, "palette").close()
    view.take_focus()
    tap(Qt.Key.Key_Escape)
    assert focused() is find(page, "play.start")

    # Another window would offer the session, as this one does once it does not follow it any more.
    page.match.close()
    offer = find(page, "play.offer")
    pump(offer.isVisible, "the offer to show it")
    click(find(page, "play.attach"))
    pump(lambda: session.is_playing, "the session")
    assert not offer.isVisible()
    step = state_of(session).step
    tap(Qt.Key.Key_Up)
    pump(lambda: state_of(session).step > step, "the step")
    stop(page)
    assert session.view is not None
    first = next(iter(replay_episodes(Path(session.view.run_dir) / "recording.bin")))
    assert (first.is_identical, first.steps, first.total_reward) == (True, 6, 1.0)


def test_a_session_that_is_killed_says_why_and_another_can_start(open_page: Open) -> None:
    """R9.1: the window lives on."""
    page = open_page("FrozenLake-v1", texts=NOT_SLIPPERY)
    session = start(page)
    pid = pump(lambda: session.view is not None and session.view.pid, "its process")
    os.kill(pid, signal.SIGKILL)
    problem = find(page, "play.session.problem", QLabel)
    pump(lambda: "SIGKILL" in problem.text(), "why it has ended")
    assert problem.isVisible()
    start(page)
    assert not problem.isVisible()
    stop(page)


def test_cartpole_is_played_by_held_keys_and_handed_over_to_a_policy(
    open_page: Open, program: Application, trainer: TrainerClient
) -> None:
    """R9.1, R9.3: in real time; a policy that was trained takes over in the middle, and the human takes back."""
    settings = {"env_id": "CartPole-v1", "total_timesteps": 512, "num_envs": 1, "seed": 1}
    trained = ended(trainer, trainer.submit(build_train_payload("cleanrl", "ppo", settings, {})).run_id)
    actor = ActorDraft("policy", {"policy": trained.run_id})
    page = open_page("CartPole-v1", mode=ControlMode.RESERVE, actor=actor)
    session, view = start(page), session_view(page)
    assert view.current_tab == VIDEO
    turn = find(view, "play.session.turn", QLabel)
    pump(lambda: "Press a key to start" in turn.text(), "what starts it")
    assert (state_of(session).is_paused, state_of(session).step) == (True, 0)
    for key, name in ((Qt.Key.Key_Right, "right"), (Qt.Key.Key_Left, "left")):
        QTest.keyPress(focused(), key)
        pump(lambda: state_of(session).seats[0].last_action == name, f"a push to the {name}")  # noqa: B023
        step = (state_of(session).episode, state_of(session).step)
        pump(lambda: (state_of(session).episode, state_of(session).step) > step, "further steps")  # noqa: B023
        QTest.keyRelease(focused(), key)

    switch = find(page, "play.switch", QToolButton)
    assert switch.text() == "Hand back"
    click(switch)
    pump(lambda: state_of(session).seats[0].actor == f"policy:{trained.run_id}", "the policy")
    pump(lambda: switch.text() == "Take over", "the button")
    click(switch)
    pump(lambda: state_of(session).seats[0].is_human, "the human")
    stop(page)


def has_moved(session: PlaySession, step: int) -> bool:
    """Whether it is the human's turn again, or the game is over."""
    state = state_of(session)
    return state.complete_episodes > 0 or (state.step > step and state.seats[0].is_to_act)


def test_tic_tac_toe_is_played_against_chance(open_page: Open) -> None:
    """R9.1: only cells that are free can be chosen, by key or button."""
    pytest.importorskip("pettingzoo")
    page = open_page("pettingzoo/tictactoe_v3")
    session, view = start(page), session_view(page)
    tap(Qt.Key.Key_5)
    pump(lambda: state_of(session).step == 2 and state_of(session).seats[0].is_to_act, "both moves")
    assert view.grid.symbols is not None
    assert view.grid.symbols.rows[1][1] == "cross"
    buttons = view.action_buttons.buttons
    assert not buttons[4].isEnabled()
    tap(Qt.Key.Key_5)
    turn = find(view, "play.session.turn", QLabel)
    pump(lambda: "not allowed" in turn.text(), "the refusal")
    while state_of(session).ending == "running" and state_of(session).complete_episodes == 0:
        step = state_of(session).step
        click(next(button for button in buttons if button.isEnabled()))
        pump(lambda: has_moved(session, step), "both moves")  # noqa: B023
    episode = state_of(session).last_episode
    assert episode is not None
    won = [seat.wins for seat in state_of(session).seats]
    assert won == [int(value > 0) for value in episode.returns.values()]
    stop(page)


def test_two_players_are_stepped_together_with_the_same_seed(open_page: Open) -> None:
    """R9.1: the one whose episode is over waits for the other; the score counts both."""
    page = open_page("FrozenLake-v1", texts={**NOT_SLIPPERY, "seed": "5"})
    click(find(page, "play.compare"))
    session = start(page)
    other = page.match.second
    early: list[tuple[SessionState, SessionState]] = []

    def watch() -> None:
        both = state_of(session), state_of(other)
        if max(state.episode for state in both) > 1 + min(state.complete_episodes for state in both):
            early.append(both)

    for one in page.match.sessions:
        one.state_changed.connect(watch)
    pump(lambda: state_of(other).step == 1, "the first step of the other")
    tap(Qt.Key.Key_Down)
    pump(lambda: state_of(session).step == 1, "the step")
    pump(lambda: state_of(other).step == 2 or state_of(other).complete_episodes, "the second step of the other")
    assert state_of(session).seed == state_of(other).seed == 5
    for key in SAFE_PATH[1:]:
        step = state_of(session).step
        tap(key)
        pump(lambda: state_of(session).step > step, "the step")  # noqa: B023
    # The human is at the goal; the other walks at random until its episode is over too.
    pump(lambda: page.match.wins[0] + page.match.draws == 1, "the score")
    pump(lambda: (state_of(session).episode, state_of(other).episode) == (2, 2), "the next episode of both")
    assert state_of(session).seed == state_of(other).seed == 6
    assert early == []
    assert find(page, "play.result", QLabel).text().startswith("human ")
    stop(page)


def test_a_comparison_in_real_time_starts_with_the_first_key(open_page: Open) -> None:
    page = open_page("MountainCar-v0")
    click(find(page, "play.compare"))
    session, other = start(page), page.match.second
    pump(lambda: other.state is not None and state_of(session).waits_for_key, "both to wait for a key")
    click(find(page, "play.reset"))
    pump(lambda: state_of(other).episode == 2, "the reset")
    assert (state_of(session).step, state_of(other).step) == (0, 0)
    find(page, "play.session", SessionView).take_focus()
    tap(Qt.Key.Key_Right)
    pump(lambda: min(state_of(session).step, state_of(other).step) > 1, "the steps of both")
    stop(page)


def test_a_comparison_ends_with_its_window(open_page: Open, program: Application, trainer: TrainerClient) -> None:
    """Only this window steps it: it would be paused for ever."""
    page = open_page("FrozenLake-v1", texts=NOT_SLIPPERY)
    click(find(page, "play.compare"))
    start(page)
    run_ids = [one.run_id for one in page.match.sessions]
    program.window.close()
    assert [ended(trainer, str(run_id)).status for run_id in run_ids] == ["ended", "ended"]


def test_a_model_that_cannot_act_waits_for_a_retry(open_page: Open) -> None:
    with running_llm_server() as server:
        server.answers = [says("ACTION: right"), fails(401, "bad key"), says("ACTION: down")]
        options = {"base_url": server.url}
        draft = ActorDraft("llm", {"llm": "a-model"}, {"llm": options})
        page = open_page("FrozenLake-v1", texts=NOT_SLIPPERY, mode=ControlMode.ACTOR, actor=draft)
        session = start(page)
        retry = find(page, "play.session.retry")
        pump(retry.isVisible, "the question")
        assert "bad key" in find(page, "play.session.problem", QLabel).text()
        assert (state_of(session).is_paused, state_of(session).step) == (True, 1)
        click(retry)
        pump(lambda: state_of(session).step > 1, "the next steps")
        assert not retry.isVisible()
        score = find(page, "play.session.score", QLabel)
        pump(lambda: "0 of " in score.text(), "the fallbacks beside the score")
        assert "actions were the fallback" in score.text()
        stop(page)
