"""What the train form finds while an environment is typed, how it lists algorithms, and what it expects of a run."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QComboBox, QLabel, QMenu, QPushButton, QToolButton, QWidget
from tests.helpers.gui import click, find, press, pump, type_text
from tests.helpers.gui_runs import FakeTrainer, start_with, view

from mosaic.base.user_presets import TUNED_PRESETS, TunedPreset
from mosaic.contracts.errors import refuse_key
from mosaic.contracts.views import EnvironmentDetails, EnvironmentListing
from mosaic.features.train.core import earlier_runs, estimate_run
from mosaic.features.train.window import TrainView
from mosaic.features.train.window_model import best_runs, worker_algorithms
from mosaic.window.app import Application
from mosaic.window.environments import EnvironmentFinding, algorithm_groups, check_environment, sort_environments
from mosaic.window.form import FormColumns
from mosaic.window.form_rows import AlgorithmBox

LISTED = sort_environments(
    EnvironmentListing(id=env_id, family=family, is_installed=True)
    for env_id, family in (
        ("CartPole-v0", "classic_control"),
        ("CartPole-v1", "classic_control"),
        ("Pendulum-v1", "classic_control"),
        ("ALE/Pong-v5", "atari"),
    )
)


def details(env_id: str, actions: str, family: str = "classic_control") -> EnvironmentDetails:
    return EnvironmentDetails(id=env_id, family=family, family_title=family, about="", action_space=actions)


def check(env_id: str, algo: str, about: EnvironmentDetails | None = None) -> EnvironmentFinding:
    known = worker_algorithms("cleanrl")
    return check_environment(env_id, next(one for one in known if one.name == algo), LISTED, about, known)


def test_the_newest_version_of_an_environment_is_listed_first() -> None:
    assert [listing.id for listing in LISTED if listing.id.startswith("Cart")] == ["CartPole-v1", "CartPole-v0"]


@pytest.mark.parametrize("typed", ["CartPol-v1", "cartpole", "Cartpole-v1", "CartPo"])
def test_a_misspelled_environment_has_a_suggestion(typed: str) -> None:
    finding = check(typed, "ppo")
    assert finding.environments == ("CartPole-v1",)
    assert finding.text == f"No environment {typed!r} is listed. Did you mean:"


@pytest.mark.parametrize("typed", ["", "CartPole-v1", "CartPole", "my_envs:Maze-v0", "pettingzoo/connect_four_v3"])
def test_what_is_known_or_cannot_be_known_is_not_questioned(typed: str) -> None:
    assert check(typed, "ppo") == EnvironmentFinding()


def test_an_algorithm_for_other_actions_is_found_with_those_that_fit() -> None:
    finding = check("Pendulum-v1", "ppo", details("Pendulum-v1", "Box(1,)"))
    assert finding.text.startswith("Its actions are Box(1,); ppo needs Discrete")
    assert finding.algorithms[0] == "ppo_continuous_action"
    assert "sac_continuous_action" in check("Pendulum-v1", "sac_atari", details("Pendulum-v1", "Box(1,)")).algorithms
    assert check("Pendulum-v1", "ppo_continuous_action", details("Pendulum-v1", "Box(1,)")) == EnvironmentFinding()


def test_algorithms_for_frames_of_games_fit_games_alone() -> None:
    finding = check("CartPole-v1", "dqn_atari", details("CartPole-v1", "Discrete(2)"))
    assert "frames of Atari games" in finding.text
    assert finding.algorithms[0] == "dqn"
    assert check("ALE/Pong-v5", "dqn_atari", details("ALE/Pong-v5", "Discrete(6)", "atari")) == EnvironmentFinding()


def test_algorithms_are_grouped_by_action_space() -> None:
    groups = dict(algorithm_groups(worker_algorithms("cleanrl")))
    assert {"dqn", "ppo"} <= set(groups["Discrete actions"])
    assert "sac_continuous_action" in groups["Continuous actions"]
    assert "a2c" in groups["Discrete and continuous actions"]
    assert "dqn_atari" in groups["Games"]
    assert sorted(name for names in groups.values() for name in names) == sorted(
        one.name for one in worker_algorithms("cleanrl")
    )


def opened(program: Application) -> QWidget:
    window = program.window
    window.show()
    program.workbench.form_requested.emit(None)
    pump(lambda: window.findChild(QWidget, "train.notes"), "the form")
    find(window, "train.scroll", FormColumns).finish_building()
    environments = program.workbench.environments
    environments._known["cleanrl"] = LISTED
    environments._requested_details.update(listing.id for listing in LISTED)
    environments._details["Pendulum-v1"] = details("Pendulum-v1", "Box(1,)")
    environments.environments_loaded.emit("cleanrl")
    return window


def test_the_suggestions_of_the_form_are_buttons(program: Application) -> None:
    window = opened(program)
    box = find(window, "train.env_id", QComboBox)
    type_text(box, "Pendulm")
    assert "Did you mean" in find(window, "train.note.env_id", QLabel).text()
    click(find(window, "suggest.Pendulum-v1", QPushButton))
    assert box.currentText() == "Pendulum-v1"
    assert "These fit:" in find(window, "train.note.env_id", QLabel).text()
    form = window.findChild(TrainView)
    assert form is not None
    form.on_refused(refuse_key("env_id", "ppo needs a discrete action space."))  # as the dry run refuses it
    assert "These fit:" in find(window, "train.note.env_id", QLabel).text(), "the buttons stay"
    click(find(window, "suggest.ppo_continuous_action", QPushButton))
    find(window, "train.scroll", FormColumns).finish_building()
    assert program.workbench.training.draft.algorithm == "ppo_continuous_action"
    assert box is not find(window, "train.env_id", QComboBox) or box.currentText() == "Pendulum-v1"
    assert "These fit" not in find(window, "train.note.env_id", QLabel).text()


def test_the_box_of_algorithms_is_searched_by_typing_and_changes_the_form_once(program: Application) -> None:
    window = opened(program)
    box = find(window, "train.algorithm", AlgorithmBox)
    pump(box.hasFocus, "the focus in the first field")
    replaced: list[str] = []
    program.workbench.training.draft_replaced.connect(
        lambda: replaced.append(program.workbench.training.draft.algorithm)
    )
    type_text(box, "ppo_cont")
    assert replaced == []
    press(box, Qt.Key.Key_Return)
    assert replaced == ["ppo_continuous_action"]
    type_text(box, "nothing like this")
    press(box, Qt.Key.Key_Return)
    assert box.currentText() == "ppo_continuous_action"
    assert replaced == ["ppo_continuous_action"]
    program.workbench.form_requested.emit(None)  # Ctrl+N, with the focus in the box
    QTest.keyClicks(box, "dqn")
    press(box, Qt.Key.Key_Return)
    assert replaced[-1] == "dqn"


def test_a_run_is_estimated_from_earlier_runs_in_the_same_environment() -> None:
    views = [
        view(1, sps=100.0, env_id="Acrobot-v1"),
        view(2, sps=1000.0),
        view(3, sps=3000.0, hardware={"at": 1_700_000_050.0, "rss_mb": 300.0}),
        view(4, sps=2000.0, hardware={"at": 1_700_000_006.0, "rss_mb": 900.0}),  # sampled when it started
        view(5, algo="dqn", sps=5.0),
        view(6, sps=None),
    ]
    runs = earlier_runs(views, "ppo", "CartPole-v1")
    assert [one.run_id for one in runs] == [views[number].run_id for number in (3, 2, 1)]
    estimate = estimate_run(runs, "CartPole-v1", 200_000, 5_000_000)
    assert estimate.seconds == 100
    text = estimate.format(count=2)
    assert "1m 40s" in text
    assert "300 MB of memory" in text
    assert "for each of 2 runs, judging by 3 earlier runs of ppo in CartPole-v1." in text
    elsewhere = estimate_run(earlier_runs(views, "ppo", "Other-v1"), "Other-v1", 1000)
    assert "in other environments" in elsewhere.format()
    assert "not known yet" in estimate_run([], "CartPole-v1", 1000).format()


def test_the_settings_of_the_best_run_of_each_algorithm_are_offered() -> None:
    views = [
        view(1, episodic_return=100.0),
        view(2, episodic_return=480.0),
        view(3, episodic_return=300.0, algo="dqn"),
        view(4, episodic_return=500.0, env_id="Acrobot-v1"),
        view(5, episodic_return=490.0, outcome="failed"),
        view(6, episodic_return=None, algo="c51"),
    ]
    assert [one.run_id for one in best_runs(views, "CartPole-v1")] == [views[1].run_id, views[2].run_id]


def test_the_form_is_filled_from_the_best_run(program: Application) -> None:
    trainer = FakeTrainer([view(1, episodic_return=480.0)])
    trainer.payload["metadata"]["worker"]["config"]["algo_params"] = {"gamma": 0.5}
    start_with(program, trainer)
    window = opened(program)
    menu = find(window, "train.presets", QToolButton).menu()
    assert menu is not None
    menu.aboutToShow.emit()
    best = next(action.menu() for action in menu.actions() if action.text().endswith("best runs in CartPole-v1"))
    assert isinstance(best, QMenu)
    assert best.actions()[0].text().startswith("ppo: return 480")
    best.actions()[0].trigger()
    pump(lambda: program.workbench.training.draft.texts == {"gamma": "0.5"}, "the settings of that run")


@pytest.mark.parametrize("preset", TUNED_PRESETS, ids=lambda preset: preset.name)
def test_a_tuned_preset_fills_the_form_with_its_settings(program: Application, preset: TunedPreset) -> None:
    window = opened(program)
    menu = find(window, "train.presets", QToolButton).menu()
    assert menu is not None
    menu.aboutToShow.emit()
    tuned = next(action.menu() for action in menu.actions() if action.text() == "Tuned settings")
    assert isinstance(tuned, QMenu)
    action = next(one for one in tuned.actions() if one.toolTip() == preset.describe())
    action.trigger()
    training = program.workbench.training
    assert training.draft.algorithm == preset.algorithm
    (payload,) = training.payloads()
    config = payload["metadata"]["worker"]["config"]
    assert config["algo_params"] == preset.changes, "none of them is the default"
    assert (config["env_id"], config["total_timesteps"]) == (preset.env_id, preset.total_timesteps)
