"""The list of runs in the window: what is chosen there, the window is about."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QItemSelectionModel, QPoint, Qt
from PySide6.QtWidgets import QLabel, QLineEdit, QMenu, QToolButton
from tests.helpers.gui import click, find, press, pump, pump_ticks, settle, type_text
from tests.helpers.gui_runs import FakeTrainer, run_id, running, start_with, view

from mosaic.features.runs.window_list import KEY_SELECTION_DELAY_MS, RunsPanel, RunsTableView
from mosaic.features.runs.window_order import COLUMN_IDS
from mosaic.window.app import Application


@pytest.fixture
def fake(program: Application) -> FakeTrainer:
    views = [view(1, env_id="Acrobot-v1"), view(2), running(3), view(4, is_archived=True)]
    made = FakeTrainer(views)
    start_with(program, made)
    return made


@pytest.fixture
def panel(program: Application, fake: FakeTrainer) -> RunsPanel:
    found = program.window.findChild(RunsPanel)
    assert found is not None
    return found


def place_of(panel: RunsPanel, number: int) -> QPoint:
    row = panel._model.row_of(run_id(number))
    assert row is not None
    return panel.table.visualRect(panel._model.index(row, 0)).center()


def click_run(panel: RunsPanel, number: int) -> None:
    click(panel.table.viewport(), place_of(panel, number))


def test_a_click_opens_the_run(program: Application, panel: RunsPanel) -> None:
    click_run(panel, 1)
    pump(lambda: program.workbench.selection == run_id(1), "the run to be looked at")
    assert program.window.current_page == "run"
    assert "Acrobot-v1" in find(program.window, "run.title", QLabel).text()
    assert program.workbench.marks == [run_id(1)]


def test_selecting_several_runs_keeps_the_current_one(program: Application, panel: RunsPanel) -> None:
    click_run(panel, 2)
    pump(lambda: program.workbench.selection == run_id(2), "the first")
    index = panel._model.index(panel._model.row_of(run_id(1)) or 0, 0)
    wanted = QItemSelectionModel.SelectionFlag.Select | QItemSelectionModel.SelectionFlag.Rows
    panel.table.selectionModel().select(index, wanted)
    pump(lambda: program.workbench.marks == [run_id(2), run_id(1)], "both to be marked, newest first")
    assert program.workbench.selection == run_id(2)
    assert len(program.workbench.target_runs()) == 2


def test_the_list_selects_a_run_that_was_opened_elsewhere(program: Application, panel: RunsPanel) -> None:
    program.workbench.select(run_id(2))
    assert panel._selected_rows() == [panel._model.row_of(run_id(2))]
    program.workbench.select(run_id(4))  # archived: not in the list
    assert panel._selected_rows() == []
    assert [one.run_id for one in program.workbench.target_runs()] == [run_id(4)]


def test_buttons_of_the_header_act_on_the_shown_run(program: Application, panel: RunsPanel) -> None:
    program.workbench.select(run_id(3))
    program.workbench.mark([run_id(2), run_id(1)])
    assert len(panel._selected_rows()) == 2
    click(find(program.window, "header.run.pause", QToolButton))
    assert program.workbench.marks == [run_id(3)]
    assert panel._selected_rows() == [panel._model.row_of(run_id(3))]


def test_a_search_filters_the_list_and_keeps_the_current_run(program: Application, panel: RunsPanel) -> None:
    program.workbench.select(run_id(2))
    type_text(find(panel, "runs.search", QLineEdit), "acrobot")
    pump(lambda: panel._model.rowCount() == 1, "one row")
    assert find(panel, "runs.count", QLabel).text() == "1 of 3 runs, 1 archived"
    pump_ticks(KEY_SELECTION_DELAY_MS)
    assert program.workbench.selection == run_id(2)
    type_text(find(panel, "runs.search", QLineEdit), "no such run")
    pump(lambda: panel._stack.currentWidget() is panel._no_match, "the empty state")
    click(find(panel, "runs.clear"))
    pump(lambda: panel._model.rowCount() == 4, "all rows, the archived one too")
    assert panel._selected_rows() == [panel._model.row_of(run_id(2))]


def test_archived_runs_are_shown_by_a_button(panel: RunsPanel) -> None:
    assert panel._model.rowCount() == 3
    click(find(panel, "runs.archived", QToolButton))
    assert panel._model.rowCount() == 4


def test_removing_the_selected_run_clears_the_selection(program: Application, panel: RunsPanel) -> None:
    program.workbench.select(run_id(2))
    program.workbench.mark([run_id(2), run_id(1)])
    program.workbench.runs.remove({run_id(2)})
    pump_ticks(KEY_SELECTION_DELAY_MS)
    assert program.workbench.selection is None


def test_the_arrow_keys_open_the_run_where_they_stop(program: Application, panel: RunsPanel) -> None:
    click_run(panel, 3)
    panel.table.setFocus()
    press(panel.table, Qt.Key.Key_Down)
    press(panel.table, Qt.Key.Key_Down)
    pump(lambda: program.workbench.selection == run_id(1), "the last run")


def test_end_and_home_go_to_the_last_and_the_first_run(program: Application, panel: RunsPanel) -> None:
    click_run(panel, 2)
    panel.table.setFocus()
    press(panel.table, Qt.Key.Key_End)
    pump(lambda: program.workbench.selection == run_id(1), "the last run")
    press(panel.table, Qt.Key.Key_Home)
    pump(lambda: program.workbench.selection == run_id(3), "the first run")


def test_an_empty_workspace_shows_what_to_do(program: Application) -> None:
    start_with(program, FakeTrainer())
    panel = program.window.findChild(RunsPanel)
    assert panel is not None
    pump(lambda: panel._stack.currentWidget() is panel._none, "the empty state")
    wanted: list[object] = []
    program.workbench.form_requested.connect(wanted.append)
    click(find(panel, "runs.start"))
    assert wanted == [None]


def test_a_narrow_list_shows_the_first_columns_and_a_wide_one_all(panel: RunsPanel) -> None:
    table = panel.table
    table.setFixedWidth(260)
    settle()
    narrow = [name for number, name in enumerate(COLUMN_IDS) if not table.isColumnHidden(number)]
    assert narrow == list(COLUMN_IDS[: len(narrow)])
    assert 1 <= len(narrow) < 5
    table.setFixedWidth(1400)
    settle()
    shown = [name for number, name in enumerate(COLUMN_IDS) if not table.isColumnHidden(number)]
    # The row of a group names it, and all runs are of one user.
    assert shown == [name for name in COLUMN_IDS if name not in ("group", "user")]


def test_hidden_columns_and_the_order_are_remembered(program: Application, panel: RunsPanel) -> None:
    panel.table.set_column_visible("seed", False)
    panel.table.horizontalHeader().setSortIndicator(COLUMN_IDS.index("return"), Qt.SortOrder.DescendingOrder)
    again = RunsTableView(panel._model, program.settings, program.workbench.ticks)
    again.resize(1400, 300)
    again.fit_columns()
    assert again.isColumnHidden(COLUMN_IDS.index("seed"))
    assert again.horizontalHeader().sortIndicatorSection() == COLUMN_IDS.index("return")
    again.deleteLater()


def test_the_context_menu_holds_what_can_be_done_with_the_run(program: Application, panel: RunsPanel) -> None:
    """R7.5: list of runs."""
    click_run(panel, 3)
    panel._open_menu(place_of(panel, 3))
    menu = find(panel, "runs.menu", QMenu)
    offered = {action.objectName() for action in menu.actions() if action.objectName()}
    assert {"menu.run.cancel", "menu.run.pause", "menu.run.tags"} <= offered
    assert not offered & {"menu.run.delete", "menu.run.archive", "menu.run.export_zip"}
    menu.close()


def test_ctrl_f_goes_to_the_search(program: Application, panel: RunsPanel) -> None:
    program.window.activateWindow()
    program.window.action("view.search").trigger()
    pump(lambda: find(panel, "runs.search", QLineEdit).hasFocus(), "the search line")
