"""Clicks and keys reach what the user sees: messages cover nothing, and actions apply to the visible selection."""

from __future__ import annotations

from typing import Any

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QLabel,
    QLineEdit,
    QMessageBox,
    QPlainTextEdit,
    QPushButton,
    QTextEdit,
    QWidget,
)
from tests.helpers.gui import awaited, click, find, finish_calls, has, press, pump, settle, type_text
from tests.helpers.gui_runs import FakeTrainer, run_id, running, show_active, start_with, view

from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.views import RunView
from mosaic.features.runs.window_list import RunsPanel
from mosaic.features.runs.window_order import COLUMN_IDS
from mosaic.window.app import Application
from mosaic.window.panels import PAGES

EDITORS = (QLineEdit, QPlainTextEdit, QTextEdit, QAbstractSpinBox, QComboBox)
LONG_MESSAGE = "'ALE/Breakout-v5' needs the Atari extra: pip install 'mosaic-rl[atari]'. " * 4
FIRST, SECOND, THIRD, FOURTH, FIFTH = (run_id(number) for number in range(1, 6))


@pytest.fixture
def fake(program: Application) -> FakeTrainer:
    """Newest first: a queued, a running and a paused run, and two that have ended."""
    trainer = FakeTrainer([view(1), view(2), running(3, stage="paused"), running(4), running(5, stage="queued")])
    start_with(program, trainer)
    show_active(program)
    return trainer


@pytest.fixture
def panel(program: Application, fake: FakeTrainer) -> RunsPanel:
    panel = program.window.findChild(RunsPanel)
    assert panel is not None
    panel.table.horizontalHeader().setSortIndicator(COLUMN_IDS.index("age"), Qt.SortOrder.AscendingOrder)
    panel.table.setFocus()
    pump(panel.table.hasFocus, "the list to have the focus")
    return panel


