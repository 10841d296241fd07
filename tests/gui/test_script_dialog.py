"""Starting a script from the window, as `mosaic run` does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtWidgets import QApplication, QLabel, QLineEdit, QPushButton
from tests.helpers.daemons import ended
from tests.helpers.gui import awaited, click, find, pump, type_text
from tests.helpers.gui_runs import FakeTrainer, start_with

from mosaic.base.run_payloads import UNCHECKED_MESSAGE
from mosaic.contracts.errors import BadInput
from mosaic.features.train.window_parts import ScriptDialog, ScriptDraft
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application


def shown_dialog() -> ScriptDialog:
    found = (widget for widget in QApplication.topLevelWidgets() if isinstance(widget, ScriptDialog))
    return next(dialog for dialog in found if dialog.isVisible())


def test_a_script_is_checked_and_started_from_the_train_page(
    trainer: TrainerClient, program: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7.1: a script of the user's runs in its folder, with its arguments and the environment of the window."""
    script = tmp_path / "it's mine.py"
    script.write_text("import os, sys\nprint(os.getcwd(), sys.argv[1:], os.environ['MARK'])\n")
    monkeypatch.setenv("MARK", "of the window")
    program.start()
    pump(lambda: program.workbench.status, "the trainer")
    program.window.show_page("train")
    click(awaited(program.window, "train.script"))
    dialog = shown_dialog()
    verdict = find(dialog, "script.verdict", QLabel)
    click(find(dialog, "script.submit", QPushButton))
    assert verdict.text() == "Script: Choose a Python script, or a program."
    type_text(find(dialog, "script.script", QLineEdit), str(script))
    assert verdict.text() == ""
    type_text(find(dialog, "script.arguments", QLineEdit), "--seed 7 'two words'")
    click(find(dialog, "script.dry_run", QPushButton))
    pump(lambda: verdict.text() == UNCHECKED_MESSAGE, "the verdict")
    assert trainer.runs() == []
    click(find(dialog, "script.submit", QPushButton))
    pump(lambda: not dialog.isVisible(), "the dialog to close")
    run_id = program.workbench.selection
    assert run_id
    run = ended(trainer, run_id)
    assert (run.outcome, run.algo, run.seed) == ("succeeded", "it's mine", 7)
    log = b"".join(chunk.data for chunk in trainer.log(run_id)).decode()
    assert f"{tmp_path} ['--seed', '7', 'two words'] of the window" in log
    program.window.action("agent.script").trigger()
    again = shown_dialog()
    assert find(again, "script.script", QLineEdit).text() == str(script)
    again.reject()


def config_of(*texts: str) -> dict[str, Any]:
    draft = ScriptDraft(dict(zip(("script", "arguments", "python"), texts, strict=True)))
    config = draft.payload()["metadata"]["worker"]["config"]
    assert isinstance(config, dict)
    return config


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.touch()
    return path


def test_the_command_of_a_script_names_its_interpreter(script: Path) -> None:
    config = config_of(str(script), "--env-id=X-v1", " /v/bin/python ")
    assert config["argv"] == ["/v/bin/python", str(script), "--env-id=X-v1"]
    assert (config["cwd"], config["env_id"]) == (str(script.parent), "X-v1")
    assert config_of(str(script), "", "")["argv"] == [sys.executable, str(script)]


def test_a_program_is_started_without_an_interpreter(script: Path) -> None:
    program = script.rename(script.with_name("train.sh"))
    with pytest.raises(BadInput, match="neither a Python script nor a program"):
        config_of(str(program), "", "")
    program.chmod(0o755)
    assert config_of(str(program), "1", "")["argv"] == [str(program), "1"]


def test_arguments_that_a_shell_would_not_take_are_refused(script: Path) -> None:
    with pytest.raises(BadInput, match=r"arguments: No closing quotation\. Quote them as in a shell\."):
        config_of(str(script), "--name 'x", "")


def test_a_remote_trainer_starts_no_scripts_of_this_machine(program: Application) -> None:
    start_with(program, FakeTrainer())
    assert program.window.action("agent.script").isEnabled()
    program.workbench.is_remote = True
    program.window.refresh_actions()
    assert not program.window.action("agent.script").isEnabled()
