"""What is changed in the window can be taken back, by the message's button and by the menu."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from PySide6.QtWidgets import QLineEdit, QPlainTextEdit, QPushButton
from tests.helpers.gui import click, find, finish_calls, pump, question_button, settle
from tests.helpers.gui_runs import FakeTrainer, run_id, running, start_with, view

from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.views import RunView
from mosaic.features.experiments.window_compare import ComparePage
from mosaic.features.runs.window_analytics import AnalyticsTab
from mosaic.features.runs.window_list import RunsPanel
from mosaic.window.app import Application
from mosaic.window.workbench import MAX_CHANGES, UndoStack

FIRST, SECOND, ALIVE, QUEUED, SCRIPT = (run_id(number) for number in range(1, 6))


@pytest.fixture
def fake(program: Application) -> FakeTrainer:
    views = [
        view(1, tags=["old"]),
        view(2, run_name="second"),
        running(3),
        running(4, stage="queued", started_at=None, tags=["wait"], priority=3),
        running(5, worker="script", checkpoint_step=None),
    ]
    made = FakeTrainer(views)
    start_with(program, made)
    return made


def do(program: Application, action_id: str, *run_ids: str) -> None:
    program.workbench.mark(list(run_ids))
    program.window.refresh_actions()
    program.window.action(action_id).trigger()


def undo(program: Application, title: str) -> None:
    """Take the last change back by the menu, where it has this title."""
    action = program.window.action("edit.undo")
    pump(lambda: action.text() == f"Undo: {title}", f"the entry {title!r}, not {program.workbench.undo.title!r}")
    action.trigger()


def test_the_last_changes_are_taken_back_in_order_and_once() -> None:
    stack, done = UndoStack(), list[str]()
    for number in range(MAX_CHANGES + 5):
        stack.push(f"change {number}", partial(done.append, f"undone {number}"))
    first = stack.push("note", lambda: done.append("note"), "note 1")
    assert stack.push("note", lambda: done.append("later"), "note 1") is first, "steps of one change"
    stack.undo()
    stack.take_back(first)
    stack.undo()
    assert done == ["note", f"undone {MAX_CHANGES + 4}"]
    for _ in range(2 * MAX_CHANGES):
        stack.undo()
    assert (len(done), stack.title) == (MAX_CHANGES, "")


def test_archiving_is_taken_back(program: Application, fake: FakeTrainer) -> None:
    do(program, "run.archive", FIRST, SECOND)
    undo(program, "archive 2 runs")
    pump(lambda: not any(fake.views[one].is_archived for one in (FIRST, SECOND)), "the runs to be in the list")
    assert program.workbench.undo.title == ""


def test_an_archive_that_failed_for_one_run_can_be_taken_back_for_the_others(
    program: Application, fake: FakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotate = fake.annotate_run

    def refuse_first(run: str, **changes: Any) -> RunView:
        if run == FIRST and changes.get("is_archived"):
            raise NotAllowed("Run 1 is in use.")
        return annotate(run, **changes)

    monkeypatch.setattr(fake, "annotate_run", refuse_first)
    do(program, "run.archive", FIRST, SECOND)
    pump(lambda: "Run 1 is in use." in program.window.messages.label.text(), "the reason")
    undo(program, "archive 1 run")
    pump(lambda: not fake.views[SECOND].is_archived, "the run to be in the list")


def test_changed_tags_are_put_back_run_by_run(program: Application, fake: FakeTrainer) -> None:
    fake.views[SECOND] = view(2, tags=["old", "new"])
    program.workbench.runs.update([fake.views[SECOND]])
    do(program, "run.tags", FIRST, SECOND)
    find(program.window, "tags.line", QLineEdit).setText("new")
    click(find(program.window, "tags.done", QPushButton))
    pump(lambda: all(fake.views[one].tags == ("new",) for one in (FIRST, SECOND)), "the tags")
    undo(program, "change the tags of 2 runs")
    pump(lambda: sorted(fake.views[SECOND].tags) == ["new", "old"], "the tags of the one")
    pump(lambda: fake.views[FIRST].tags == ("old",), "the tags of the other")


def test_a_name_is_put_back(program: Application, fake: FakeTrainer) -> None:
    panel = program.window.findChild(RunsPanel)
    assert panel is not None
    panel._rename(SECOND, "other")
    undo(program, f"rename run {SECOND[-6:]}")
    pump(lambda: fake.views[SECOND].run_name == "second", "the name")
    assert fake.asked == [("rename", SECOND, "other"), ("rename", SECOND, "second")]


def test_a_note_is_put_back_as_it_was_when_the_run_was_chosen(program: Application, fake: FakeTrainer) -> None:
    fake.views[FIRST] = view(1, notes="It learns.")
    program.workbench.runs.update([fake.views[FIRST]])
    program.workbench.select(FIRST)
    note = find(program.window, "notes.run", QPlainTextEdit)
    for text in ("It", "", "gone"):
        note.setPlainText(text)
        program.workbench.closing.emit()  # saves it, as the timer does while one types
        finish_calls(program.bridge)
    program.workbench.select(SECOND)
    undo(program, f"edit the note of run {FIRST[-6:]}")
    pump(lambda: fake.views[FIRST].notes == "It learns.", "the note")


def test_a_run_that_is_cancelled_in_the_queue_is_queued_again(program: Application, fake: FakeTrainer) -> None:
    do(program, "run.cancel", QUEUED)
    undo(program, "cancel 1 run of the queue")
    pump(lambda: len(fake.asked) == 3, "the run to be submitted again")
    assert [call[0] for call in fake.asked] == ["cancel", "submit", "annotate"]
    assert fake.asked[2][2] == ["wait"], "with its labels"


def test_one_message_with_undo_tells_of_runs_that_waited_and_runs_that_stop(
    program: Application, fake: FakeTrainer
) -> None:
    messages: list[str] = []
    program.workbench.message_posted.connect(lambda text, _: messages.append(text))
    program.workbench.action_offered.connect(lambda text, *_: messages.append(text))
    do(program, "run.cancel", QUEUED, ALIVE)
    click(question_button("cancel.question.yes"))
    pump(lambda: len(fake.asked) == 2, "both cancellations")
    finish_calls(program.bridge)
    assert messages == [
        f"Run {QUEUED[-6:]}: taken out of the queue. 1 other run: stop requested, with a checkpoint where it can."
    ]
    undo(program, "cancel 1 run of the queue")


def test_a_script_that_cannot_be_resumed_is_cancelled_after_a_question(program: Application, fake: FakeTrainer) -> None:
    do(program, "run.cancel", SCRIPT)
    box: Any = question_button("cancel.question.yes").window()
    assert "lost" in box.informativeText()
    assert SCRIPT[-6:] in box.informativeText()
    finish_calls(program.bridge)
    assert fake.asked == []
    click(question_button("cancel.question.yes"))
    pump(lambda: fake.asked == [("cancel", SCRIPT)], "the cancellation")


def test_runs_taken_out_of_a_comparison_come_back(program: Application, fake: FakeTrainer) -> None:
    page = program.window.findChild(ComparePage)
    assert page is not None
    page.show_runs([FIRST, SECOND])
    page.chips.removed.emit(FIRST)
    undo(program, "remove 1 run from the comparison")
    assert page.run_ids() == [FIRST, SECOND]
    program.window.show_page("compare")
    click(page.clear_button)
    assert page.run_ids() == []
    undo(program, "remove 2 runs from the comparison")
    assert page.run_ids() == [FIRST, SECOND]
    page.show_runs([])


def test_removed_columns_come_back(program: Application, fake: FakeTrainer) -> None:
    panel = program.window.findChild(RunsPanel)
    assert panel is not None
    panel.table.set_column_visible("seed", False)
    seed = next(column for column in panel._model.columns if column.id == "seed")
    assert not panel.table.is_wanted(seed)
    undo(program, "change the columns")
    assert panel.table.is_wanted(seed)
    panel.show_value_columns(["setting:gamma"])
    panel._change_value_columns([])
    undo(program, "remove columns")
    assert panel._value_columns == ["setting:gamma"]
    panel.show_value_columns([])


def test_a_run_that_is_unticked_by_its_chip_is_ticked_again(program: Application, fake: FakeTrainer) -> None:
    program.workbench.toggle_ticks([FIRST])
    program.workbench.select(SECOND, "analytics")
    settle()
    tab = program.window.findChild(AnalyticsTab)
    assert tab is not None
    tab._chips.removed.emit(FIRST)
    assert program.workbench.ticks.ids == []
    undo(program, f"untick run {FIRST[-6:]}")
    assert program.workbench.ticks.ids == [FIRST]


def test_keys_of_an_action_that_were_reset_come_back(program: Application, fake: FakeTrainer) -> None:
    program.settings.put("keys", {"run.cancel": "Ctrl+J"})
    program.window.set_shortcut("run.cancel", "Ctrl+J")
    program.window.show_page("settings")
    page: Any = find(program.window, "page.settings")
    page._keys.selectRow([row.id for row in program.window.action_table].index("run.cancel"))
    click(find(page, "settings.key_reset", QPushButton))
    assert program.window.action("run.cancel").shortcut().toString() == "Ctrl+Shift+X"
    undo(program, "reset the keys of 'Cancel run'")
    assert program.window.action("run.cancel").shortcut().toString() == "Ctrl+J"
    assert program.settings.get("keys") == {"run.cancel": "Ctrl+J"}