def send_key(program: Application, key: Qt.Key, modifier: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    """Press a key as the window system delivers it: shortcuts first, then the focused widget."""
    QTest.keyClick(program.window.windowHandle(), key, modifier)


def send_click(program: Application, widget: QWidget) -> None:
    """Click where the center of the widget is drawn, whatever lies on top of it."""
    place = widget.mapTo(program.window, widget.rect().center())
    QTest.mouseClick(program.window.windowHandle(), Qt.MouseButton.LeftButton, pos=place)


def click_row_quickly(program: Application, panel: RunsPanel, wanted: str) -> None:
    """Without waiting for what follows from the click."""
    index = panel._model.index(panel._model.row_of(wanted) or 0, 0)
    place = panel.table.viewport().mapTo(program.window, panel.table.visualRect(index).center())
    QTest.mouseClick(program.window.windowHandle(), Qt.MouseButton.LeftButton, pos=place)


def click_row(program: Application, panel: RunsPanel, wanted: str) -> None:
    click_row_quickly(program, panel, wanted)
    pump(lambda: program.workbench.selection == wanted, "the row to be selected")


def visible_editors(window: QWidget) -> list[QWidget]:
    return [widget for widget in window.findChildren(QWidget) if isinstance(widget, EDITORS) and widget.isVisible()]


def area(widget: QWidget, window: QWidget) -> QRect:
    return QRect(widget.mapTo(window, QPoint()), widget.size())


def question(name: str) -> QMessageBox:
    box: QMessageBox = pump(
        lambda: next((one for one in QApplication.topLevelWidgets() if one.objectName() == name), None),
        f"the question {name}",
    )
    return box


# --- messages


def test_a_click_and_keys_right_after_a_message_reach_the_note(program: Application, fake: FakeTrainer) -> None:
    program.workbench.select(FOURTH)
    program.window.refresh_actions()
    both = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    send_key(program, Qt.Key.Key_C, both)
    message = find(program.window, "message")
    pump(message.isVisible, "the message")
    note = find(program.window, "notes.run", QPlainTextEdit)
    send_click(program, note)
    for key in (Qt.Key.Key_A, Qt.Key.Key_Space, Qt.Key.Key_B):
        send_key(program, key)
    assert message.isVisible()
    assert note.toPlainText() == "a b"
    note.clear()
    finish_calls(program.bridge)
    assert [call for call in fake.asked if call[0] != "annotate"] == []


@pytest.mark.parametrize("size", [(1366, 768), (1024, 700)])
@pytest.mark.parametrize("text", ["Copied an id", LONG_MESSAGE])
def test_a_message_never_covers_an_editor(
    program: Application, fake: FakeTrainer, size: tuple[int, int], text: str
) -> None:
    program.window.resize(*size)
    program.workbench.select(FOURTH)
    for page in PAGES:
        program.window.show_page(page.id)
        settle()
        program.workbench.show_message(text, "bad")
        place = area(find(program.window, "message"), program.window)
        editors = visible_editors(program.window)
        assert editors
        covered = [one.objectName() for one in editors if area(one, program.window).intersects(place)]
        assert covered == [], page.id


def test_a_message_takes_clicks_only_with_its_button(program: Application, fake: FakeTrainer) -> None:
    offered: list[str] = []
    program.workbench.offer_action("In the trash.", "Undo", lambda: offered.append("undone"))
    message = find(program.window, "message")
    undo = find(program.window, "message.button", QPushButton)
    assert message.isVisible()
    place = area(message, program.window)
    assert place.contains(area(undo, program.window))
    for x in range(place.left(), place.right(), 10):
        hit = program.window.childAt(QPoint(x, place.center().y()))
        assert hit is undo or (hit is not message and not message.isAncestorOf(hit or program.window))
    send_click(program, undo)
    assert offered == ["undone"]
    assert not message.isVisible()
    assert not undo.isVisible()
    program.workbench.show_message("Only a text")
    assert message.isVisible()
    assert not undo.isVisible()


# --- keys


def test_space_pauses_only_from_the_list_of_runs(program: Application, panel: RunsPanel, fake: FakeTrainer) -> None:
    click_row(program, panel, FOURTH)
    program.window.setFocus()
    send_key(program, Qt.Key.Key_Space)
    for name in ("run.tabs", "log.table", "runs.archived"):
        awaited(program.window, name).setFocus()
        send_key(program, Qt.Key.Key_Space)
    finish_calls(program.bridge)
    assert fake.asked == []
    panel.table.setFocus()
    send_key(program, Qt.Key.Key_Space)
    pump(lambda: fake.asked == [("pause", FOURTH)], "the pause")


@pytest.mark.parametrize("page", [page.id for page in PAGES])
def test_space_does_not_pause_a_run_on_any_page(
    program: Application, panel: RunsPanel, fake: FakeTrainer, page: str
) -> None:
    click_row(program, panel, FOURTH)
    program.window.show_page(page)
    shown = find(program.window, f"page.{page}")
    pump(shown.isVisible, "the page")
    for widget in (shown, *shown.findChildren(QLabel)):
        widget.setFocus()
        send_key(program, Qt.Key.Key_Space)
    finish_calls(program.bridge)
    assert fake.asked == []


def test_a_chosen_key_that_types_text_works_only_in_the_list(
    program: Application, panel: RunsPanel, fake: FakeTrainer
) -> None:
    program.window.set_shortcut("run.pause", "P")
    click_row(program, panel, FOURTH)
    find(program.window, "log.table").setFocus()
    send_key(program, Qt.Key.Key_P)
    finish_calls(program.bridge)
    assert fake.asked == []
    panel.table.setFocus()
    send_key(program, Qt.Key.Key_P)
    pump(lambda: fake.asked == [("pause", FOURTH)], "the pause")


# --- the selection


def test_an_action_right_after_the_arrow_keys_applies_to_the_row_they_reached(
    program: Application, panel: RunsPanel, fake: FakeTrainer
) -> None:
    click_row(program, panel, FIFTH)
    both = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    send_key(program, Qt.Key.Key_Down)
    send_key(program, Qt.Key.Key_X, both)
    pump(lambda: fake.asked, "the cancellation")
    assert fake.asked == [("cancel", FOURTH)]


def test_an_action_right_after_a_click_applies_to_the_clicked_row(
    program: Application, panel: RunsPanel, fake: FakeTrainer
) -> None:
    click_row(program, panel, FIFTH)
    both = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    panel._selection_timer.timeout.disconnect()  # the row has not become the selected run yet
    click_row_quickly(program, panel, THIRD)
    send_key(program, Qt.Key.Key_X, both)
    pump(lambda: fake.asked, "the cancellation")
    assert program.workbench.selection == FIFTH
    assert fake.asked == [("cancel", THIRD)]


def test_a_key_right_after_the_arrow_keys_is_not_lost(
    program: Application, panel: RunsPanel, fake: FakeTrainer
) -> None:
    """Delete is disabled for the running run and enabled for the one that has ended."""
    click_row(program, panel, THIRD)
    pump(lambda: not program.window.action("run.delete").isEnabled(), "delete to be disabled")
    send_key(program, Qt.Key.Key_Down)
    send_key(program, Qt.Key.Key_Down)
    send_key(program, Qt.Key.Key_Delete)
    box = question("delete.question")
    assert FIRST[-6:] in box.informativeText()
    assert SECOND[-6:] not in box.informativeText()
    box.reject()


def test_select_all_and_delete_asks_about_all(program: Application, panel: RunsPanel, fake: FakeTrainer) -> None:
    type_text(find(panel, "runs.search", QLineEdit), "status:succeeded")
    pump(lambda: panel._model.rowCount() == 2, "the filter")
    panel.table.setFocus()
    click_row(program, panel, FIRST)
    send_key(program, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    send_key(program, Qt.Key.Key_Delete)
    box = question("delete.question")
    assert "2 runs" in box.text()
    box.reject()


def test_delete_leaves_runs_that_have_not_ended_and_says_so(
    program: Application, panel: RunsPanel, fake: FakeTrainer
) -> None:
    click_row(program, panel, FIRST)
    send_key(program, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    assert len(program.workbench.target_runs()) == 5
    assert program.window.action("run.delete").text() == "Delete 2 runs…"
    send_key(program, Qt.Key.Key_Delete)
    box = question("delete.question")
    assert "2 runs" in box.text()
    assert "3 runs have not ended and stay." in box.informativeText()
    box.reject()


def test_ticked_runs_are_compared_unless_several_are_marked(
    program: Application, panel: RunsPanel, fake: FakeTrainer
) -> None:
    click_row(program, panel, FIRST)
    assert not program.window.action("run.compare").isEnabled()
    program.workbench.toggle_ticks([SECOND, FOURTH])
    pump(program.window.action("run.compare").isEnabled, "the action")
    compared: list[list[str]] = []
    program.workbench.comparison_requested.connect(compared.append)
    program.window.action("run.compare").trigger()
    send_key(program, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    assert [set(compared[0]), len(program.workbench.runs_to_compare())] == [{SECOND, FOURTH}, 5]


def test_runs_that_a_search_hides_are_no_longer_marked(
    program: Application, panel: RunsPanel, fake: FakeTrainer
) -> None:
    click_row(program, panel, FIFTH)
    send_key(program, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    assert len(program.workbench.target_runs()) == 5
    type_text(find(panel, "runs.search", QLineEdit), "status:succeeded")
    pump(lambda: panel._model.rowCount() == 2, "the filter")
    assert [run.run_id for run in program.workbench.target_runs()] == [SECOND, FIRST]


def test_a_marked_run_that_leaves_the_list_is_no_longer_marked(
    program: Application, panel: RunsPanel, fake: FakeTrainer
) -> None:
    program.workbench.mark([FOURTH, SECOND, FIRST])
    program.workbench.runs.update([fake._changed(SECOND, is_archived=True)])
    pump(lambda: panel._model.row_of(SECOND) is None, "the row to go")
    assert program.workbench.marks == [FOURTH, FIRST]
    assert len(panel._selected_rows()) == 2


def test_the_evaluation_form_takes_the_row_that_the_arrow_keys_reached(
    program: Application, panel: RunsPanel, fake: FakeTrainer
) -> None:
    click_row(program, panel, SECOND)
    send_key(program, Qt.Key.Key_Down)
    assert program.workbench.target_run_id() == FIRST


# --- questions


def test_cancelling_several_runs_asks_with_their_number(
    program: Application, panel: RunsPanel, fake: FakeTrainer
) -> None:
    click_row(program, panel, FIFTH)
    send_key(program, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    both = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    send_key(program, Qt.Key.Key_X, both)
    box = question("cancel.question")
    assert "3 runs" in box.text()
    assert all(one[-6:] in box.informativeText() for one in (THIRD, FOURTH, FIFTH))
    press(box, Qt.Key.Key_Return)
    finish_calls(program.bridge)
    assert fake.asked == []
    program.window.action("run.cancel").trigger()
    box = question("cancel.question")
    program.workbench.runs.update([fake._changed(THIRD, stage="finished", outcome="succeeded")])
    click(find(box, "cancel.question.yes", QPushButton))
    finish_calls(program.bridge)
    assert sorted(fake.asked) == [("cancel", FOURTH), ("cancel", FIFTH)]


def test_menus_and_the_list_show_the_number_of_selected_runs(
    program: Application, panel: RunsPanel, fake: FakeTrainer
) -> None:
    click_row(program, panel, FOURTH)
    assert program.window.action("run.cancel").text() == "Cancel run"
    assert find(panel, "runs.count", QLabel).text() == "5 runs"
    send_key(program, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    assert program.window.action("run.cancel").text() == "Cancel 3 runs…"
    assert find(panel, "runs.count", QLabel).text() == "5 runs, 5 selected"
    program.workbench.mark([SECOND, FIRST])
    assert program.window.action("run.delete").text() == "Delete 2 runs…"
    assert find(panel, "runs.count", QLabel).text() == "5 runs, 2 selected"


def test_what_was_deleted_before_an_error_can_be_restored(
    program: Application, panel: RunsPanel, fake: FakeTrainer
) -> None:
    messages: list[str] = []
    program.workbench.message_posted.connect(lambda text, _: messages.append(text))

    def delete(run: str) -> RunView:
        if run == FIRST:
            raise NotAllowed("Run 1 is in use.")
        return fake.views[run].model_copy(update={"run_dir": f"/trash/{run}"})

    def import_run(path: str) -> RunView:
        fake.asked.append(("import", path))
        return fake.views[path.rpartition("/")[2]]

    trainer: Any = fake
    trainer.delete_run, trainer.import_run = delete, import_run
    program.workbench.mark([SECOND, FIRST])
    program.window.action("run.delete").trigger()
    click(find(question("delete.question"), "delete.question.yes", QPushButton))
    pump(lambda: program.workbench.runs.get(SECOND) is None, "the run to go")
    assert program.workbench.runs.get(FIRST) is not None
    undo = find(program.window, "message.button", QPushButton)
    pump(undo.isVisible, "the offer")
    assert "Run 1 is in use." in program.window.messages.label.text()
    program.window.refresh_actions()
    assert program.window.action("edit.undo").text() == "Undo: delete 1 run"
    send_click(program, undo)
    pump(lambda: program.workbench.runs.get(SECOND) is not None, "the run to come back")
    assert fake.asked == [("import", f"/trash/{SECOND}")]
    assert not has(program.window, "delete.question")


@pytest.mark.parametrize("size", [(1366, 768), (1024, 700)])
def test_messages_of_one_line_have_one_height_and_no_empty_space(
    program: Application, fake: FakeTrainer, size: tuple[int, int]
) -> None:
    program.window.resize(*size)
    settle()
    message = find(program.window, "message")
    heights = set()
    for text in ("Copied", "2 runs: archived; the box symbol above the list shows such runs.", "é" * 60):
        program.workbench.show_message(text, "good")
        heights.add(message.height())
        label = program.window.messages.label
        assert 0 <= label.width() - label.fontMetrics().horizontalAdvance(text) < 16
        program.workbench.offer_undo(text, "archive 2 runs", lambda: None)
        heights.add(message.height())
    assert len(heights) == 1
