"""The settings of the environment in the train form, with a real daemon."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QCheckBox, QComboBox, QLabel, QLineEdit, QWidget
from tests.helpers.gui import find, pump, type_text

from mosaic.client import TrainerClient
from mosaic.contracts.setting_field import SettingField
from mosaic.gui.app import Application
from mosaic.gui.forms.train_form import TrainForm
from mosaic.gui.models.draft import draft_from_payload, to_command_line
from mosaic.gui.models.env_settings_text import (
    object_problem,
    others_text,
    setting_texts,
    settings_problems,
    with_others,
    with_setting,
)

SLIPPERY = SettingField("is_slippery", "bool", True)
MODE = SettingField("mode", "int", None, constraints={"ge": 0}, is_optional=True)
FIELDS = (SLIPPERY, MODE)


def test_settings_are_parts_of_one_object() -> None:
    text = with_setting("", SLIPPERY, "false")
    assert text == '{"is_slippery": false}'
    text = with_others(with_setting(text, MODE, "3"), FIELDS, '{"x": [1]}')
    assert text == '{"is_slippery": false, "mode": 3, "x": [1]}'
    assert setting_texts(FIELDS, text) == {"is_slippery": "false", "mode": "3"}
    assert others_text(FIELDS, text) == '{"x": [1]}'
    assert with_setting(with_setting(text, MODE, ""), SLIPPERY, "true") == '{"x": [1]}'


def test_what_is_typed_is_kept_while_it_is_invalid() -> None:
    text = with_setting("", MODE, "abc")
    assert setting_texts(FIELDS, text) == {"mode": "abc"}
    assert settings_problems(FIELDS, text) == {"mode": "Expected a whole number of at least 0, or none."}
    assert with_others(text, FIELDS, "{") == "{"
    assert object_problem("{")
    assert object_problem("[1]")
    assert object_problem("") == ""


@pytest.mark.usefixtures("trainer")
def test_the_settings_of_the_chosen_environment_are_rows(
    program: Application, trainer: TrainerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.14: environment settings in the form."""
    program.start()
    window = program.window
    window.show()
    bench = program.workbench
    bench.form_requested.emit(None)
    pump(lambda: window.findChild(QWidget, "train.notes"), "the form")
    form = find(window, "train.scroll", TrainForm)
    form.finish_building()
    pump(lambda: bench.environments.for_worker("cleanrl"), "the environments")
    find(window, "train.env_id", QComboBox).setEditText("FrozenLake-v1")
    pump(lambda: window.findChild(QWidget, "train.env.is_slippery"), "the settings of FrozenLake")
    find(window, "train.env.is_slippery", QCheckBox).setChecked(False)
    type_text(find(window, "train.env_kwargs", QLineEdit), '{"success_rate": 0.5}')
    training = bench.training
    (payload,) = training.payloads()
    expected = {"is_slippery": False, "success_rate": 0.5}
    assert payload["metadata"]["worker"]["config"]["algo_params"] == {"env_kwargs": expected}
    assert """--env-kwargs '{"is_slippery": false, "success_rate": 0.5}'""" in to_command_line(
        training.layout, training.draft
    )
    assert draft_from_payload(payload).texts == training.draft.texts
    assert trainer.check(payload).summary.settings["env_kwargs"] == expected

    type_text(find(window, "train.env.desc", QLineEdit), "{")
    assert form.problems() == {"env_kwargs": "desc: Expected JSON, or none."}
    assert find(window, "train.env.note.desc", QLabel).text() == "Expected JSON, or none."
    find(window, "train.env_id", QComboBox).setEditText("CartPole-v1")
    pump(lambda: window.findChild(QWidget, "train.env.sutton_barto_reward"), "the settings of CartPole")
    # What was set in the rows of another environment is dropped; what was written is not.
    assert training.draft.texts["env_kwargs"] == '{"success_rate": 0.5}'

    # An environment of one's own, from the folder of the window, with wrappers.
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium\ngymnasium.register('Own-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    monkeypatch.chdir(tmp_path)
    type_text(find(window, "train.env_kwargs", QLineEdit), "")
    find(window, "train.env_id", QComboBox).setEditText("my_envs:Own-v0")
    type_text(find(window, "train.wrappers", QLineEdit), "frame-stack(4)")
    assert form.problems()["wrappers"].startswith("Expected wrappers such as frame-stack(stack_size=4)")
    type_text(find(window, "train.wrappers", QLineEdit), "frame-stack(stack_size=2), reward-scale(scale=0.1)")
    (payload,) = training.payloads()
    wrappers = ["frame-stack(stack_size=2)", "reward-scale(scale=0.1)"]
    assert payload["metadata"]["worker"]["config"]["algo_params"] == {"wrappers": wrappers}
    command = to_command_line(training.layout, training.draft)
    assert "--wrappers 'frame-stack(stack_size=2)' --wrappers 'reward-scale(scale=0.1)'" in command
    assert draft_from_payload(payload).texts == training.draft.texts
    environment = trainer.check(payload).summary.environment
    assert (environment.id, "(2, 4)" in str(environment.observation_space)) == ("Own-v0", True)
