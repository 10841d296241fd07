"""Runs in the window, with a real daemon behind it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtWidgets import QApplication, QLabel, QPushButton, QWidget
from tests.helpers.daemons import ended, scripted
from tests.helpers.gui import click, find, pump

from mosaic.contracts.views import RunView
from mosaic.features.runs.window_logs import LogView
from mosaic.trainer.client.exports import ExportCancelled, ExportTask, export_csv, export_episodes, export_zip
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application
from mosaic.window.run_dialogs import write_export


def do(program: Application, action_id: str) -> None:
    program.window.refresh_actions()
    assert program.window.action(action_id).isEnabled()
    program.window.action(action_id).trigger()


def view_of(program: Application, run_id: str) -> RunView:
    return program.workbench.runs.get_or_placeholder(run_id)


def state(program: Application, run_id: str) -> Any:
    return view_of(program, run_id).stage


def top_level(name: str) -> QWidget | None:
    return next((one for one in QApplication.topLevelWidgets() if one.objectName() == name), None)


def test_a_run_is_paused_resumed_and_cancelled_from_the_window(trainer: TrainerClient, program: Application) -> None:
    run_id = trainer.submit(scripted(steps=100_000, dt=0.01)).run_id
    program.start(run_id)
    pump(lambda: state(program, run_id) == "running", "the run")
    do(program, "run.pause")
    pump(lambda: state(program, run_id) == "paused", "the pause")
    do(program, "run.pause")
    pump(lambda: state(program, run_id) == "running", "the run to go on")
    do(program, "run.cancel")
    pump(lambda: state(program, run_id) == "finished", "the end")
    assert view_of(program, run_id).outcome == "cancelled"
    assert find(program.window, "run.state", QLabel).text().startswith("cancelled")


def test_the_overview_updates_history_and_numbers(trainer: TrainerClient, program: Application) -> None:
    run_id = trainer.submit(scripted(steps=60, dt=0.02)).run_id
    program.start(run_id)
    steps = pump(lambda: program.window.findChild(QLabel, "overview.steps"), "the overview")
    pump(lambda: steps.text() not in ("–", "60"), "steps on the way")
    pump(lambda: steps.text() == "60", "all steps")
    pump(
        lambda: (
            [entry.stage for entry in program.workbench.runs.get_or_placeholder(run_id).history][-1:] == ["finished"]
        ),
        "its story",
    )


def test_the_error_of_a_failed_run_is_one_click_away(trainer: TrainerClient, program: Application) -> None:
    run_id = trainer.submit(scripted(exit=3, say="CUDA out of memory")).run_id
    ended(trainer, run_id)
    program.start(run_id)
    reason = pump(lambda: program.window.findChild(QLabel, "overview.reason"), "the overview")
    pump(lambda: "CUDA out of memory" in reason.text() and reason.isVisible(), "the reason")
    click(find(program.window, "overview.logs", QPushButton))
    pump(lambda: program.window.findChild(LogView), "the log")
    click(find(program.window, "logs.stderr"))
    log = find(program.window, "logs.text", LogView)
    pump(lambda: "CUDA out of memory" in log.toPlainText(), "its last words")
    click(find(program.window, "logs.daemon"))
    pump(lambda: "run_id" in log.toPlainText() and "CUDA" not in log.toPlainText().splitlines()[0], "the daemon's log")


def test_a_deleted_run_is_restored_by_undo(trainer: TrainerClient, program: Application) -> None:
    run_id = trainer.submit(scripted()).run_id
    ended(trainer, run_id)
    program.start(run_id)
    pump(lambda: program.workbench.selection == run_id and program.workbench.runs.get(run_id), "the run")
    do(program, "run.delete")
    question = pump(lambda: top_level("delete.question"), "the question")
    click(find(question, "delete.question.yes", QPushButton))
    pump(lambda: program.workbench.runs.get(run_id) is None, "the run to go")
    assert program.workbench.selection is None
    assert trainer.runs() == []
    click(pump(lambda: find(program.window, "message.button", QPushButton), "the offer"))
    pump(lambda: program.workbench.selection == run_id, "the run to come back")
    assert [view.run_id for view in trainer.runs()] == [run_id]


def test_a_run_that_another_client_deletes_leaves_the_list(trainer: TrainerClient, program: Application) -> None:
    kept, gone = (trainer.submit(scripted()).run_id for _ in range(2))
    for run_id in (kept, gone):
        ended(trainer, run_id)
    program.start(gone)
    pump(lambda: program.workbench.selection == gone and program.workbench.runs.get(gone), "the run")
    program.workbench.mark([gone, kept])
    grave = trainer.delete_run(gone).run_dir
    pump(lambda: program.workbench.runs.ids() == [kept], "the run to go")
    assert (program.workbench.selection, program.workbench.marks) == (None, [])
    trainer.import_run(grave)
    pump(lambda: program.workbench.runs.ids() == [gone, kept], "the run to come back")


def test_a_note_is_saved_when_the_focus_leaves_it(trainer: TrainerClient, program: Application) -> None:
    run_id = trainer.submit(scripted()).run_id
    ended(trainer, run_id)
    program.start(run_id)
    pump(lambda: program.workbench.selection == run_id and program.workbench.runs.get(run_id), "the run")
    field: Any = find(program.window, "notes.run")
    field.setFocus()
    field.setPlainText("It learns from the third minute on.")
    find(program.window, "runs.search").setFocus()
    pump(lambda: trainer.get_run(run_id).notes == "It learns from the third minute on.", "the note")


def test_exports_hold_what_the_run_logged(trainer: TrainerClient, program: Application, tmp_path: Path) -> None:
    run_id = trainer.submit(scripted(steps=5)).run_id
    view = ended(trainer, run_id)
    program.start(run_id)
    pump(lambda: program.workbench.selection == run_id and program.workbench.runs.get(run_id), "the run")
    files = {name: tmp_path / f"it's {name}" for name in ("a.zip", "a.csv", "a.jsonl")}
    for write, path in zip((export_zip, export_csv, export_episodes), files.values(), strict=True):
        write_export(program.workbench, write, view, path)
    pump(lambda: all(path.exists() for path in files.values()), "the files")
    with zipfile.ZipFile(files["a.zip"]) as archive:
        assert f"{run_id}/journal.jsonl" in archive.namelist()
    assert "scripted/step,5," in files["a.csv"].read_text()
    assert [json.loads(line)["return"] for line in files["a.jsonl"].read_text().splitlines()] == [1, 2, 3, 4, 5]
    pump(lambda: not top_level("task"), "no progress window to stay")


def test_a_cancelled_export_leaves_no_file(trainer: TrainerClient, tmp_path: Path) -> None:
    view = ended(trainer, trainer.submit(scripted(steps=5)).run_id)
    task = ExportTask("Writing")
    task.is_cancelled = True
    for write in (export_zip, export_csv, export_episodes):
        with pytest.raises(ExportCancelled):
            write(trainer, view, tmp_path / "x", task)
    assert list(tmp_path.glob("*x*")) == []
