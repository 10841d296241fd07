"""The File menu with a real trainer: runs as files, and other workspaces."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QMimeData, QPoint, Qt, QTimer, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QApplication, QFileDialog, QLineEdit, QMenu, QMessageBox, QPushButton
from tests.helpers.daemons import ended, scripted
from tests.helpers.gui import click, find, finish_calls, pump, question_button
from tests.helpers.gui_runs import FakeTrainer, run_id, running, start_with, view

from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.exports import ExportTask, export_zips
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import file_actions as files
from mosaic.window.app import Application, show_windows
from mosaic.window.file_actions import inspect_workspace
from mosaic.window.form import FormColumns


def message(program: Application) -> str:
    return program.window.messages.label.text()


def open_dialog(program: Application, name: str) -> QFileDialog:
    dialog: QFileDialog = pump(lambda: program.window.findChild(QFileDialog, name), name)
    return dialog


# --- runs as files


def test_runs_are_exported_one_zip_each_and_imported_again(
    trainer: TrainerClient, program: Application, workspace: Workspace, tmp_path: Path
) -> None:
    views = [ended(trainer, trainer.submit(scripted(steps=3)).run_id) for _ in range(2)]
    ids = [view.run_id for view in views]
    program.start(ids[0])
    pump(lambda: all(program.workbench.runs.get(one) for one in ids), "the runs")
    program.workbench.mark(ids)
    program.window.refresh_actions()
    action = program.window.action("run.export_zip")
    assert action.text() == "Export 2 runs…"
    action.trigger()
    open_dialog(program, "export.target").reject()
    folder = tmp_path / "it's here"
    folder.mkdir()
    taken = folder / f"{views[0].algo or views[0].worker}-{ids[0][-6:]}.zip"
    taken.write_text("mine")
    files.export_into(program.workbench, views, folder)
    pump(lambda: "Wrote 2 zips" in message(program), "the zips")
    zips = sorted(path for path in folder.iterdir() if path != taken)
    assert (len(zips), taken.read_text()) == (2, "mine"), "a file that exists is not replaced"
    assert find(program.window, "message.button", QPushButton).text() == "Show"
    for one in ids:
        trainer.delete_run(one)
    pump(lambda: len(program.workbench.runs) == 0, "the runs to go")
    hostile = folder / "hostile.zip"
    with zipfile.ZipFile(hostile, "w") as archive:
        archive.writestr("run/../../evil.sh", "rm")
    drop(program, [*zips, hostile, taken])
    pump(lambda: sorted(program.workbench.runs.ids()) == sorted(ids), "the runs to be imported")
    box = pump(lambda: program.window.findChild(QMessageBox, "transfer.problems"), "what failed")
    assert box.text() == "2 runs: imported. 2 of 4 failed."
    assert "points outside of the run folder" in box.informativeText()
    assert f"{taken.name}: this zip cannot be read" in box.informativeText()
    box.reject()
    assert trainer.get_run(ids[0]).is_imported
    trashed = {run.run_id: run for run in trainer.list_trash(has_sizes=True)}
    assert sorted(trashed) == sorted(ids)
    run = trashed[ids[0]]
    assert run.env_id == views[0].env_id
    assert run.size_bytes
    assert 29.9 < run.seconds_left / 86_400 <= 30
    files.import_files(program.workbench, [workspace.runs / ids[0]])
    pump(lambda: "is in this workspace already" in message(program), "the refusal of a folder")


def drop(program: Application, paths: list[Path]) -> None:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path)) for path in paths])
    at, none = QPoint(50, 50), Qt.KeyboardModifier.NoModifier
    enter = QDragEnterEvent(at, Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, none)
    program.window.dragEnterEvent(enter)
    assert enter.isAccepted()
    drop = QDropEvent(at, Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, none)
    program.window.dropEvent(drop)


def test_a_cancelled_export_keeps_complete_files_only(trainer: TrainerClient, tmp_path: Path) -> None:
    views = [ended(trainer, trainer.submit(scripted(steps=3)).run_id) for _ in range(2)]
    running_view = views[1].model_copy(update={"stage": "running"})
    failing = export_zips(trainer, [views[0], running_view], tmp_path, ExportTask("x"))
    assert [view.run_id for view in failing.done] == [views[0].run_id]
    assert "can be exported when it has ended" in failing.problems[0]
    task = ExportTask("x", lambda *_: setattr(task, "is_cancelled", True))
    folder = tmp_path / "cancelled"
    folder.mkdir()
    result = export_zips(trainer, views, folder, task)
    assert (result.done, result.is_cancelled, list(folder.iterdir())) == ([], True, [])


def test_a_group_zip_imports_all_its_runs_by_the_menu(program: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    start_with(program, FakeTrainer([]))
    asked: list[Path] = []

    def import_runs(_: object, path: Path) -> list[Any]:
        asked.append(path)
        return [view(1), view(2)]

    monkeypatch.setattr(files, "import_runs", import_runs)
    program.window.action("file.import").trigger()
    dialog = open_dialog(program, "import.files")
    assert dialog.fileMode() is QFileDialog.FileMode.ExistingFiles
    dialog.filesSelected.emit(["/a/group.zip"])
    dialog.reject()
    pump(lambda: "2 runs: imported." in message(program), "the runs")
    click(find(program.window, "message.button", QPushButton))
    assert sorted(program.workbench.marks) == [run_id(1), run_id(2)]
    assert asked == [Path("/a/group.zip")]


def test_import_says_why_it_is_not_possible_with_a_remote_trainer(program: Application) -> None:
    program.workbench.is_remote, program.workbench.trainer_name = True, "gpu"
    program.window.refresh_actions()
    for name in ("file.import", "file.import_folder"):
        action = program.window.action(name)
        assert not action.isEnabled()
        assert "Log in to gpu" in action.toolTip()
    assert program.window.action("file.workspace").isEnabled()


def test_export_is_for_runs_that_have_ended(program: Application) -> None:
    start_with(program, FakeTrainer([running(1)]))
    program.workbench.mark([run_id(1)])
    program.window.refresh_actions()
    assert not program.window.action("run.export_zip").isEnabled()
    assert "Choose runs that have ended" in program.window.action("run.export_zip").toolTip()


# --- workspaces


def test_a_folder_is_inspected_before_it_becomes_a_workspace(tmp_path: Path) -> None:
    assert inspect_workspace(tmp_path) == inspect_workspace(tmp_path)
    state = inspect_workspace(tmp_path)
    assert (state.is_workspace, state.problem) == (False, "")
    file = tmp_path / "file"
    file.write_text("")
    assert "cannot be used as a workspace: not a directory" in inspect_workspace(file / "inside").problem
    assert "cannot be used" in inspect_workspace(Path("/proc/nothing"), may_create=True).problem
    other = tmp_path / "other"
    assert inspect_workspace(other, may_create=True).is_workspace
    assert sorted(path.name for path in other.iterdir()) == ["logs", "trainer"]


def test_a_workspace_that_cannot_be_written_changes_nothing(program: Application, tmp_path: Path) -> None:
    start_with(program, FakeTrainer([view(1)]))
    asked: list[Path] = []
    program.workbench.workspace_requested.connect(asked.append)
    files.open_workspace(program.workbench, Path("/proc/1/nothing"))
    pump(lambda: "cannot be used as a workspace" in message(program), "the reason")
    files.open_workspace(program.workbench, program.workbench.workspace.root)
    assert message(program) == "This workspace is open already."
    files.open_workspace(program.workbench, tmp_path)
    box: Any = question_button("workspace.question.yes").window()
    assert str(tmp_path) in box.informativeText()
    box.reject()
    finish_calls(program.bridge)
    assert (asked, program.next_workspace) == ([], None)
    assert not (tmp_path / "trainer").exists()


def test_another_workspace_opens_in_place_of_the_window_with_its_own_draft(
    qapp: QApplication, workspace: Workspace, tmp_path: Path, settings_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    steps: list[str] = []

    def start(program: Application, run: str | None = None) -> None:
        program.bridge._connect = lambda: FakeTrainer([])  # type: ignore[assignment, return-value]
        start_usual(program, run)
        QTimer.singleShot(0, program.window, lambda: drive(program))

    def drive(program: Application) -> None:
        try:
            use(program)
        except BaseException:
            qapp.quit()
            raise

    def use(program: Application) -> None:
        window = program.window
        title, training = window.windowTitle(), program.workbench.training
        window.show_page("train")
        gamma = pump(lambda: window.findChild(QLineEdit, "train.gamma"), "the form")
        find(window, "train.scroll", FormColumns).finish_building()
        steps.append(f"{title.rpartition('/')[2]} {gamma.text()}")
        gamma.setText(f"0.{len(steps)}")
        assert training.draft.texts == {"gamma": f"0.{len(steps)}"}
        if len(steps) == 1:
            files.open_workspace(program.workbench, other)
            QTimer.singleShot(0, window, lambda: click(question_button("workspace.question.yes")))
        elif len(steps) == 2:
            recent = find(window, "menu.recent workspaces", QMenu)
            recent.aboutToShow.emit()
            assert [entry.text() for entry in recent.actions()] == [str(workspace.root)]
            recent.actions()[0].trigger()
        else:
            qapp.quit()

    start_usual = Application.start
    monkeypatch.setattr(Application, "start", start)
    workspace.create_private()
    assert show_windows(qapp, workspace, settings_path=settings_path) == 0
    first = workspace.root.name
    assert steps == [f"{first} 0.99", "other 0.99", f"{first} 0.1"]
