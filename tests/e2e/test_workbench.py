"""The whole workbench: the real window, trainer, keeper and worker."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QComboBox, QLabel, QLineEdit, QPlainTextEdit, QTabWidget
from tests.helpers.commands import MOSAIC
from tests.helpers.daemons import ended, wait_for
from tests.helpers.gui import click, find, finish_calls, press, pump, type_text
from tests.helpers.gui_fixtures import make_program, program, qapp, settings_path, the_window_is_quiet

from mosaic.base.run_payloads import build_train_payload
from mosaic.contracts.folder import Workspace
from mosaic.contracts.names import RETURN_TAG
from mosaic.contracts.views import RunView
from mosaic.trainer.client.connect import connect
from mosaic.window.app import Application

__all__ = ["make_program", "program", "qapp", "settings_path", "the_window_is_quiet"]

LONG = 50_000_000
"""Steps that no test waits for the end of."""


def trainer_pid(program: Application) -> int:
    status = program.workbench.status
    assert status is not None
    return status.pid


def fill(program: Application, env_id: str, steps: int) -> None:
    """Opens the form by its keys and fills it."""
    press(program.window, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    pump(lambda: program.window.current_page == "train", "the train page")
    environment = find(program.window, "train.env_id", QComboBox)
    line = environment.lineEdit()
    assert line is not None
    type_text(line, env_id)
    type_text(find(program.window, "train.total_timesteps", QLineEdit), str(steps))


def submit(program: Application) -> str:
    known = set(program.workbench.runs.ids())
    click(find(program.window, "train.submit"))
    new: set[str] = pump(lambda: set(program.workbench.runs.ids()) - known, "the run", 60)
    run_id = new.pop()
    pump(lambda: program.workbench.selection == run_id and program.window.current_page == "run", "its page")
    return run_id


def show_tab(program: Application, tab: str) -> None:
    program.workbench.tab_requested.emit(tab)
    tabs = find(program.window, "run.tabs", QTabWidget)
    pump(lambda: current_tab(tabs) == tab, f"the tab {tab}")


def current_tab(tabs: QTabWidget) -> str:
    widget = tabs.currentWidget()
    return widget.objectName() if widget is not None else ""


def view_of(program: Application, run_id: str) -> RunView:
    return program.workbench.runs.get_or_placeholder(run_id)


def test_from_the_form_to_a_loaded_policy(program: Application) -> None:
    """R7.4: configure, train, load."""
    program.start()
    pump(lambda: program.workbench.status, "the trainer", 30)

    fill(program, "CartPole-v1", LONG)
    click(find(program.window, "train.dry_run"))
    verdict = find(program.window, "train.verdict", QLabel)
    pump(lambda: "CartPole-v1" in program.workbench.notes.scratch, f"the verdict, not {verdict.text()!r}", 60)
    assert len(program.workbench.runs) == 0
    assert "CartPole-v1" in find(program.window, "notes.scratch", QPlainTextEdit).toPlainText()

    run_id = submit(program)
    pump(lambda: view_of(program, run_id).stage == "running", "the run to start", 60)

    show_tab(program, "fastlane")
    frames = find(program.window, "fastlane.frames")
    pump(lambda: frames.lanes.cells, "frames in the FastLane tab", 60)  # type: ignore[attr-defined]
    state = find(program.window, "fastlane.state", QLabel)
    pump(lambda: state.text().startswith("connected"), "the tab to say so")

    show_tab(program, "analytics")
    points = program.workbench.series(run_id)
    pump(lambda: RETURN_TAG in points.tags, "the first points")
    before = len(points.tags[RETURN_TAG])
    pump(lambda: len(points.tags[RETURN_TAG]) > before + 20, "the curve to grow")

    pump(lambda: program.window.action("run.cancel").isEnabled(), "the action")
    program.window.action("run.cancel").trigger()
    pump(lambda: view_of(program, run_id).outcome == "cancelled", "the run to end", 60)

    program.window.action("agent.policy").trigger()
    pump(lambda: program.window.current_page == "policy", "the policy page")
    chosen = find(program.window, "policy.run", QComboBox)
    pump(lambda: chosen.findData(run_id) >= 0, "the run among those with a checkpoint")
    chosen.setCurrentIndex(chosen.findData(run_id))
    chosen.activated.emit(chosen.currentIndex())
    algorithm = find(program.window, "policy.algorithm", QComboBox)
    pump(lambda: algorithm.currentText() == "ppo", "what the checkpoint says", 60)
    type_text(find(program.window, "policy.eval_batch_size", QLineEdit), "2")
    click(find(program.window, "policy.submit"))
    pump(lambda: program.workbench.selection != run_id, "the evaluation", 60)
    evaluation = str(program.workbench.selection)
    pump(lambda: view_of(program, evaluation).outcome == "succeeded", "the evaluation to end", 60)
    assert find(program.window, "run.title", QLabel).text().endswith("(Eval)")


def test_an_invalid_setting_is_marked_in_the_form_and_not_submitted(program: Application) -> None:
    program.start()
    pump(lambda: program.workbench.status, "the trainer", 30)
    fill(program, "CartPole-v1", LONG)
    type_text(find(program.window, "train.learning_rate", QLineEdit), "a lot")
    click(find(program.window, "train.submit"))
    assert find(program.window, "train.note.learning_rate", QLabel).property("error")
    finish_calls(program.bridge)
    submitted: list[list[Any]] = []
    program.bridge.ask(lambda trainer: trainer.runs(), submitted.append)
    pump(lambda: submitted, "the list of runs")
    assert submitted == [[]]


def test_several_seeds_become_a_group(program: Application) -> None:
    """R10.2: sweeps, seeds."""
    program.start()
    pump(lambda: program.workbench.status, "the trainer", 30)
    fill(program, "CartPole-v1", 1000)
    find(program.window, "train.several", QCheckBox).setChecked(True)
    type_text(find(program.window, "train.seed", QLineEdit), "4,7")
    click(find(program.window, "train.submit"))
    pump(lambda: len(program.workbench.runs) == 2, "both runs", 60)
    views = program.workbench.runs.all()
    assert {view.seed for view in views} == {4, 7}
    assert len({view.group for view in views}) == 1
    pump(lambda: all(view_of(program, run_id).outcome for run_id in program.workbench.runs.ids()), "both", 60)


@pytest.mark.may_log("call_refused")  # by the window, where the new daemon has the port of the old one
def test_a_killed_trainer_is_restarted_and_the_run_continues(program: Application) -> None:
    """F1: the window says that the trainer is lost, and starts the next one."""
    program.start()
    pump(lambda: program.workbench.status, "the trainer", 30)
    fill(program, "CartPole-v1", LONG)
    run_id = submit(program)
    pump(lambda: (view_of(program, run_id).global_step or 0) > 0, "the run's steps", 60)
    first = trainer_pid(program)
    os.kill(first, signal.SIGKILL)
    pump(program.window.banner.isVisible, "the banner")
    pump(lambda: not program.window.banner.isVisible(), "the banner to go", 60)
    assert trainer_pid(program) != first
    before = view_of(program, run_id).global_step or 0
    pump(lambda: (view_of(program, run_id).global_step or 0) > before, "the run's further steps", 60)
    program.window.action("run.cancel").trigger()
    pump(lambda: view_of(program, run_id).outcome == "cancelled", "the run to end", 60)


def offscreen(tmp_path: Path) -> dict[str, str]:
    """The environment of a window that nobody sees and that remembers apart from the user's own."""
    platform = os.environ.get("QT_QPA_PLATFORM", "offscreen")
    path = os.pathsep.join((os.getcwd(), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "QT_QPA_PLATFORM": platform, "XDG_CONFIG_HOME": str(tmp_path), "PYTHONPATH": path}


def test_closing_the_window_does_not_affect_the_run(workspace: Workspace, tmp_path: Path) -> None:
    """F8: nor does ending it by SIGTERM."""
    with connect(workspace) as trainer:
        settings = {"env_id": "CartPole-v1", "total_timesteps": LONG, "seed": 1}
        run_id = trainer.submit(build_train_payload("cleanrl", "ppo", settings, {})).run_id
        wait_for(lambda: trainer.get_run(run_id).global_step, "the run's steps")
        remembered = tmp_path / "mosaic" / "workbench.ini"
        command = [MOSAIC, "gui", "--var", str(workspace.root), "--run", "last"]
        with subprocess.Popen(command, env=offscreen(tmp_path), stderr=subprocess.PIPE, text=True) as window:
            try:
                wait_for(lambda: remembered.exists() and run_id in remembered.read_text(), "the window")
                window.send_signal(signal.SIGTERM)
                _, words = window.communicate(timeout=30)
            finally:
                window.kill()
        assert window.returncode == 0, words
        assert "Traceback" not in words
        before = trainer.get_run(run_id).global_step
        wait_for(lambda: (trainer.get_run(run_id).global_step or 0) > (before or 0), "the run to go on")
        trainer.cancel_run(run_id)
        assert ended(trainer, run_id).outcome == "cancelled"
