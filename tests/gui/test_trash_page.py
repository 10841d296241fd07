"""The trash: what is in it, and how runs come back or go for good."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QLineEdit, QMessageBox, QPushButton, QToolButton, QTreeWidget
from tests.helpers.gui import click, find, finish_calls, has, pump, question_button, type_text
from tests.helpers.gui_runs import FakeTrainer, run_id, running, show_active, start_with, view

from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.views import RunView
from mosaic.features.disk.window import TrashPage
from mosaic.window.app import Application

FIRST, SECOND = run_id(1), run_id(2)


@pytest.fixture
def fake(program: Application) -> FakeTrainer:
    """Two deleted runs, and one that is running."""
    made = FakeTrainer([running(3)])
    made.trashed = {SECOND: view(2, algo="dqn"), FIRST: view(1)}
    start_with(program, made)
    show_active(program)
    pump(lambda: len(program.workbench.trash.runs) == 2, "the trash to be read")
    return made


@pytest.fixture
def page(program: Application, fake: FakeTrainer) -> TrashPage:
    program.workbench.mark([])
    program.workbench.select(None)
    program.window.refresh_actions()
    assert program.window.action("run.undelete").isEnabled(), "without a selection, too"
    program.window.action("run.undelete").trigger()
    page = find(program.window, "page.trash", TrashPage)
    pump(lambda: "4.0 MB" in find(page, "trash.total", QLabel).text(), "the sizes")
    return page


def cells(page: TrashPage) -> list[list[str]]:
    items = [[page.table.item(row, column) for column in range(7)] for row in range(page.table.rowCount())]
    return [[item.text() if item else "" for item in row] for row in items]


def test_the_trash_lists_what_was_deleted(page: TrashPage) -> None:
    rows = cells(page)
    assert [row[:4] for row in rows] == [
        [SECOND[-6:], "dqn", "CartPole-v1", "1"],
        [FIRST[-6:], "ppo", "CartPole-v1", "1"],
    ]
    assert [row[5:] for row in rows] == [["29", "2.0 MB"], ["29", "2.0 MB"]]
    assert find(page, "trash.total", QLabel).text() == "2 runs, 4.0 MB"
    assert not page.restore_button.isEnabled()


def test_chosen_runs_and_all_runs_are_restored(program: Application, page: TrashPage, fake: FakeTrainer) -> None:
    page.table.selectRow(1)
    click(page.restore_button)
    pump(lambda: program.workbench.runs.get(FIRST), "the run to come back")
    pump(lambda: page.table.rowCount() == 1, "the table")
    assert program.window.current_page == "trash", "the user stays where the trash is"
    assert find(program.window, "message.button", QPushButton).text() == "Show"
    click(page.restore_all_button)
    pump(lambda: program.workbench.runs.get(SECOND), "the other run")
    pump(lambda: has(page, "trash.total") and not page.table.isVisible(), "the empty trash")
    assert fake.asked == [("import", f"/trash/{FIRST}"), ("import", f"/trash/{SECOND}")]
    pump(lambda: not program.window.action("run.undelete").isEnabled(), "nothing to restore")


def test_runs_are_deleted_for_good_only_after_a_question_that_names_them(
    program: Application, page: TrashPage, fake: FakeTrainer
) -> None:
    page.table.setFocus()
    page.table.selectRow(0)
    QTest.keyClick(program.window.windowHandle(), Qt.Key.Key_Delete)
    box = question_button("trash.question.yes").window()
    assert isinstance(box, QMessageBox)
    assert "for good (2.0 MB)?" in box.text()
    assert SECOND[-6:] in box.informativeText()
    assert "Its checkpoints" in box.informativeText()
    QTest.keyClick(box, Qt.Key.Key_Return)
    finish_calls(program.bridge)
    assert fake.asked == [], "the default is to keep them"
    click(page.empty_button)
    click(question_button("trash.question.yes"))
    pump(lambda: not program.workbench.trash.runs, "the empty trash")
    assert fake.asked == [("prune", SECOND, FIRST)]
    assert "4.0 MB are free again" in program.window.messages.label.text()


def test_a_run_that_cannot_be_restored_stays_in_the_trash(
    program: Application, page: TrashPage, fake: FakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = fake.import_run

    def refuse_first(path: str) -> RunView:
        if path.endswith(FIRST):
            raise NotAllowed("The disk is full.")
        return restore(path)

    monkeypatch.setattr(fake, "import_run", refuse_first)
    click(page.restore_all_button)
    pump(lambda: program.workbench.runs.get(SECOND), "one of them")
    pump(lambda: "1 run could not be restored: The disk is full." in program.window.messages.label.text(), "the reason")
    pump(lambda: [run.run_id for run in program.workbench.trash.runs] == [FIRST], "the other to stay")


def test_the_palette_knows_the_trash(program: Application, fake: FakeTrainer) -> None:
    program.window.open_dialog("palette")
    palette = find(program.window, "palette")
    type_text(find(palette, "palette.search", QLineEdit), "trash")
    items = find(palette, "palette.list", QTreeWidget)
    first = items.topLevelItem(0)
    assert first is not None
    assert first.text(0) == "Trash"
    palette.close()


def test_a_deletion_in_the_list_fills_the_trash_and_can_be_undone_by_the_menu(
    program: Application, page: TrashPage, fake: FakeTrainer
) -> None:
    fake.views[run_id(4)] = view(4)
    program.workbench.runs.update([view(4)])
    program.workbench.mark([run_id(4)])
    program.window.refresh_actions()
    program.window.action("run.delete").trigger()
    click(question_button("delete.question.yes"))
    pump(lambda: page.table.rowCount() == 3, "the run in the trash")
    undo = program.window.action("edit.undo")
    pump(lambda: undo.text() == "Undo: delete 1 run", "the entry of the menu")
    undo.trigger()
    pump(lambda: program.workbench.runs.get(run_id(4)), "the run to come back")
    pump(lambda: undo.text() == "Undo" and not undo.isEnabled(), "nothing more to undo")
    assert isinstance(page.restore_button, QToolButton)


def test_the_age_of_deleted_runs_is_current_when_the_page_is_shown_again(
    program: Application, page: TrashPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.window.show_page("train")
    monkeypatch.setattr("mosaic.features.disk.window.format_ago", lambda at: "2 h ago")
    program.window.show_page("trash")
    assert [row[4] for row in cells(page)] == ["2 h ago", "2 h ago"]
