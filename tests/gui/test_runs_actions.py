"""What can be done with the runs that are chosen, and when."""

from __future__ import annotations

from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QApplication,
    QLabel,
    QLineEdit,
    QMessageBox,
    QPushButton,
    QSpinBox,
    QTableWidget,
    QToolButton,
)
from shiboken6 import isValid
from tests.helpers.gui import click, find, finish_calls, press, pump
from tests.helpers.gui_runs import FakeTrainer, run_id, running, start_with, view

from mosaic.contracts.errors import NotAllowed, NotTrusted
from mosaic.window.actions import RUN_ACTION_GROUPS
from mosaic.window.app import Application

ENDED, OTHER, ALIVE, PAUSED, HIDDEN = (run_id(number) for number in range(1, 6))


@pytest.fixture
def fake(program: Application) -> FakeTrainer:
    views = [
        view(1),
        view(2, outcome="failed", tags=["old"]),
        running(3),
        running(4, stage="paused"),
        view(5, is_archived=True),
    ]
    made = FakeTrainer(views)
    start_with(program, made)
    return made


def can(program: Application, *run_ids: str) -> set[str]:
    """What can be done when these are marked."""
    program.workbench.mark(list(run_ids))
    rows = [row for group in RUN_ACTION_GROUPS for row in group if row.is_enabled(program.workbench)]
    return {row.id.removeprefix("run.") for row in rows}


def do(program: Application, action_id: str, *run_ids: str) -> None:
    program.workbench.mark(list(run_ids))
    program.window.refresh_actions()
    action = program.window.action(action_id)
    assert action.isEnabled()
    action.trigger()


def dialog(name: str) -> Any:
    return pump(
        lambda: next((one for one in QApplication.topLevelWidgets() if one.objectName() == name), None),
        f"dialog {name}",
    )


def test_actions_are_enabled_by_the_state_of_the_run(program: Application, fake: FakeTrainer) -> None:
    always = {
        "rename",
        "tick",
        "resubmit",
        "edit",
        "tags",
        "note",
        "folder",
        "config",
        "copy_id",
        "export_csv",
        "export_episodes",
        "evaluate",
    }
    over = {"delete", "export_zip"}
    assert can(program, ENDED) == always | over | {"resume", "archive"}
    assert can(program, ALIVE) == always | {"cancel", "pause"}
    assert can(program, HIDDEN) == always | over | {"resume", "unarchive"}
    several = {"resubmit", "tags", "copy_id", "diff", "compare", "tick", "evaluate"}
    assert can(program, ENDED, OTHER) == several | over | {"archive"}
    # Archive and delete are for the one that has ended.
    assert can(program, ENDED, ALIVE) == several | {"cancel", "pause", "archive", "delete"}
    program.workbench.select(None)
    assert can(program) == set()


def test_a_run_of_a_program_is_not_offered_to_be_resumed(program: Application) -> None:
    start_with(program, FakeTrainer([view(1, is_attached=True, outcome="failed"), view(2, outcome="failed")]))
    assert [("resume" in can(program, run)) for run in (ENDED, OTHER)] == [False, True]


def test_a_remote_run_can_be_exported_but_its_folder_not_opened(program: Application, fake: FakeTrainer) -> None:
    program.workbench.is_remote = True
    assert can(program, ENDED) & {"folder", "config", "export_zip"} == {"export_zip"}


def test_cancel_does_not_ask_and_reports_what_it_does(program: Application, fake: FakeTrainer) -> None:
    do(program, "run.cancel", ALIVE, ENDED)
    pump(lambda: "stop requested" in program.window.messages.label.text(), "a word about it")
    assert fake.asked == [("cancel", ALIVE)]
    assert program.workbench.runs.get_or_placeholder(ALIVE).stage == "stopping"


