"""The list of runs by mouse and keys: groups, filters, names in place, ticks, and columns of the user's choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QLineEdit, QMessageBox, QPushButton, QToolButton, QTreeWidget
from tests.helpers.gui import click, find, finish_calls, press, pump, settle, type_text
from tests.helpers.gui_runs import FakeTrainer, run_id, running, show_active, start_with, view

from mosaic.base.caller_environment import submitter
from mosaic.contracts.errors import UnknownName
from mosaic.contracts.views import MetricSeries
from mosaic.features.runs.window_cells import ColumnsDialog
from mosaic.features.runs.window_list import RunsPanel
from mosaic.features.runs.window_order import MAX_RUNS_PER_CALL
from mosaic.window.app import Application

LEARNING_RATE, LOSS = "setting:learning_rate", "metric:losses/value_loss"


class TrainerWithValues(FakeTrainer):
    """Knows a metric of every run, and which runs it was asked about."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.read: list[str] = []

    def config(self, run: str) -> dict[str, Any]:
        self.read.append(run)
        if run == run_id(2):
            raise UnknownName("It was deleted meanwhile.")
        return super().config(run)

    def metrics(self, run: str, tags: Sequence[str] = (), last_only: bool = False) -> Iterator[MetricSeries]:
        assert last_only
        if not tags or "losses/value_loss" in tags:
            yield MetricSeries("losses/value_loss", [10], [1.0], [float(int(run[-5:]))])


@pytest.fixture
def fake(program: Application) -> TrainerWithValues:
    """Newest first: a run without a group, the group `seeds` with three runs, and the group `old`, which has ended."""
    old = [view(number, group="old") for number in (1, 2)]
    seeds = [view(3, group="seeds"), running(4, group="seeds"), running(5, group="seeds", stage="paused")]
    trainer = TrainerWithValues([*old, *seeds, view(6, is_archived=True), view(7)])
    start_with(program, trainer)
    show_active(program)
    return trainer


@pytest.fixture
def panel(program: Application, fake: TrainerWithValues) -> RunsPanel:
    found = program.window.findChild(RunsPanel)
    assert found is not None
    found.table.setFocus()
    pump(found.table.hasFocus, "the list to have the focus")
    return found


def rows(panel: RunsPanel) -> list[int | str]:
    model = panel._model
    return [model.group_at(row) or int(model.run_id(row)[-5:]) for row in range(model.rowCount())]


def select_group(panel: RunsPanel, group: str) -> None:
    row = panel._model.row_of_group(group)
    assert row is not None
    name = panel._model.column_ids.index("name")
    click(panel.table.viewport(), panel.table.visualRect(panel._model.index(row, name)).center())


def mark_place(panel: RunsPanel, row: int, x: int) -> QPoint:
    cell = panel.table.visualRect(panel._model.index(row, 0))
    return QPoint(cell.left() + x, cell.center().y())


def question() -> QMessageBox:
    box: QMessageBox = pump(
        lambda: next((one for one in QApplication.topLevelWidgets() if isinstance(one, QMessageBox)), None),
        "the question",
    )
    return box


# --- groups


def test_the_arrow_keys_unfold_and_fold_a_group(program: Application, panel: RunsPanel) -> None:
    assert rows(panel) == ["seeds", 7, "old"]
    select_group(panel, "seeds")
    press(panel.table, Qt.Key.Key_Right)
    assert rows(panel) == ["seeds", 5, 4, 3, 7, "old"]
    press(panel.table, Qt.Key.Key_Down)
    pump(lambda: program.workbench.selection == run_id(5), "the first run of the group")
    press(panel.table, Qt.Key.Key_Left)
    assert program.workbench.marked_groups == ["seeds"]
    press(panel.table, Qt.Key.Key_Left)
    assert rows(panel) == ["seeds", 7, "old"]
    assert program.settings.get_for_workspace("runs.expanded") == []


def test_return_on_a_group_shows_all_of_it(program: Application, panel: RunsPanel) -> None:
    requested: list[str] = []
    program.workbench.group_requested.connect(requested.append)
    select_group(panel, "old")
    press(panel.table, Qt.Key.Key_Return)
    assert requested == ["old"]


