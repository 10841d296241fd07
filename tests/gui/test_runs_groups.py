"""The rows of groups in the list of runs: folded and unfolded, summarized, and kept in order while runs change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPersistentModelIndex, Qt
from PySide6.QtTest import QAbstractItemModelTester, QSignalSpy
from tests.helpers.gui_runs import run_id, running, view

from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import RunView
from mosaic.features.runs.window_order import COLUMN_IDS
from mosaic.features.runs.window_table import DEFAULT_ORDER, RunsTableModel, summarize_group
from mosaic.window.bridge import Bridge
from mosaic.window.palette import Query, parse_query
from mosaic.window.runs import RunsModel

DOWN = Qt.SortOrder.DescendingOrder


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[RunsModel]:
    bridge = Bridge(Workspace(tmp_path))
    yield RunsModel(bridge)
    bridge.stop()


@pytest.fixture
def table(runs: RunsModel) -> RunsTableModel:
    """Two groups and two runs without one; the group `b` is unfolded."""
    runs.update(
        [
            view(1, group="a", seed=1, episodic_return=10.0),
            view(2, group="a", seed=2, episodic_return=30.0, outcome="failed"),
            view(3),
            view(4, group="b"),
            view(5, group="b"),
            view(6),
        ]
    )
    made = RunsTableModel(runs)
    made.set_folding(True, ["b"])
    QAbstractItemModelTester(made, QAbstractItemModelTester.FailureReportingMode.Fatal, made)
    return made


def resumed(number: int, **fields: Any) -> RunView:
    """A run that has ended and runs again: with a history, since polls that are late have none."""
    return running(number, history=[{"at": 1.0, "stage": "running", "message": "It resumed."}], **fields)


def rows(table: RunsTableModel) -> list[int | str]:
    """The numbers of runs, and the names of groups."""
    return [table.group_at(row) or int(table.run_id(row)[-5:]) for row in range(table.rowCount())]


def test_a_group_is_where_its_first_run_would_be_and_its_runs_follow_it(table: RunsTableModel) -> None:
    assert rows(table) == [6, "b", 5, 4, 3, "a"]
    assert table.runs_at(5) == [run_id(1), run_id(2)]
    assert table.row_of(run_id(1)) is None
    assert table.is_listed(run_id(1))


def test_unfolding_and_folding_inserts_and_removes_the_runs_at_once(table: RunsTableModel) -> None:
    inserted, removed = QSignalSpy(table.rowsInserted), QSignalSpy(table.rowsRemoved)
    table.set_expanded("a", True)
    assert rows(table) == [6, "b", 5, 4, 3, "a", 2, 1]
    table.set_expanded("b", False)
    assert rows(table) == [6, "b", 3, "a", 2, 1]
    assert (inserted.count(), removed.count()) == (1, 1)
    assert table.expanded_groups == {"a"}


def test_the_row_of_a_group_summarizes_its_runs(runs: RunsModel, table: RunsTableModel) -> None:
    summary = table.summary(5)
    assert summary is not None
    assert summary.line == "1 of 2 done, 1 failed"
    assert (summary.text("return"), summary.state) == ("20", "failed")
    runs.update([view(2, group="a", episodic_return=50.0)])
    changed = table.summary(5)
    assert changed is not None
    assert (changed.line, changed.text("return")) == ("2 of 2 done", "30")


def test_runs_without_a_step_count_as_not_begun_in_the_progress_of_a_group() -> None:
    waiting = [running(number, stage="queued", global_step=None) for number in (2, 3, 4)]
    assert summarize_group("g", [view(1), *waiting]).text("progress") == "25%"
    assert summarize_group("g", waiting).text("progress") == "–"


def test_runs_on_different_environments_have_no_mean_return() -> None:
    summary = summarize_group("g", [view(1, env_id="Acrobot-v1"), view(2)])
    assert (summary.mean_return, summary.text("return")) == (None, "")
    assert "different environments" in summary.tooltip


def test_what_runs_is_first_then_what_waits_then_the_newest(runs: RunsModel, table: RunsTableModel) -> None:
    runs.update([resumed(1, group="a"), resumed(3, stage="queued"), running(7, stage="queued")])
    assert rows(table) == ["a", 7, 3, 6, "b", 5, 4]
    runs.update([view(1, group="a")])
    assert rows(table) == [7, 3, 6, "b", 5, 4, "a"]


def test_a_group_moves_with_its_runs_when_one_of_them_passes_others(runs: RunsModel, table: RunsTableModel) -> None:
    table.set_expanded("a", True)
    kept = QPersistentModelIndex(table.index(6, 0))
    assert table.run_id(kept.row()) == run_id(2)
    runs.update([resumed(1, group="a")])
    assert rows(table) == ["a", 1, 2, 6, "b", 5, 4, 3]
    assert table.run_id(kept.row()) == run_id(2)


def test_sorting_by_a_column_sorts_groups_by_their_first_run(table: RunsTableModel) -> None:
    table.sort(COLUMN_IDS.index("return"), DOWN)
    assert rows(table) == ["a", 6, "b", 5, 4, 3]
    table.sort(DEFAULT_ORDER)
    assert rows(table) == [6, "b", 5, 4, 3, "a"]


def test_a_run_that_leaves_the_last_place_of_its_group_takes_the_group_with_it(
    runs: RunsModel, table: RunsTableModel
) -> None:
    runs.remove({run_id(4)})
    assert rows(table) == [6, "b", 5, 3, "a"]
    runs.remove({run_id(5), run_id(1)})
    assert rows(table) == [6, 3, "a"]
    runs.update([view(8, group="b")])
    assert rows(table) == ["b", 8, 6, 3, "a"]


def test_a_search_leaves_the_runs_of_a_group_that_match(table: RunsTableModel) -> None:
    table.set_query(parse_query("seed:2"), False)
    assert rows(table) == ["a"]
    assert table.runs_at(0) == [run_id(2)]


def test_a_pinned_run_is_shown_until_the_search_changes(runs: RunsModel, table: RunsTableModel) -> None:
    table.set_query(parse_query("status:failed"), False)
    runs.update([running(7, stage="queued"), running(8, stage="queued", group="b")])
    table.pin([run_id(7), run_id(8)])
    assert rows(table) == ["b", 8, 7, "a"]
    assert table.hidden_matches == 2
    table.set_query(Query(), False)
    table.set_query(parse_query("status:failed"), False)
    assert rows(table) == ["a"]


def test_without_folding_there_are_no_groups(table: RunsTableModel) -> None:
    table.set_folding(False, [])
    assert rows(table) == [6, 5, 4, 3, 2, 1]
