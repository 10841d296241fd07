"""The runs as a table: sorted, searched, and changed row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPersistentModelIndex, Qt
from PySide6.QtTest import QAbstractItemModelTester, QSignalSpy
from tests.helpers.gui_runs import run_id, running, view

from mosaic.contracts.folder import Workspace
from mosaic.features.runs.window_order import COLUMN_IDS
from mosaic.features.runs.window_table import MAX_SINGLE_MOVES, RunsTableModel
from mosaic.window.bridge import Bridge
from mosaic.window.palette import parse_query
from mosaic.window.runs import RunsModel

DOWN, UP = Qt.SortOrder.DescendingOrder, Qt.SortOrder.AscendingOrder


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[Bridge]:
    made = Bridge(Workspace(tmp_path))
    yield made
    made.stop()


@pytest.fixture
def runs(bridge: Bridge) -> RunsModel:
    return RunsModel(bridge)


@pytest.fixture
def table(runs: RunsModel) -> RunsTableModel:
    made = RunsTableModel(runs)
    QAbstractItemModelTester(made, QAbstractItemModelTester.FailureReportingMode.Fatal, made)
    return made


def shown(table: RunsTableModel) -> list[int]:
    return [int(table.run_id(row)[-5:]) for row in range(table.rowCount())]


def text(table: RunsTableModel, row: int, column: str) -> Any:
    return table.index(row, COLUMN_IDS.index(column)).data()


def test_the_newest_run_is_first(runs: RunsModel, table: RunsTableModel) -> None:
    runs.update([view(2), view(3), view(1)])
    assert shown(table) == [3, 2, 1]


def test_every_column_sorts_both_ways_with_missing_values_last(runs: RunsModel, table: RunsTableModel) -> None:
    runs.update([view(1, episodic_return=5.0), view(2, episodic_return=None), view(3, episodic_return=9.0)])
    column = COLUMN_IDS.index("return")
    table.sort(column, DOWN)
    assert shown(table) == [3, 1, 2]
    table.sort(column, UP)
    assert shown(table) == [1, 3, 2]
    for number in range(table.columnCount()):
        table.sort(number, DOWN)
        table.sort(number, UP)
        assert sorted(shown(table)) == [1, 2, 3]


def test_sorting_by_state_puts_runs_that_need_attention_first(runs: RunsModel, table: RunsTableModel) -> None:
    runs.update([view(1), running(2), view(3, outcome="failed"), running(4, is_stalled=True)])
    table.sort(COLUMN_IDS.index("state"), UP)
    assert shown(table) == [2, 4, 3, 1]


def test_a_poll_changes_cells_and_moves_no_row(runs: RunsModel, table: RunsTableModel) -> None:
    runs.update([running(1), view(2), view(3)])
    resets, moves, changes = QSignalSpy(table.modelReset), QSignalSpy(table.rowsMoved), QSignalSpy(table.dataChanged)
    runs.update([running(1, global_step=200), view(2), view(3)])
    assert (resets.count(), moves.count(), changes.count()) == (0, 0, 1)
    assert text(table, 0, "progress") == "20%"


def test_a_row_whose_value_passes_another_moves_alone(runs: RunsModel, table: RunsTableModel) -> None:
    runs.update([running(number, episodic_return=float(number)) for number in (1, 2, 3)])
    table.sort(COLUMN_IDS.index("return"), DOWN)
    kept = QPersistentModelIndex(table.index(2, 0))
    moves = QSignalSpy(table.rowsMoved)
    runs.update([running(1, episodic_return=99.0)])
    assert shown(table) == [1, 3, 2]
    assert moves.count() == 1
    assert kept.row() == 0
    runs.update([running(1, episodic_return=2.5)])
    assert shown(table) == [3, 1, 2]


def test_sorting_many_changed_rows_keeps_the_selection(runs: RunsModel) -> None:
    table = RunsTableModel(runs)  # without the tester, which looks at every row after every row
    many = 3 * MAX_SINGLE_MOVES
    runs.update([running(number, sps=float(number)) for number in range(many)])
    table.sort(COLUMN_IDS.index("sps"), UP)
    kept = QPersistentModelIndex(table.index(0, 0))
    resets = QSignalSpy(table.modelReset)
    runs.update([running(number, sps=float(-number)) for number in range(many)])
    assert shown(table) == list(reversed(range(many)))
    assert table.run_id(kept.row()) == run_id(0)
    assert resets.count() == 0


def test_a_search_follows_changes_of_runs(runs: RunsModel, table: RunsTableModel) -> None:
    runs.update([running(1), view(2), running(3)])
    table.set_query(parse_query("status:running"), False)
    assert shown(table) == [3, 1]
    runs.update([view(3)])
    assert shown(table) == [1]
    runs.update([running(4)])
    assert shown(table) == [4, 1]


def test_archived_runs_are_shown_on_demand(runs: RunsModel, table: RunsTableModel) -> None:
    runs.update([view(1), view(2, is_archived=True)])
    assert shown(table) == [1]
    table.set_query(parse_query(""), True)
    assert shown(table) == [2, 1]


def test_a_run_that_is_removed_leaves_the_table(runs: RunsModel, table: RunsTableModel) -> None:
    runs.update([view(1), view(2), view(3)])
    runs.remove({run_id(2)})
    assert shown(table) == [3, 1]
    assert table.row_of(run_id(2)) is None
    assert table.row_of(run_id(1)) == 1


def test_changes_of_the_current_row_by_qt_are_not_taken_for_the_users(runs: RunsModel, table: RunsTableModel) -> None:
    runs.update([view(1), view(2)])
    seen: list[bool] = []
    table.rowsRemoved.connect(lambda *_: seen.append(table.is_updating))
    runs.remove({run_id(2)})
    assert seen == [True]
    assert not table.is_updating


def test_cells_are_formatted_for_people(runs: RunsModel, table: RunsTableModel) -> None:
    runs.update([running(1, sps=50_700.0, seconds_left=192.0, tags=["a", "b"], kind="policy_eval", seed=None)])
    said = {column: text(table, 0, column) for column in COLUMN_IDS if column != "age"}
    assert said == {
        "state": "running",
        "name": "ppo (eval) · CartPole-v1",
        "group": "–",
        "env": "CartPole-v1",
        "algo": "ppo (eval)",
        "progress": "10%",
        "return": "1",
        "seed": "–",
        "left": "3m 12s",
        "sps": "50.7k",
        "user": "–",
        "tags": "a, b",
    }
