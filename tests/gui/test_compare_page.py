"""The compare page with many and with unfinished runs, on a trainer that answers from memory."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import Any

import numpy as np
import pytest
from PySide6.QtWidgets import QCheckBox, QLabel, QSplitter
from tests.helpers.gui import click, find, pump, settle
from tests.helpers.gui_runs import FakeTrainer, run_id, running, start_with, view

from mosaic.contracts.names import RETURN_TAG
from mosaic.contracts.views import MetricsCursor, MetricSeries, RunView
from mosaic.features.experiments import window_compare as compare_panel
from mosaic.features.experiments.window_charts import OTHERS
from mosaic.features.experiments.window_compare import ComparePage
from mosaic.features.experiments.window_model import ComparedRuns, ComparisonChoice, RunSnapshot, compare_snapshots
from mosaic.trainer.client.trainer_client import MetricsUpdate
from mosaic.window.app import Application
from mosaic.window.chart import Chart
from mosaic.window.tables import MAX_DISTINCT, MIN_ROWS, RowsTable

TOTAL = 1000


class CurvesTrainer(FakeTrainer):
    """Every run returns its number from its first step to its last, every ten steps."""

    def config(self, run: str) -> dict[str, Any]:
        view = self.views[run]
        config = {"algo": view.algo, "env_id": view.env_id, "seed": view.seed}
        return {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}

    def metrics_after(self, run: str, cursor: MetricsCursor, tags: Sequence[str] = ()) -> MetricsUpdate:
        steps = range(10, 1 + (self.views[run].global_step or 0), 10)
        series = MetricSeries(RETURN_TAG, steps, [float(step) for step in steps], [float(run[-4:])] * len(steps))
        is_first = cursor.generation != 1
        return MetricsUpdate(MetricsCursor(1, 0), is_first, [series] if is_first else [])


def finished(number: int, **fields: object) -> RunView:
    return view(number, total_timesteps=TOTAL, global_step=TOTAL, **fields)


def compare_runs(program: Application, runs: list[RunView]) -> ComparePage:
    start_with(program, CurvesTrainer(runs))
    program.window.resize(1366, 768)
    program.window.show()
    program.workbench.comparison_requested.emit([run.run_id for run in runs])
    page = program.window.findChild(ComparePage)
    assert page is not None
    pump(lambda: page._compared is not None and all(len(one.x) for one in page._compared.entries), "all points")
    pump(lambda: len(page._settings) == len(runs), "all settings")
    settle()
    return page


def notice(page: ComparePage) -> str:
    return find(page, "compare.notice", QLabel).text()


def test_all_of_72_runs_are_compared_by_group_and_each_of_them_on_demand(program: Application) -> None:
    """R7.7: compare runs."""
    runs = [finished(number, seed=number, algo=("ppo", "dqn", "a2c")[number % 3]) for number in range(1, 73)]
    page = compare_runs(program, runs)
    assert find(page, "compare.count", QLabel).text() == "72 runs"
    table, chart = find(page, "compare.results", RowsTable), find(page, "compare.chart", Chart)
    assert [line.split("\t")[:2] for line in table.to_tsv().splitlines()[1:]] == [
        ["ppo", "24"],
        ["a2c", "24"],
        ["dqn", "24"],
    ]
    assert set(chart.curves()) == {"ppo", "a2c", "dqn"}
    click(find(page, "compare.run_lines", QCheckBox))
    pump(lambda: len(chart.curves()["ppo"].lines[0]), "the lines of the runs")
    heights = {round(value, 6) for value in chart.curves()["ppo"].lines[1].tolist() if np.isfinite(value)}
    assert heights == {float(number) for number in range(3, 73, 3)}
    page.key.setCurrentIndex(page.key.findData(""))
    pump(lambda: table.rowCount() == 72, "a row for each run")
    assert list(chart.curves())[-1] == OTHERS
    assert len(chart.curves()) == MAX_DISTINCT + 1
    assert f"The best {MAX_DISTINCT} of 72 runs have colors; the table has all." in notice(page)
    table.selectRow(71)
    table.actions()[0].trigger()
    pump(lambda: table.rowCount() == 71, "the run to leave the comparison")
    assert run_id(1) not in page.run_ids()


def test_a_comparison_that_began_before_all_points_were_there_says_so(
    program: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, have_points = Event(), Event()

    class LateTrainer(CurvesTrainer):
        def metrics_after(self, run: str, cursor: MetricsCursor, tags: Sequence[str] = ()) -> MetricsUpdate:
            has_begun.wait()
            return super().metrics_after(run, cursor, tags)

    def compare_late(snapshots: list[RunSnapshot], choice: ComparisonChoice) -> ComparedRuns:
        has_begun.set()
        have_points.wait()
        return compare_snapshots(snapshots, choice)

    monkeypatch.setattr(compare_panel, "compare_snapshots", compare_late)
    start_with(program, LateTrainer([finished(1), finished(2)]))
    program.window.show()
    page = program.window.findChild(ComparePage)
    assert page is not None
    texts: list[str] = []
    monkeypatch.setattr(page.notice, "show_text", texts.append)
    program.workbench.comparison_requested.emit([run_id(1), run_id(2)])
    pump(lambda: all(series.is_loaded for series in page._series.values()), "the points")
    have_points.set()
    pump(lambda: len(texts) == 2, "both comparisons")
    assert texts[0] == "The points of 0 of 2 runs are loaded."
    assert "are loaded" not in texts[1]


def test_single_runs_come_with_a_hint_about_several_seeds(program: Application) -> None:
    page = compare_runs(program, [finished(1, seed=1, algo="ppo"), finished(2, seed=1, algo="dqn")])
    assert "There is one run of each setting, so there are no intervals." in notice(page)
    page.show_runs([run_id(1)])
    pump(lambda: "intervals" not in notice(page), "one run, which is compared with nothing")


def test_runs_that_are_grouped_by_what_they_share_come_without_a_hint_about_seeds(program: Application) -> None:
    runs = [finished(1, seed=1, env_id="CartPole-v1"), finished(2, seed=1, env_id="Acrobot-v1")]
    page = compare_runs(program, runs)
    assert "There is one run of each setting" in notice(page)
    page.key.setCurrentIndex(page.key.findData("algo"))
    table = find(page, "compare.results", RowsTable)
    pump(lambda: table.to_tsv().splitlines()[1].startswith("ppo\t2"), "both runs in one group")
    assert "one run of each setting" not in notice(page)


def test_unfinished_runs_are_named_and_compared_at_the_common_step(program: Application) -> None:
    runs = [finished(1, seed=1), finished(2, seed=2), running(3, seed=3, total_timesteps=TOTAL, global_step=200)]
    page = compare_runs(program, runs)
    chart = find(page, "compare.chart", Chart)
    assert "1 of 3 runs is unfinished: seed 3 at 20 %." in notice(page)
    assert "ppo has all its runs up to step 20" in notice(page)
    assert "the dotted line is the mean of the runs that are left" in notice(page)
    [curve] = chart.curves().values()
    assert np.nanmax(curve.tail[0][np.isfinite(curve.tail[1])]) == TOTAL
    assert curve.last_point() == pytest.approx((200, 2, 2), abs=3)
    click(find(page, "compare.common_step", QCheckBox))
    pump(lambda: "Compared at step 200, which all runs have reached." in notice(page), "the common step")
    [curve] = chart.curves().values()
    assert (curve.x[-1], len(curve.tail[0])) == (200, 0)
    again = ComparePage(program.workbench)
    assert again.common_step.isChecked()
    again.deleteLater()


def test_the_results_have_room_for_six_rows_and_keep_the_place_of_the_splitter(program: Application) -> None:
    runs = [finished(number, seed=number) for number in range(1, 6)]
    page = compare_runs(program, [*runs, running(6, seed=6, total_timesteps=TOTAL, global_step=200)])
    table, split = find(page, "compare.results", RowsTable), find(page, "compare.split", QSplitter)
    assert table.viewport().height() >= MIN_ROWS * table.verticalHeader().defaultSectionSize()
    assert find(program.window, "page.area").verticalScrollBar().maximum() == 0  # type: ignore[attr-defined]
    program.window.resize(1366, 1000)
    settle()
    split.moveSplitter(split.sizes()[0] - 40, 1)
    again = ComparePage(program.workbench)
    again.resize(page.size())
    again.show_runs(page.run_ids())
    again.show()
    settle()
    assert find(again, "compare.split", QSplitter).sizes() == pytest.approx(split.sizes(), abs=8)
    again.close()
    again.deleteLater()


def test_a_new_comparison_without_replays_shows_the_curves(program: Application) -> None:
    page = compare_runs(program, [finished(1), finished(2)])
    page.tables.setCurrentWidget(page.replays)
    settle()
    assert not page.chart.isVisible()
    program.workbench.comparison_requested.emit([run_id(2), run_id(1)])
    settle()
    assert page.chart.isVisible()
    assert page.tables.currentIndex() == 0
