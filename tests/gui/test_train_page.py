"""The train form, the policy form and the control panel, as a person uses them."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QInputDialog,
    QLabel,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QTextBrowser,
    QToolButton,
    QWidget,
)
from tests.helpers.daemons import LiveDaemon, ended
from tests.helpers.gui import click, find, press, pump, settle, type_text
from tests.helpers.gui_runs import run_id, view
from tests.helpers.probe_cleanrl import make_checkout

from mosaic.base.user_presets import Preset, presets_path, read_presets, save_preset
from mosaic.contracts.views import EnvironmentListing
from mosaic.features.train.window import PresetsMenu
from mosaic.features.train.window_model import Draft, Training, forget_scripts
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application
from mosaic.window.environments import sort_environments
from mosaic.window.form import FormColumns
from mosaic.window.form_rows import LabelledRow

LISTED = [
    EnvironmentListing(id="CartPole-v1", family="classic_control", is_installed=True, extra="train"),
    EnvironmentListing(id="Ant-v5", family="mujoco", is_installed=True, extra="mujoco"),
    EnvironmentListing(id="ALE/Pong-v5", family="atari", is_installed=False, extra="atari"),
]


def opened(program: Application) -> QWidget:
    """The window at the train form, with every row built."""
    window = program.window
    window.show()
    program.workbench.form_requested.emit(None)
    pump(lambda: window.findChild(QWidget, "train.notes"), "the form")
    find(window, "train.scroll", FormColumns).finish_building()
    return window


def choose_algorithm(window: QWidget, name: str) -> None:
    box = find(window, "train.algorithm", QComboBox)
    type_text(box, name)
    press(box, Qt.Key.Key_Return)


def state_of(window: QWidget, name: str) -> tuple[bool, str]:
    """Whether the field is marked as changed, and what stands under it."""
    reset = find(window, f"train.reset.{name}", QToolButton)
    return not reset.isHidden(), find(window, f"train.note.{name}", QLabel).text()


def test_the_form_shows_the_defaults(program: Application) -> None:
    window = opened(program)
    assert find(window, "train.algorithm", QComboBox).currentText() == "ppo"
    assert find(window, "train.learning_rate", QLineEdit).text() == "0.00025"
    assert find(window, "train.anneal_lr", QCheckBox).isChecked()
    assert find(window, "train.target_kl", QLineEdit).text() == ""
    assert find(window, "train.env_id", QComboBox).currentText() == "CartPole-v1"
    assert state_of(window, "learning_rate") == (False, "The learning rate of Adam; 1e-4 to 1e-3 are usual.")
    assert find(window, "train.count", QLabel).text() == "all defaults"


def test_a_changed_field_is_marked_and_can_be_reset(program: Application) -> None:
    window = opened(program)
    edit = find(window, "train.learning_rate", QLineEdit)
    type_text(edit, "0.001")
    assert state_of(window, "learning_rate")[0]
    assert find(window, "train.count", QLabel).text() == "1 changed"
    click(find(window, "train.reset.learning_rate", QToolButton))
    assert edit.text() == "0.00025"
    assert not state_of(window, "learning_rate")[0]


def test_invalid_input_is_marked_while_typing_and_not_submitted(program: Application) -> None:
    window = opened(program)
    type_text(find(window, "train.learning_rate", QLineEdit), "3")
    assert state_of(window, "learning_rate")[1] == "Expected a number above 0 and below 1."
    click(find(window, "train.submit", QPushButton))
    assert "Learning rate: Expected a number" in find(window, "train.verdict", QLabel).text()
    assert find(window, "train.submit", QPushButton).isEnabled()


def test_all_wrong_fields_are_marked_and_named_and_the_first_has_the_focus(program: Application) -> None:
    window = opened(program)
    for name, text in (("total_timesteps", "0"), ("gamma", "2"), ("cpus", "many")):
        type_text(find(window, f"train.{name}", QLineEdit), text)
    click(find(window, "train.submit", QPushButton))
    for name in ("total_timesteps", "gamma", "cpus"):
        assert state_of(window, name)[1].startswith("Expected ")
    verdict = find(window, "train.verdict", QLabel).text()
    assert all(label in verdict for label in ("Total timesteps", "Gamma", "CPUs"))
    assert find(window, "train.total_timesteps", QLineEdit).hasFocus()


def test_ctrl_return_submits(program: Application) -> None:
    window = opened(program)
    edit = find(window, "train.gamma", QLineEdit)
    type_text(edit, "2")
    press(edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert "Gamma: Expected a number" in find(window, "train.verdict", QLabel).text()


def test_another_algorithm_keeps_what_was_written(program: Application) -> None:
    window = opened(program)
    type_text(find(window, "train.gamma", QLineEdit), "0.5")
    choose_algorithm(window, "ppo_continuous_action")
    find(window, "train.scroll", FormColumns).finish_building()
    assert program.workbench.training.draft.texts == {"gamma": "0.5"}
    assert find(window, "train.gamma", QLineEdit).text() == "0.5"
    assert find(window, "train.env_id", QComboBox).currentText() == "HalfCheetah-v5"
    assert "continuous" in find(window, "train.help.text", QTextBrowser).toPlainText()


def test_another_worker_and_back_keeps_the_algorithm_and_the_steps(program: Application) -> None:
    """R7.1: also what is common to both workers."""
    window = opened(program)
    choose_algorithm(window, "ppo_lstm")
    find(window, "train.scroll", FormColumns).finish_building()
    type_text(find(window, "train.total_timesteps", QLineEdit), "777777")
    worker = find(window, "train.worker", QComboBox)
    worker.setCurrentText("bdi")
    find(window, "train.scroll", FormColumns).finish_building()
    assert find(window, "train.algorithm", QComboBox).currentText() == "bdi_q"
    type_text(find(window, "train.total_timesteps", QLineEdit), "2048")
    worker.setCurrentText("cleanrl")
    find(window, "train.scroll", FormColumns).finish_building()
    assert find(window, "train.algorithm", QComboBox).currentText() == "ppo_lstm"
    assert find(window, "train.total_timesteps", QLineEdit).text() == "777777"
    worker.setCurrentText("bdi")
    find(window, "train.scroll", FormColumns).finish_building()
    assert find(window, "train.total_timesteps", QLineEdit).text() == "2048"


def test_resetting_all_reaches_the_field_that_is_typed_in(program: Application) -> None:
    window = opened(program)
    edit = find(window, "train.gamma", QLineEdit)
    type_text(edit, "0.5")
    click(find(window, "train.reset", QToolButton))
    assert edit.text() == "0.99"
    assert program.workbench.training.draft.texts == {}


def test_several_seeds_show_the_number_of_runs(program: Application) -> None:
    window = opened(program)
    click(find(window, "train.several", QCheckBox))
    type_text(find(window, "train.seed", QLineEdit), "1-3,7")
    assert state_of(window, "seed")[1] == "4 runs in one group, one for each seed."
    type_text(find(window, "train.seed", QLineEdit), "1-")
    assert state_of(window, "seed")[1] == "Expected seeds such as 1-5 or 1,3,7."
    click(find(window, "train.reset.seed", QToolButton))
    assert find(window, "train.seed", QLineEdit).text() == "1"
    assert not find(window, "train.several", QCheckBox).isChecked()


def test_environments_that_are_not_installed_are_listed_but_cannot_be_chosen(program: Application) -> None:
    window = opened(program)
    environments = program.workbench.environments
    environments._known["cleanrl"] = sort_environments(LISTED)
    environments.environments_loaded.emit("cleanrl")
    ids = find(window, "train.env_id", QComboBox)
    model: Any = ids.model()
    assert [model.item(row).isEnabled() for row in range(model.rowCount())] == [True, True, False]
    assert "mosaic-rl[atari]" in model.item(2).text()
    family = find(window, "train.family", QComboBox)
    family.setCurrentIndex(family.findData("mujoco"))
    assert [ids.itemText(row) for row in range(ids.count())] == ["Ant-v5"]
    assert ids.currentText() == "CartPole-v1"
    type_text(ids, "ALE/Pong-v5")
    assert "mosaic-rl[atari]" in state_of(window, "env_id")[1]


def test_the_command_and_the_config_can_be_copied(program: Application) -> None:
    window = opened(program)
    type_text(find(window, "train.total_timesteps", QLineEdit), "1e4")
    click(find(window, "train.copy_cli", QPushButton))
    copied = QGuiApplication.clipboard().text()
    assert shlex.split(copied)[:7] == [
        *("mosaic", "train", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "10000")
    ]
    click(find(window, "train.copy_json", QPushButton))
    config = json.loads(QGuiApplication.clipboard().text())["metadata"]["worker"]["config"]
    assert config["total_timesteps"] == 10_000


def test_presets_are_saved_loaded_and_deleted(program: Application) -> None:
    window = opened(program)
    training = program.workbench.training
    type_text(find(window, "train.gamma", QLineEdit), "0.5")
    button = find(window, "train.presets", QToolButton)
    menu = button.menu()
    assert menu is not None
    menu.aboutToShow.emit()
    next(action for action in menu.actions() if action.text() == "Save as preset…").trigger()
    dialog = pump(lambda: window.findChild(QInputDialog, "train.presets.name"), "the question for a name")
    dialog.setTextValue("a & b")
    dialog.accept()
    assert list(read_presets()) == ["a & b"]
    click(find(window, "train.reset", QToolButton))
    assert training.draft.texts == {}
    undo = find(window, "message.button", QPushButton)
    click(undo)
    assert training.draft.texts == {"gamma": "0.5"}
    assert find(window, "train.gamma", QLineEdit).text() == "0.5"
    click(find(window, "train.reset", QToolButton))
    menu.aboutToShow.emit()
    next(action for action in menu.actions() if action.text() == "a && b").trigger()
    assert training.draft.texts == {"gamma": "0.5"}
    delete = next(action.menu() for action in menu.actions() if action.text() == "Delete")
    assert delete is not None
    delete.actions()[0].trigger()  # type: ignore[attr-defined]
    assert read_presets() == {}
    click(undo)
    assert list(read_presets()) == ["a & b"]
    menu.aboutToShow.emit()
    next(action for action in menu.actions() if action.text() == "a && b").trigger()
    assert training.draft.texts == {"gamma": "0.5"}


def test_a_preset_that_is_replaced_can_be_brought_back(program: Application) -> None:
    window, training = opened(program), program.workbench.training
    presets = find(window, "train.presets", QToolButton).findChild(PresetsMenu)
    assert presets is not None
    training.edit(replace(training.draft, texts={"gamma": "0.5"}))
    presets.save("mine")
    training.edit(replace(training.draft, texts={"gamma": "0.6"}))
    presets.save("mine")
    program.window.action("edit.undo").trigger()
    presets.load("mine")
    assert training.draft.texts == {"gamma": "0.5"}
    program.window.action("edit.undo").trigger()
    assert training.draft.texts == {"gamma": "0.6"}, "what loading a preset has replaced"


def test_a_preset_that_cannot_be_saved_or_read_is_explained(program: Application) -> None:
    window, training = opened(program), program.workbench.training
    presets = find(window, "train.presets", QToolButton).findChild(PresetsMenu)
    assert presets is not None
    messages: list[str] = []
    program.workbench.message_posted.connect(lambda text, _: messages.append(text))
    training.edit(replace(training.draft, texts={"gamma": "much"}))
    presets.save("mine")
    assert messages.pop().startswith("gamma: Expected a number")
    training.edit(replace(training.draft, texts={}, seeds="many"))
    presets.save("mine")
    assert messages.pop().startswith("seed: Expected seeds such as")
    assert read_presets() == {}
    save_preset("elsewhere", Preset("nosuch", "magic"))
    presets.load("elsewhere")
    assert "no algorithm 'magic' of the worker 'nosuch'" in messages.pop()
    program.workbench.delete_preset("elsewhere")
    presets.load("elsewhere")
    assert messages.pop() == "No preset 'elsewhere'."
    presets_path().write_text("{")
    presets.fill()
    assert "is damaged" in messages.pop()
    assert "The presets cannot be read" in [action.text() for action in presets.menu.actions()]
    program.window.action("edit.undo").trigger()  # the deletion cannot be undone in a file that cannot be read
    assert "is damaged" in messages.pop()
    assert presets_path().read_text() == "{"


def test_presets_in_the_settings_of_an_earlier_window_are_taken_over_once(
    make_program: Callable[[], Application],
) -> None:
    drafts = {
        "mine": Draft("cleanrl", "ppo", {"gamma": "0.5", "total_timesteps": "3M"}, "1-2", {"artifacts": {"x": 1}}),
        "newer": Draft("cleanrl", "ppo", {"gamma": "0.5"}),
        "elsewhere": Draft("nosuch", "magic", {"gamma": "0.5"}),
    }
    save_preset("newer", Preset("cleanrl", "dqn"))
    settings = make_program().settings
    settings.put("presets", {name: draft.to_json() for name, draft in drafts.items()})
    settings.flush()
    first = make_program()
    mine = Preset("cleanrl", "ppo", {"gamma": 0.5, "total_timesteps": 3_000_000}, "1-2", {"artifacts": {"x": 1}})
    assert read_presets() == {"mine": mine, "newer": Preset("cleanrl", "dqn")}
    assert first.settings.get("presets").keys() == {"newer", "elsewhere"}, "nothing is lost"
    first.workbench.delete_preset("mine")
    make_program()
    assert list(read_presets()) == ["newer"]


def test_the_form_is_restored_when_the_window_opens_again(make_program: Callable[[], Application]) -> None:
    first = opened(make_program())
    type_text(find(first, "train.gamma", QLineEdit), "0.5")
    first.close()
    second = opened(make_program())
    assert find(second, "train.gamma", QLineEdit).text() == "0.5"


def test_f1_opens_the_help_at_the_setting_in_focus(program: Application) -> None:
    window = opened(program)
    window.resize(1366, 768)
    settle()
    text = find(window, "train.help.text", QTextBrowser)
    edit = find(window, "train.clip_coef", QLineEdit)
    edit.setFocus()
    press(edit, Qt.Key.Key_F1)
    assert text.isVisible()
    assert text.textCursor().selectedText() == "clip_coef"
    settle()
    assert find(window, "train.scroll", FormColumns).horizontalScrollBar().maximum() == 0, "the form has enough width"
    click(find(window, "train.help", QToolButton))
    assert not text.isVisible()


def test_a_payload_fills_the_form(program: Application) -> None:
    window = opened(program)
    config = {"algo": "ppo", "env_id": "Acrobot-v1", "seed": 4, "algo_params": {"gamma": 0.5}}
    program.workbench.form_requested.emit(
        {"metadata": {"worker": {"id": "cleanrl", "config": config}, "ui": {"x": 1}}, "artifacts": {}}
    )
    assert find(window, "train.env_id", QComboBox).currentText() == "Acrobot-v1"
    assert find(window, "train.gamma", QLineEdit).text() == "0.5"
    assert find(window, "train.seed", QLineEdit).text() == "4"
    assert "x" in find(window, "train.rest", QLabel).text()


def test_the_form_names_the_run_that_it_was_opened_from_and_counts_its_changes(program: Application) -> None:
    program.workbench.runs.update([view(1, run_name="cartpole-3")])
    window = opened(program)
    bench, form = program.workbench, find(window, "train.scroll", QScrollArea)
    source = find(window, "train.source", QLabel)
    assert not source.isVisible()
    form.verticalScrollBar().setValue(form.verticalScrollBar().maximum())
    config = {"algo": "ppo", "env_id": "Acrobot-v1", "seed": 4, "algo_params": {"gamma": 0.5}}
    bench.edit_requested.emit(run_id(1), {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}})
    settle()
    assert source.isVisible()
    assert "cartpole-3" in source.text()
    assert form.verticalScrollBar().value() == 0
    dots = [mark for mark in form.findChildren(QLabel) if mark.text() == "●"]
    assert find(window, "train.count", QLabel).text() == f"{len(dots)} changed" == "3 changed"
    click(find(window, "train.source.show", QPushButton))
    assert (bench.selection, program.window.current_page) == (run_id(1), "run")
    bench.form_requested.emit(None)
    click(find(window, "train.reset", QToolButton))
    assert not source.isVisible()


def test_a_run_that_would_take_years_is_warned_of_and_more_steps_are_refused(program: Application) -> None:
    program.workbench.runs.update([view(1, sps=25_000.0)])
    window = opened(program)
    line, steps = find(window, "train.verdict", QLabel), find(window, "train.total_timesteps", QLineEdit)
    type_text(steps, "1e12")
    pump(lambda: "would take about 462d 23h" in line.text(), "the warning")
    assert "at 25,000 steps/s. Check the number of steps." in line.text()
    type_text(steps, "99999999999999999999")
    assert state_of(window, "total_timesteps")[1] == "Expected a whole number above 0 and of at most 1,000,000,000,000."
    type_text(steps, "50000")
    assert not line.isVisible()


def test_a_payload_that_no_form_can_show_is_reported(program: Application) -> None:
    window = opened(program)
    said: list[str] = []
    program.workbench.message_posted.connect(lambda text, _: said.append(text))
    payload = {"metadata": {"worker": {"id": "script", "config": {"argv": ["x"]}}}, "artifacts": {}}
    program.workbench.form_requested.emit(payload)
    assert "mosaic submit" in said[0]
    assert find(window, "train.algorithm", QComboBox).currentText() == "ppo"


def test_dry_run_submit_train_again_and_evaluate(
    daemon: LiveDaemon, trainer: TrainerClient, program: Application
) -> None:
    program.start()
    bench = program.workbench
    window = opened(program)
    pump(lambda: bench.environments.for_worker("cleanrl"), "the environments")
    verdict = find(window, "train.verdict", QLabel)
    type_text(find(window, "train.num_minibatches", QLineEdit), "700")
    click(find(window, "train.dry_run", QPushButton))
    pump(lambda: verdict.text() == "Refused. See Minibatches.", "the refusal")
    assert "700 equal parts" in state_of(window, "num_minibatches")[1]
    assert "refused" in bench.notes.scratch
    click(find(window, "train.reset", QToolButton))
    type_text(find(window, "train.total_timesteps", QLineEdit), "2048")
    sizes = find(window, "train.hidden_sizes", QLineEdit)
    type_text(sizes, "256,,x")
    assert state_of(window, "hidden_sizes")[1] == ("Expected 1 to 8 whole numbers from 1 to 8192, separated by commas.")
    type_text(sizes, "256,256")
    click(find(window, "train.dry_run", QPushButton))
    pump(lambda: verdict.text().startswith("This would run: observations Box(4,)"), "the verdict")
    assert "not known yet" in verdict.text()
    assert "accepted" in bench.notes.scratch
    click(find(window, "train.submit", QPushButton))
    first = pump(lambda: bench.selection, "the run")
    assert bench.runs.get(first) is not None
    ended(trainer, first)
    assert trainer.config(first)["metadata"]["worker"]["config"]["algo_params"]["hidden_sizes"] == [256, 256]
    click(find(window, "control.train", QPushButton))
    second = pump(lambda: bench.selection != first and bench.selection, "the second run")
    assert trainer.config(second) == trainer.config(first)
    ended(trainer, second)
    pump(lambda: bench.runs.get_or_placeholder(second).checkpoint_step, "its checkpoint to be known")
    _evaluate(window, program, trainer, second)


def test_a_script_of_a_cleanrl_of_ones_own_is_checked_trained_edited_and_remembered(
    daemon: LiveDaemon, trainer: TrainerClient, program: Application, tmp_path: Path
) -> None:
    """R3.5, R7.1: its flags are fields; the dry run, the run and the next window know where it is."""
    program.start()
    bench = program.workbench
    window = opened(program)
    form, row = find(window, "train.scroll", FormColumns), find(window, "train.cleanrl", QLineEdit)
    note = next(one for one in form.findChildren(LabelledRow) if one.isAncestorOf(row)).note_label

    def choose(path: str, field: str = "train.cleanrl") -> None:
        type_text(find(window, field, QLineEdit), path)
        press(find(window, field, QLineEdit), Qt.Key.Key_Return)
        form.finish_building()

    choose(str(tmp_path / "nothing"))
    assert "is not a folder" in note.text()
    assert bench.training.draft.cleanrl == ""
    checkout = make_checkout(tmp_path / "it's mine")
    choose(str(checkout))
    assert note.text() == "1 script, at the end of the list above."
    choose_algorithm(window, "cleanrl:walk")
    form.finish_building()
    type_text(find(window, "train.num_envs", QLineEdit), "2")
    choose("/no/python", "train.cleanrl_python")
    verdict = find(window, "train.verdict", QLabel)
    click(find(window, "train.dry_run", QPushButton))
    pump(lambda: "/no/python cannot be run" in verdict.text(), "the refusal of the interpreter")
    choose(sys.executable, "train.cleanrl_python")
    click(find(window, "train.dry_run", QPushButton))
    pump(lambda: "walk.py" in bench.notes.scratch, "the verdict")
    assert trainer.runs() == []
    click(find(window, "train.submit", QPushButton))
    run_id = pump(lambda: bench.selection, "the run")
    assert ended(trainer, run_id).outcome == "succeeded"
    config = trainer.config(run_id)["metadata"]["worker"]["config"]
    assert (config["cleanrl"], config["cleanrl_python"]) == (str(checkout), sys.executable)
    assert config["algo_params"] == {"num_envs": 2}
    bench.training.replace(Draft("cleanrl", "ppo"))
    bench.edit_requested.emit(run_id, trainer.config(run_id))
    form.finish_building()
    assert row.text() == str(checkout)
    assert find(window, "train.num_envs", QLineEdit).text() == "2"
    click(find(window, "train.reset", QToolButton))
    assert find(window, "train.algorithm", QComboBox).currentText() == "cleanrl:walk"
    again = Training(bench.settings)
    bench.training.save()
    assert (again.draft.algorithm, again.draft.cleanrl) == ("cleanrl:walk", str(checkout))
    shutil.rmtree(checkout)
    forget_scripts()  # as in another process
    gone = Training(bench.settings).draft
    assert (gone.algorithm, gone.cleanrl) == ("ppo", str(checkout))
    choose("")
    assert find(window, "train.algorithm", QComboBox).currentText() == "ppo"


def _evaluate(window: QWidget, program: Application, trainer: TrainerClient, run_id: str) -> None:
    """The policy form finds the run that is looked at, is filled from its checkpoint, and starts an evaluation."""
    bench = program.workbench
    click(find(window, "control.policy", QPushButton))
    pump(lambda: find(window, "policy.algorithm", QComboBox).currentText() == "ppo", "the checkpoint's facts")
    assert find(window, "policy.env_id", QComboBox).currentText() == "CartPole-v1"
    assert not find(window, "policy.env_id", QComboBox).isEnabled()
    click(find(window, "policy.override", QCheckBox))
    assert find(window, "policy.env_id", QComboBox).isEnabled()
    click(find(window, "policy.override", QCheckBox))
    type_text(find(window, "policy.eval_batch_size", QLineEdit), "2")
    click(find(window, "policy.submit", QPushButton))
    evaluation = pump(lambda: bench.selection != run_id and bench.selection, "the evaluation")
    assert ended(trainer, evaluation).outcome == "succeeded"
    payload = trainer.config(evaluation)
    assert payload["metadata"]["ui"] == {"eval_batch_size": 2, "eval_repeat": False}
    bench.form_requested.emit(payload)
    assert program.window.current_page == "policy"
    pump(lambda: find(window, "policy.algorithm", QComboBox).currentText() == "ppo", "the facts of the evaluation")
    assert find(window, "policy.eval_batch_size", QLineEdit).text() == "2"


def test_a_path_that_is_not_a_policy_is_refused_with_a_reason(
    daemon: LiveDaemon, program: Application, tmp_path: Path
) -> None:
    program.start()
    program.workbench.page_requested.emit("policy")
    window = program.window
    type_text(find(window, "policy.path", QLineEdit), str(tmp_path))
    pump(lambda: "neither a checkpoint nor a run folder" in find(window, "policy.info", QLabel).text(), "the refusal")


@pytest.mark.parametrize("action", ["agent.configure", "agent.train", "agent.policy"])
def test_the_welcome_page_links_are_actions(program: Application, action: str) -> None:
    assert program.window.action(action).isEnabled()
    assert program.window.action(action).shortcut().toString()