def test_space_pauses_and_resumes(program: Application, fake: FakeTrainer) -> None:
    do(program, "run.pause", ALIVE, PAUSED)
    pump(lambda: fake.asked == [("pause", ALIVE)], "the pause")
    do(program, "run.pause", PAUSED)
    pump(lambda: fake.asked[1:] == [("resume", PAUSED, None)], "the resume")


def test_the_space_bar_presses_the_button_in_focus_and_pauses_only_elsewhere(
    program: Application, fake: FakeTrainer
) -> None:
    program.workbench.select(ALIVE)
    program.window.refresh_actions()
    program.window.activateWindow()
    box = find(program.window, "runs.archived", QToolButton)
    box.setFocus()
    pump(box.hasFocus, "the focus")
    QTest.keyClick(program.window.windowHandle(), Qt.Key.Key_Space)
    assert box.isChecked()
    finish_calls(program.bridge)
    assert fake.asked == []
    table = find(program.window, "runs.table")
    table.setFocus()
    QTest.keyClick(program.window.windowHandle(), Qt.Key.Key_Space)
    pump(lambda: fake.asked == [("pause", ALIVE)], "the pause")


def test_a_run_is_extended_with_more_steps(program: Application, fake: FakeTrainer) -> None:
    do(program, "run.resume", ENDED)
    asking = dialog("resume")
    steps = find(asking, "resume.steps", QSpinBox)
    assert steps.value() == 2000
    steps.setValue(5000)
    click(find(asking, "resume.done", QPushButton))
    pump(lambda: fake.asked == [("resume", ENDED, 5000)], "the resume")


def test_a_failed_run_is_resumed_to_its_original_end(program: Application, fake: FakeTrainer) -> None:
    do(program, "run.resume", OTHER)
    asking = dialog("resume")
    assert find(asking, "resume.steps", QSpinBox).value() == 1001  # its checkpoint is at its last step
    asking.reject()
    assert fake.asked == []


def test_resubmit_starts_the_same_config_and_selects_the_new_run(program: Application, fake: FakeTrainer) -> None:
    do(program, "run.resubmit", ENDED)
    pump(lambda: program.workbench.selection not in (None, ENDED), "the new run")
    assert fake.asked == [("submit", fake.payload)]


@pytest.mark.parametrize("answer", ["yes", "no"])
@pytest.mark.parametrize("action", ["run.resubmit", "run.resume"])
def test_code_of_an_imported_run_is_executed_only_after_a_question(
    program: Application, fake: FakeTrainer, action: str, answer: str
) -> None:
    """F45: the question names what would be executed."""
    trusted: list[bool] = []
    would = "This config was imported and would start a program (argv: python -c '# If you trust it' evil.py)."

    def refuse_first(*_: Any, is_trusted: bool = False) -> Any:
        trusted.append(is_trusted)
        if not is_trusted:
            raise NotTrusted.for_risk(would)
        return view(7)

    fake.submit = lambda payload, _, is_trusted, key: refuse_first(is_trusted=is_trusted)  # type: ignore[assignment, method-assign, misc]
    fake.resume = lambda run, _, is_trusted: refuse_first(is_trusted=is_trusted)  # type: ignore[assignment, method-assign, misc]
    do(program, action, ENDED)
    if action == "run.resume":
        dialog("resume").steps_chosen.emit(0)
        dialog("resume").reject()
    question = dialog("trust.question")
    assert question.informativeText() == would
    if answer == "yes":
        click(find(question, "trust.question.yes", QPushButton))
        pump(lambda: trusted == [False, True], "the call with trust")
    else:
        question.reject()
        finish_calls(program.bridge)
        assert trusted == [False]


def test_edit_opens_the_form_with_the_runs_payload(program: Application, fake: FakeTrainer) -> None:
    """R1.3: from a run to its config and a new run."""
    wanted: list[Any] = []
    program.workbench.edit_requested.connect(lambda run, payload: wanted.append((run, payload)))
    do(program, "run.edit", ENDED)
    pump(lambda: wanted == [(ENDED, fake.payload)], "the form")


