"""The settings of the environment in the train form, with a real daemon."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QCheckBox, QComboBox, QLabel, QLineEdit, QWidget
from tests.helpers.gui import find, pump, type_text

from mosaic.contracts.errors import BadInput
from mosaic.contracts.setting_field import SettingField
from mosaic.features.train.window import TrainView
from mosaic.features.train.window_model import draft_from_payload
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application
from mosaic.window.form import FormColumns
from mosaic.window.form_model import parse_object, read_object, write_object

SLIPPERY = SettingField("is_slippery", "bool", True)
MODE = SettingField("mode", "int", None, constraints={"ge": 0}, is_optional=True)
FIELDS = (SLIPPERY, MODE)


def test_settings_are_parts_of_one_object() -> None:
    form, others = read_object(FIELDS, "is_slippery=false, x=[1]")
    assert (form.texts, others) == ({"is_slippery": "false"}, {"x": [1]})
    text = write_object(form.with_text("mode", "3"), others)
    assert text == '{"is_slippery": false, "mode": 3, "x": [1]}'
    form, others = read_object(FIELDS, text)
    assert form.texts == {"is_slippery": "false", "mode": "3"}
    assert write_object(form.with_text("mode", "").with_text("is_slippery", "true"), others) == '{"x": [1]}'


def test_what_is_typed_is_kept_while_it_is_invalid() -> None:
    text = write_object(read_object(FIELDS, "")[0].with_text("mode", "abc"), {})
    form, _ = read_object(FIELDS, text)
    assert form.texts == {"mode": "abc"}
    assert form.problems() == {"mode": "Expected a whole number of at least 0, or none."}
    for damaged in ("{", "[1]"):
        with pytest.raises(BadInput):
            parse_object(damaged)
    assert parse_object("") == {}


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
    form = find(window, "train.scroll", FormColumns)
    form.finish_building()
    view = window.findChild(TrainView)
    assert view is not None
    pump(lambda: bench.environments.for_worker("cleanrl"), "the environments")
    find(window, "train.env_id", QComboBox).setEditText("FrozenLake-v1")
    pump(lambda: window.findChild(QWidget, "train.env.is_slippery"), "the settings of FrozenLake")
    find(window, "train.env.is_slippery", QCheckBox).setChecked(False)
    type_text(find(window, "train.env_kwargs", QLineEdit), '{"success_rate": 0.5}')
    training = bench.training
    (payload,) = training.payloads()
    expected = {"is_slippery": False, "success_rate": 0.5}
    assert payload["metadata"]["worker"]["config"]["algo_params"] == {"env_kwargs": expected}
    assert """--env-kwargs '{"is_slippery": false, "success_rate": 0.5}'""" in training.draft.command_line()
    assert draft_from_payload(payload).texts == training.draft.texts
    assert trainer.check(payload).summary.settings["env_kwargs"] == expected

    type_text(find(window, "train.env.desc", QLineEdit), "{")
    assert view.problems() == {"env_kwargs": "desc: Expected JSON, or none."}
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
    assert view.problems()["wrappers"].startswith("Expected wrappers such as frame-stack(stack_size=4)")
    type_text(find(window, "train.wrappers", QLineEdit), "frame-stack(stack_size=2), reward-scale(scale=0.1)")
    (payload,) = training.payloads()
    wrappers = ["frame-stack(stack_size=2)", "reward-scale(scale=0.1)"]
    assert payload["metadata"]["worker"]["config"]["algo_params"] == {"wrappers": wrappers}
    command = training.draft.command_line()
    assert "--wrappers 'frame-stack(stack_size=2)' --wrappers 'reward-scale(scale=0.1)'" in command
    assert draft_from_payload(payload).texts == training.draft.texts
    environment = trainer.check(payload).summary.environment
    assert (environment.id, "(2, 4)" in str(environment.observation_space)) == ("Own-v0", True)