def test_a_click_on_the_arrow_unfolds_a_group_and_selects_nothing(program: Application, panel: RunsPanel) -> None:
    before = program.workbench.marks
    click(panel.table.viewport(), mark_place(panel, 0, 36))
    assert rows(panel) == ["seeds", 5, 4, 3, 7, "old"]
    assert program.workbench.marks == before
    assert program.settings.get_for_workspace("runs.expanded") == ["seeds"]


def test_runs_that_a_fold_hides_are_no_longer_marked(program: Application, panel: RunsPanel) -> None:
    program.workbench.select(run_id(4))
    assert rows(panel) == ["seeds", 5, 4, 3, 7, "old"]
    assert program.workbench.marks == [run_id(4)]
    click(panel.table.viewport(), mark_place(panel, 0, 36))
    assert program.workbench.marks == []
    assert program.workbench.selection == run_id(4)


def test_an_action_on_a_group_asks_with_the_number_of_its_runs(
    program: Application, panel: RunsPanel, fake: TrainerWithValues
) -> None:
    select_group(panel, "old")
    assert program.workbench.marks == [run_id(2), run_id(1)]
    program.window.action("run.archive").trigger()
    box = question()
    assert "2 runs" in box.text()
    assert "old" in box.informativeText()
    click(find(box, "group.question.yes", QPushButton))
    finish_calls(program.bridge)
    assert [call[:2] for call in fake.asked] == [("annotate", run_id(2)), ("annotate", run_id(1))]


def test_space_on_a_group_asks_before_it_pauses_anything(
    program: Application, panel: RunsPanel, fake: TrainerWithValues
) -> None:
    select_group(panel, "seeds")
    QTest.keyClick(program.window.windowHandle(), Qt.Key.Key_Space)
    question().reject()
    finish_calls(program.bridge)
    assert fake.asked == []


def test_a_run_that_joins_a_selected_group_is_among_the_marked(program: Application, panel: RunsPanel) -> None:
    select_group(panel, "old")
    program.workbench.runs.update([view(8, group="old")])
    assert program.workbench.marks == [run_id(8), run_id(2), run_id(1)]


def test_folding_can_be_turned_off_and_is_remembered(program: Application, panel: RunsPanel) -> None:
    click(find(panel, "runs.fold", QToolButton))
    assert rows(panel) == [5, 4, 7, 3, 2, 1]
    assert program.settings.get_for_workspace("runs.fold") is False
    group = panel._model.column_ids.index("group")
    panel.table.setFixedWidth(464)
    settle()
    shown = [name for number, name in enumerate(panel._model.column_ids) if not panel.table.isColumnHidden(number)]
    assert shown[:4] == ["state", "name", "seed", "group"]
    assert panel._model.index(0, group).data() == "seeds"


def test_name_seed_and_return_are_visible_in_a_narrow_list(panel: RunsPanel) -> None:
    panel.table.setFixedWidth(300)
    settle()
    shown = [name for number, name in enumerate(panel._model.column_ids) if not panel.table.isColumnHidden(number)]
    assert shown[:4] == ["state", "name", "seed", "return"]


# --- filters and new runs


def test_filters_beside_the_search_narrow_the_list(program: Application, panel: RunsPanel) -> None:
    click(find(panel, "runs.chip.running", QToolButton))
    assert rows(panel) == ["seeds"]
    assert panel._model.runs_at(0) == [run_id(4), run_id(5)]
    assert find(panel, "runs.count", QLabel).text() == "2 of 6 runs, 1 archived"
    click(find(panel, "runs.chip.today", QToolButton))  # all of them are from long ago
    assert panel._stack.currentWidget() is panel._no_match
    click(find(panel, "runs.clear"))
    pump(lambda: panel._model.match_count == 7, "all runs")


