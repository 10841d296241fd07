"""The configuration of a play session, as a person uses it, with a real daemon and its play worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QApplication,
    QCheckBox,
    QComboBox,
    QLabel,
    QLineEdit,
    QPushButton,
    QWidget,
)
from tests.helpers.daemons import ended
from tests.helpers.gui import click, find, press, pump, question_button, settle, type_text

from mosaic.base import secret_store as secrets
from mosaic.base.run_payloads import build_train_payload
from mosaic.features.play.window_config import GameConfiguration
from mosaic.features.play.window_draft import SESSION_FIELDS
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application
from mosaic.window.form_model import FieldTexts
from mosaic.window.form_rows import FieldRows


@pytest.fixture
def started(trainer: TrainerClient, program: Application) -> Application:
    program.start()
    pump(lambda: program.workbench.status is not None, "the connection")
    return program


@pytest.fixture
def form(started: Application) -> Iterator[GameConfiguration]:
    widget = open_form(started)
    yield widget
    widget.deleteLater()
    settle()


def open_form(program: Application) -> GameConfiguration:
    widget = GameConfiguration(program.workbench)
    widget.resize(380, 900)
    widget.show()
    pump(lambda: widget.is_checked, "the worker's answer")
    return widget


def choose(form: QWidget, name: str, data: object) -> None:
    """Choose an entry as a person does, which emits `activated`."""
    combo = find(form, name, QComboBox)
    index = combo.findData(data)
    assert index >= 0, [combo.itemData(number) for number in range(combo.count())]
    combo.setCurrentIndex(index)
    combo.activated.emit(index)


def choose_environment(form: GameConfiguration, env_id: str) -> None:
    find(form, "play.env_id", QComboBox).setEditText(env_id)
    pump(lambda: form.is_checked, f"the answer about {env_id}")


def warning(form: QWidget, name: str = "play.actor.warning") -> str:
    return find(form, name, QLabel).text()


def test_rows_are_not_shown_as_a_window_before_they_have_a_parent(qapp: QApplication) -> None:
    rows = FieldRows("play")
    rows.show_form(FieldTexts(SESSION_FIELDS))
    assert rows.rows
    assert not rows.isVisible()


def test_an_environment_its_settings_and_its_keys_are_configured_and_remembered(
    started: Application, form: GameConfiguration
) -> None:
    """R9.4: settings panel."""
    assert form.payload_request().actors == {"*": "human"}
    assert form.problem() == ""
    assert not find(form, "play.actor.kind").isEnabled(), "R9.2: off in pure human mode"
    find(form, "play.env.is_slippery", QCheckBox).setChecked(False)
    click(find(form, "play.keys.left"))
    press(find(form, "play.keys.left"), Qt.Key.Key_Up)
    assert find(form, "play.keys.problem", QLabel).text().startswith("Up is the key of 'up'.")
    click(find(form, "play.keys.left"))
    press(find(form, "play.keys.left"), Qt.Key.Key_A)
    type_text(find(form, "play.seed", QLineEdit), "7")
    request = form.payload_request()
    assert request.settings == {"env_kwargs": {"is_slippery": False}, "seed": 7}
    assert request.options == {"*": {"keys": {"left": "A"}}}
    pump(lambda: form.is_checked, "the worker's answer")
    assert form.problem() == ""

    type_text(find(form, "play.env_kwargs", QLineEdit), '{"map_name": "9x9"}')
    pump(lambda: form.is_checked and form.problem(), "the refusal")
    assert "Map name: Expected one of 4x4, 8x8" in form.problem()
    type_text(find(form, "play.env_kwargs", QLineEdit), "{")
    assert form.problem().startswith("Its settings: Expected name=value pairs")
    type_text(find(form, "play.env_kwargs", QLineEdit), "")

    choose_environment(form, "CartPole-v1")
    assert form.payload_request().settings == {}, "another environment has its own settings"
    choose_environment(form, "FrozenLake-v1")
    assert form.payload_request() == request
    again = open_form(started)
    assert again.payload_request() == request
    click(find(again, "play.keys.reset", QPushButton))
    assert again.payload_request().options == {"*": {}}
    again.set_locked(True)
    assert not find(again, "play.mode").isEnabled()
    again.deleteLater()


def test_a_finished_run_is_offered_and_an_actor_that_does_not_fit_is_named(
    trainer: TrainerClient, form: GameConfiguration, started: Application
) -> None:
    """R9.3: a finished run's policy is in the list without any step. R9.2: warns on misfit with the reason."""
    settings = {"env_id": "CartPole-v1", "total_timesteps": 512, "seed": 1}
    run = trainer.submit(build_train_payload("cleanrl", "ppo", settings, {})).run_id
    assert ended(trainer, run, 120).outcome == "succeeded"
    pump(lambda: (view := started.workbench.runs.get(run)) and view.checkpoint_step, "the run in the window")

    choose_environment(form, "CartPole-v1")
    choose(form, "play.mode", "reserve")
    choose(form, "play.actor.kind", "policy")
    assert form.payload_request().settings["standby"] == {"kind": "policy", "target": run}
    pump(lambda: form.is_checked, "the answer")
    assert (form.problem(), warning(form)) == ("", "")

    choose_environment(form, "Acrobot-v1")
    choose(form, "play.mode", "actor")
    choose(form, "play.actor.kind", "policy")
    assert form.problem() == "Trained policy: choose a run or a file."
    choose(form, "play.actor.policy.example", run)
    pump(lambda: form.is_checked, "the answer")
    assert "CartPole-v1" in form.problem(), form.problem()
    assert warning(form) == form.problem()

    choose_environment(form, "Pendulum-v1")
    choose(form, "play.mode", "actor")
    choose(form, "play.actor.kind", "llm")
    type_text(find(form, "play.actor.target", QLineEdit), "llama3")
    pump(lambda: form.is_checked, "the answer")
    assert "needs numbered actions; those of Pendulum-v1 are continuous" in warning(form)