def test_the_difference_of_two_runs_counts_defaults(program: Application, fake: FakeTrainer) -> None:
    payloads = {ENDED: 0.00025, OTHER: 0.5}

    def config(run: str) -> Any:
        settings = {"algo": "ppo", "env_id": "CartPole-v1", "algo_params": {"learning_rate": payloads[run]}}
        return {"metadata": {"worker": {"id": "cleanrl", "config": settings}}, "artifacts": {}}

    fake.config = config  # type: ignore[method-assign]
    do(program, "run.diff", ENDED, OTHER)
    table = find(dialog("diff"), "diff.table", QTableWidget)
    cells = [[table.item(row, column).text() for column in range(3)] for row in range(table.rowCount())]  # type: ignore[union-attr]
    assert cells == [["learning_rate", "0.00025", "0.5"]]
    dialog("diff").reject()


def test_tags_are_added_and_taken_by_editing_one_line(program: Application, fake: FakeTrainer) -> None:
    do(program, "run.tags", OTHER)
    asking = dialog("tags")
    line = find(asking, "tags.line", QLineEdit)
    assert line.text() == "old"
    line.setText("new, better")
    click(find(asking, "tags.done", QPushButton))
    pump(lambda: fake.asked, "the tags")
    assert fake.asked == [("annotate", OTHER, ["better", "new"], ["old"], None, None)]


def test_the_note_action_focuses_the_editor(program: Application, fake: FakeTrainer) -> None:
    program.window.activateWindow()
    program.workbench.notes.append_scratch("a verdict")
    do(program, "run.note", OTHER)
    pump(lambda: find(program.window, "notes.run").hasFocus(), "the field")
    assert program.workbench.selection == OTHER


def test_runs_are_archived_and_unarchived(program: Application, fake: FakeTrainer) -> None:
    do(program, "run.archive", ENDED, OTHER)
    pump(lambda: len(fake.asked) == 2, "the archive")
    assert {asked[-1] for asked in fake.asked} == {True}
    do(program, "run.unarchive", HIDDEN)
    pump(lambda: fake.asked[-1] == ("annotate", HIDDEN, [], [], None, False), "the way back")


def test_delete_names_the_runs_and_no_is_the_default(program: Application, fake: FakeTrainer) -> None:
    do(program, "run.delete", ENDED, OTHER)
    question: QMessageBox = dialog("delete.question")
    assert ENDED[-6:] in question.informativeText()
    assert OTHER[-6:] in question.informativeText()
    press(question, Qt.Key.Key_Return)
    assert not isValid(question) or not question.isVisible()
    assert len(program.workbench.runs) == 5


def test_ids_are_copied_whole(program: Application, fake: FakeTrainer) -> None:
    do(program, "run.copy_id", ENDED, OTHER)
    assert QGuiApplication.clipboard().text() == f"{ENDED}\n{OTHER}"


def test_the_header_has_the_buttons_that_fit_the_run(program: Application, fake: FakeTrainer) -> None:
    program.workbench.select(ALIVE)
    visible = {name: find(program.window, f"header.run.{name}", QToolButton) for name in ("cancel", "pause", "resume")}
    assert [name for name, button in visible.items() if button.isVisible()] == ["cancel", "pause"]
    click(visible["pause"])
    pump(lambda: fake.asked == [("pause", ALIVE)], "the pause")
    program.workbench.select(ENDED)
    assert [name for name, button in visible.items() if button.isVisible()] == ["resume"]


def test_an_error_message_is_shown_unchanged(program: Application, fake: FakeTrainer) -> None:
    def refuse(_: str) -> Any:
        raise NotAllowed("Run 1 has already ended: succeeded.")

    fake.cancel_run = refuse  # type: ignore[method-assign, assignment]
    do(program, "run.cancel", ALIVE)
    message = program.window.messages.label
    pump(lambda: message.text() == "Run 1 has already ended: succeeded.", "the message")
    assert isinstance(message, QLabel)