def test_runs_of_several_users_can_be_narrowed_down_to_the_own_ones(program: Application, panel: RunsPanel) -> None:
    mine, runs = find(panel, "runs.chip.mine", QToolButton), program.workbench.runs
    user_column = panel._model.column_ids.index("user")
    panel.table.setFixedWidth(1600)
    runs.update([view(8, submitted_by=submitter(is_local=True))])
    assert mine.isHidden()
    assert panel.table.isColumnHidden(user_column)
    runs.update([view(9, submitted_by="ann@laptop")])
    assert not mine.isHidden()
    assert not panel.table.isColumnHidden(user_column)
    click(mine)
    assert rows(panel) == [8]
    runs.remove({run_id(9)})
    assert not mine.isHidden(), "it is in use"
    click(mine)
    assert mine.isHidden()
    panel._search.setText("user:nobody")
    pump(lambda: panel._model.match_count == 0, "the search")


def test_a_submitted_run_is_shown_whatever_the_filter(
    program: Application, panel: RunsPanel, fake: TrainerWithValues
) -> None:
    click(find(panel, "runs.chip.failed", QToolButton))
    program.workbench.select(run_id(3))
    program.window.action("run.resubmit").trigger()
    pump(lambda: fake.asked, "the submission")
    finish_calls(program.bridge)
    new = program.workbench.selection
    assert new is not None
    assert panel._model.row_of(new) is not None
    assert panel._selected_rows() == [panel._model.row_of(new)]
    assert "outside of the filter" in find(panel, "runs.count", QLabel).text()