def test_each_agent_of_a_game_has_a_player(form: GameConfiguration) -> None:
    """R9.1: single- and multi-agent."""
    choose_environment(form, "pettingzoo/tictactoe_v3")
    assert form.payload_request().actors == {"player_1": "human", "player_2": "random"}
    choose(form, "play.agent.player_1.kind", "random")
    choose(form, "play.agent.player_2.kind", "human")
    pump(lambda: form.is_checked, "the answer")
    assert form.problem() == ""
    choose(form, "play.agent.player_1.kind", "bdi")
    choose(form, "play.agent.player_1.example", "frozen_lake")
    pump(lambda: form.is_checked, "the answer")
    assert form.problem()
    assert warning(form, "play.agent.player_1.warning") == form.problem()


def test_the_key_of_a_model_is_stored_and_removed_in_the_actor_box(
    form: GameConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "keyring", NoKeyring())
    choose(form, "play.mode", "actor")
    choose(form, "play.actor.kind", "llm")
    state = find(form, "play.actor.key_state", QLabel)
    pump(lambda: state.text() == "No key of yours is stored.", "the state of the key")
    field = find(form, "play.actor.key", QLineEdit)
    field.setText("sk-canary")
    click(find(form, "play.actor.store_key"))
    assert field.text() == ""
    pump(lambda: "which only you can read" in state.text(), "the stored key")
    assert secrets.find_secret("openai_api_key") == "sk-canary"
    click(find(form, "play.actor.remove_key"))
    assert secrets.find_secret("openai_api_key") == "sk-canary", "it is asked first"
    click(question_button("secret.question.yes"))
    pump(lambda: state.text() == "No key of yours is stored.", "the removed key")
    assert secrets.find_secret("openai_api_key") is None


class NoKeyring(secrets.KeyringClient):
    def request(self, verb: str, name: str, value: str = "") -> str | bool | None:
        return None