def test_the_list_stays_where_it_was_when_the_trainer_comes_back(
    program: Application, panel: RunsPanel, fake: TrainerWithValues
) -> None:
    views = [view(number) for number in range(100, 200)]
    program.bridge.runs_listed.emit(views)
    program.workbench.select(run_id(199))
    settle()
    bar = panel.table.verticalScrollBar()
    bar.setValue(bar.maximum() // 2)
    before = bar.value()
    assert before > 0
    program.bridge.runs_listed.emit(views)
    settle()
    assert bar.value() == before


# --- names


def test_a_run_is_renamed_in_the_list(program: Application, panel: RunsPanel, fake: TrainerWithValues) -> None:
    program.workbench.select(run_id(4))
    program.window.action("run.rename").trigger()
    editor = find(panel.table, "runs.name", QLineEdit)
    pump(editor.hasFocus, "the editor")
    for key in (Qt.Key.Key_A, Qt.Key.Key_Space, Qt.Key.Key_B):
        QTest.keyClick(program.window.windowHandle(), key)
    editor.insert(" größer")
    press(editor, Qt.Key.Key_Return)
    pump(lambda: program.workbench.runs.get_or_placeholder(run_id(4)).run_name == "a b größer", "the new name")
    assert fake.asked == [("rename", run_id(4), "a b größer")]
    row = panel._model.row_of(run_id(4))
    assert row is not None
    assert panel._model.index(row, panel._model.column_ids.index("name")).data() == "a b größer"


def test_a_run_that_is_not_listed_appears_to_be_renamed(program: Application, panel: RunsPanel) -> None:
    program.workbench.select(run_id(6))  # archived
    program.window.action("run.rename").trigger()
    assert panel._model.row_of(run_id(6)) is not None
    editor = find(panel.table, "runs.name", QLineEdit)
    press(editor, Qt.Key.Key_Escape)
    finish_calls(program.bridge)
    assert program.workbench.runs.get_or_placeholder(run_id(6)).run_name is None


# --- ticks


def test_a_click_on_the_box_ticks_a_run_and_does_not_select_it(program: Application, panel: RunsPanel) -> None:
    select_group(panel, "old")
    row = panel._model.row_of(run_id(7))
    assert row is not None
    click(panel.table.viewport(), mark_place(panel, row, 14))
    assert program.workbench.ticks.ids == [run_id(7)]
    assert program.workbench.marked_groups == ["old"]
    click(panel.table.viewport(), mark_place(panel, 0, 14))  # the group
    assert program.workbench.ticks.ids == [run_id(number) for number in (7, 3, 4, 5)]
    assert "4 ticked" in find(panel, "runs.count", QLabel).text()
    click(panel.table.viewport(), mark_place(panel, 0, 14))
    assert program.workbench.ticks.ids == [run_id(7)]
    assert program.settings.get_for_workspace("ticked") == [run_id(7)]


def test_a_key_ticks_the_selected_runs(program: Application, panel: RunsPanel) -> None:
    select_group(panel, "seeds")
    QTest.keyClick(program.window.windowHandle(), Qt.Key.Key_T)
    assert set(program.workbench.ticks.ids) == {run_id(number) for number in (3, 4, 5)}


def test_more_ticks_than_colors_are_refused_with_a_message(program: Application, panel: RunsPanel) -> None:
    messages: list[str] = []
    program.workbench.message_posted.connect(lambda text, _: messages.append(text))
    group = [run_id(number) for number in range(20)]
    program.workbench.toggle_ticks(group)
    assert len(program.workbench.ticks.ids) == 15
    assert "5 of these were not ticked" in messages[0]
    program.workbench.toggle_ticks(group)
    assert program.workbench.ticks.ids == [], "the box of a group that is too large unticks it, too"


# --- hyper-parameters and metrics


def test_columns_of_hyper_parameters_and_metrics_are_chosen_and_remembered(
    program: Application, panel: RunsPanel, fake: TrainerWithValues
) -> None:
    panel.table.column_choice_requested.emit()
    dialog = find(program.window, "columns", ColumnsDialog)
    tree = find(dialog, "columns.tree", QTreeWidget)
    pump(lambda: LOSS in dialog._items and LEARNING_RATE in dialog._items, "the names")
    type_text(find(dialog, "columns.search", QLineEdit), "learning_rate")
    shown = [name for name, item in dialog._items.items() if not item.isHidden()]
    assert shown == [LEARNING_RATE]
    for name in (LEARNING_RATE, LOSS):
        dialog._items[name].setCheckState(0, Qt.CheckState.Checked)
    assert tree.topLevelItemCount() == 2
    click(find(dialog, "columns.done", QPushButton))
    ids = panel._model.column_ids
    assert ids[2:5] == ["seed", LEARNING_RATE, LOSS]
    row = panel._model.row_of(run_id(7))
    assert row is not None
    pump(lambda: panel._model.index(row, ids.index(LOSS)).data() == "7", "the last value of the metric")
    assert panel._model.index(row, ids.index(LEARNING_RATE)).data() == "0.00025"  # the algorithm's default
    assert program.settings.get_for_workspace("runs.values") == [LEARNING_RATE, LOSS]


def test_a_run_whose_config_cannot_be_read_has_no_value(
    program: Application, panel: RunsPanel, fake: TrainerWithValues
) -> None:
    panel.show_value_columns([LEARNING_RATE])
    program.workbench.select(run_id(2))
    pump(lambda: run_id(2) in fake.read, "the attempt")
    finish_calls(program.bridge)
    row = panel._model.row_of(run_id(2))
    assert row is not None
    assert panel._model.index(row, panel._model.column_ids.index(LEARNING_RATE)).data() == "–"


def test_values_are_read_for_the_visible_rows_only(
    program: Application, panel: RunsPanel, fake: TrainerWithValues
) -> None:
    views = [view(number) for number in range(100, 400)]
    fake.views |= {one.run_id: one for one in views}
    program.bridge.runs_listed.emit(views)
    panel.show_value_columns([LEARNING_RATE])
    pump(lambda: panel.table.visible_run_ids()[-1] in fake.read, "the visible rows")
    finish_calls(program.bridge)
    assert len(set(fake.read)) < 2 * MAX_RUNS_PER_CALL
    panel.table.scrollToBottom()
    pump(lambda: run_id(100) in fake.read, "the last row")


def test_sorting_by_a_metric_reads_it_for_all_runs(
    program: Application, panel: RunsPanel, fake: TrainerWithValues
) -> None:
    views = [view(number) for number in range(100, 300)]
    fake.views |= {one.run_id: one for one in views}
    program.bridge.runs_listed.emit(views)
    panel.show_value_columns([LOSS])
    header = panel.table.horizontalHeader()
    header.setSortIndicator(panel._model.column_ids.index(LOSS), Qt.SortOrder.AscendingOrder)
    wanted = list(range(100, 300))
    pump(lambda: [row for row in rows(panel) if row in wanted] == wanted, "all rows to be in order")
