"""The Analytics tab and the compare page on a real daemon: curves that grow, groups that form, sets that are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtWidgets import (
    QApplication,
    QCheckBox,
    QComboBox,
    QFileDialog,
    QLabel,
    QLineEdit,
    QTableWidget,
    QToolButton,
    QWidget,
)
from tests.helpers.daemons import LiveDaemon, ended, scripted
from tests.helpers.gui import click, find, has, pump, settle, type_text

from mosaic.base.run_payloads import build_train_payload
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.names import RETURN_TAG
from mosaic.features.experiments.window_compare import ComparePage
from mosaic.features.runs.window_analytics import AnalyticsTab, ChartGrid
from mosaic.features.runs.window_page import OverviewTab
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import theme
from mosaic.window.app import Application
from mosaic.window.bridge import Bridge
from mosaic.window.chart import Chart
from mosaic.window.curves import load_earlier_samples
from mosaic.window.settings import GuiSettings
from mosaic.window.workbench import Workbench


@pytest.fixture
def workbench(qapp: QApplication, daemon: LiveDaemon, workspace: Workspace, settings_path: Path) -> Iterator[Workbench]:
    """Connected, without a window."""
    bridge = Bridge(workspace)
    workbench = Workbench(workspace, bridge, GuiSettings(workspace, settings_path))
    bridge.start()
    pump(lambda: workbench.status, "the trainer")
    yield workbench
    bridge.stop()
    workbench.deleteLater()
    bridge.deleteLater()
    settle()


@pytest.fixture
def shown(qapp: QApplication) -> Iterator[Callable[[QWidget], QWidget]]:
    """Shows a panel by itself, and takes it away afterwards."""
    panels: list[QWidget] = []

    def show(panel: QWidget) -> QWidget:
        panels.append(panel)
        panel.resize(1000, 640)
        panel.show()
        return panel

    yield show
    for panel in panels:
        panel.close()
        panel.deleteLater()
    settle()


def finished_run(trainer: TrainerClient, workbench: Workbench, **config: object) -> str:
    run_id: str = trainer.submit(scripted(**config)).run_id
    ended(trainer, run_id)
    pump(lambda: workbench.runs.get_or_placeholder(run_id).stage == "finished", "the window to hear of the end")
    return run_id


def lengths(panel: QWidget, tag: str) -> int:
    name = f"analytics.chart.{tag}"
    return len(find(panel, name, Chart).curves()["run"]) if has(panel, name) else 0


def test_all_tags_of_a_run_are_drawn_in_groups(
    trainer: TrainerClient, workbench: Workbench, shown: Callable[[QWidget], QWidget]
) -> None:
    run_id = finished_run(trainer, workbench, steps=20, dt=0.05)
    panel = AnalyticsTab(workbench)
    shown(panel).resize(1000, 900)
    panel.show_run(run_id)
    pump(lambda: lengths(panel, RETURN_TAG) == 20, "the curve of the return")
    pump(lambda: lengths(panel, "scripted/step") == 20, "the curve of the other tag")
    assert find(panel, "analytics.group.charts", QToolButton).text() == "charts"
    assert find(panel, "analytics.group.scripted", QToolButton).isChecked()
    pump(lambda: lengths(panel, "hardware/CPU %"), "the hardware")


@pytest.mark.parametrize("steps", [1, 60])
def test_earlier_samples_are_read_to_their_end_whichever_there_are(trainer: TrainerClient, steps: int) -> None:
    """A short run has none, and a line that was damaged is not in the index: nothing that is awaited may be missing."""
    view = ended(trainer, trainer.submit(scripted(steps=steps, dt=0.02)).run_id)
    lines = [json.loads(line) for line in RunFolder(view.run_dir).keeper.read_text(encoding="utf-8").splitlines()]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(load_earlier_samples, view.run_id, trainer)
        try:
            samples = reading.result(timeout=60)
        finally:
            trainer.close()  # ends a reading that would not
    assert [sample.seq for sample in samples] == [line["seq"] for line in lines if line["kind"] == "sample"]
    assert bool(samples) == (steps > 1)


def test_curves_grow_while_the_run_is_active(
    trainer: TrainerClient, workbench: Workbench, shown: Callable[[QWidget], QWidget]
) -> None:
    run_id = trainer.submit(scripted(steps=100_000, dt=0.02)).run_id
    pump(lambda: workbench.runs.get(run_id), "the run")
    panel = AnalyticsTab(workbench)
    shown(panel)
    panel.show_run(run_id)
    pump(lambda: lengths(panel, RETURN_TAG) > 2, "some points")
    before = lengths(panel, RETURN_TAG)
    pump(lambda: lengths(panel, RETURN_TAG) > before + 5, "more points")
    trainer.cancel_run(run_id)
    ended(trainer, run_id)


def test_a_run_without_points_shows_why(
    trainer: TrainerClient, workbench: Workbench, shown: Callable[[QWidget], QWidget]
) -> None:
    run_id = finished_run(trainer, workbench, reject="No.")
    panel = AnalyticsTab(workbench)
    shown(panel)
    panel.show_run(run_id)

    def says() -> bool:
        return any("was rejected before it logged anything" in label.text() for label in panel.findChildren(QLabel))

    pump(says, "the empty page")


def test_tags_are_filtered_folded_and_read_by_another_axis(
    trainer: TrainerClient, workbench: Workbench, shown: Callable[[QWidget], QWidget]
) -> None:
    run_id = finished_run(trainer, workbench, steps=5)
    panel = AnalyticsTab(workbench)
    shown(panel)
    panel.show_run(run_id)
    pump(lambda: lengths(panel, "scripted/step") == 5, "the curves")
    chart = find(panel, "analytics.chart.scripted/step", Chart)
    type_text(find(panel, "analytics.filter", QLineEdit), "episodic ret")
    assert not chart.isVisible()
    assert find(panel, f"analytics.chart.{RETURN_TAG}", Chart).isVisible()
    type_text(find(panel, "analytics.filter", QLineEdit), "")
    click(find(panel, "analytics.group.scripted"))
    assert not chart.isVisible()
    click(find(panel, "analytics.group.scripted"))
    axis = find(panel, "analytics.x", QComboBox)
    axis.setCurrentIndex(axis.findData("relative"))
    pump(lambda: chart.x_kind == "relative", "the other axis")
    assert chart.curves()["run"].x[-1] < 60
    find(panel, "analytics.log", QCheckBox).click()
    assert chart.is_log


def test_a_chart_is_created_when_it_becomes_visible(
    trainer: TrainerClient, workbench: Workbench, shown: Callable[[QWidget], QWidget]
) -> None:
    run_id = finished_run(trainer, workbench, steps=3)
    panel = AnalyticsTab(workbench)
    shown(panel).resize(360, 300)
    panel.show_run(run_id)
    pump(lambda: lengths(panel, RETURN_TAG) == 3, "the first chart")
    settle()
    assert not has(panel, "analytics.chart.scripted/step")
    # To its heading: how far down the page goes depends on whether the hardware, which is last, is known yet.
    find(panel, "analytics.grid", ChartGrid).ensureWidgetVisible(find(panel, "analytics.group.scripted"), 0, 150)
    pump(lambda: has(panel, "analytics.chart.scripted/step"), "the chart that was scrolled to")


def test_all_points_are_written_to_a_table(
    trainer: TrainerClient, workbench: Workbench, shown: Callable[[QWidget], QWidget], tmp_path: Path
) -> None:
    run_id = finished_run(trainer, workbench, steps=3)
    panel = workbench.window = AnalyticsTab(workbench)
    panel.show_run(run_id)
    shown(panel)
    workbench.settings.put("export.folder", str(tmp_path))
    click(find(panel, "analytics.export"))
    dialog = find(panel, "export.file", QFileDialog)
    table = Path(dialog.selectedFiles()[0])
    assert table.parent == tmp_path
    dialog.accept()
    pump(table.exists, "the table")
    assert len(table.read_text(encoding="utf-8").splitlines()) == 10


def test_the_overview_draws_the_return(
    trainer: TrainerClient, workbench: Workbench, shown: Callable[[QWidget], QWidget]
) -> None:
    run_id = finished_run(trainer, workbench, steps=7)
    panel = OverviewTab(workbench)
    shown(panel)
    panel.show_run(run_id)
    chart = find(panel, "overview.chart", Chart)
    pump(lambda: len(chart.curves()["run"]) == 7, "the curve")
    assert not find(panel, "overview.frames").isVisible()


def test_the_overview_draws_evaluations_during_training_with_the_return(
    trainer: TrainerClient, workbench: Workbench, shown: Callable[[QWidget], QWidget]
) -> None:
    settings = {"env_id": "CartPole-v1", "total_timesteps": 1024, "eval_every": 512, "num_eval_episodes": 2}
    evaluated = ended(trainer, trainer.submit(build_train_payload("cleanrl", "ppo", settings, {})).run_id).run_id
    plain = finished_run(trainer, workbench, steps=7)
    pump(lambda: workbench.runs.get_or_placeholder(evaluated).stage == "finished", "the run")
    panel = OverviewTab(workbench)
    shown(panel)
    panel.show_run(evaluated)
    chart = find(panel, "overview.chart", Chart)
    pump(lambda: len(chart.curves().get("evaluation", ())) == 2, "the curve of the evaluations")
    assert list(chart.curves()["evaluation"].x) == [512, 1024]
    chart.redraw()
    assert "evaluation" in find(panel, "overview.chart.values", QLabel).text()
    panel.show_run(plain)
    assert chart.curves().keys() == {"run"}


@pytest.mark.parametrize(("diverges_at", "mean"), [(3, "1.5"), (1, "–")])
def test_returns_that_are_not_finite_leave_a_gap_in_the_curve(
    trainer: TrainerClient,
    workbench: Workbench,
    shown: Callable[[QWidget], QWidget],
    diverges_at: int,
    mean: str,
) -> None:
    run_id = finished_run(trainer, workbench, steps=4, diverges_at=diverges_at)
    panel = OverviewTab(workbench)
    shown(panel)
    panel.show_run(run_id)
    chart = find(panel, "overview.chart", Chart)
    pump(lambda: len(chart.curves()["run"]) == 4, "the curve")
    expected = [step if step < diverges_at else np.nan for step in range(1, 5)]
    np.testing.assert_array_equal(chart.curves()["run"].y, expected)
    chart.redraw()
    assert find(panel, "overview.return", QLabel).text() == mean


def test_marked_runs_are_compared_grouped_and_kept(trainer: TrainerClient, program: Application) -> None:
    """R7.7: compare runs."""
    window, workbench = program.window, program.workbench
    program.start()
    pump(lambda: workbench.status, "the trainer")
    runs = [
        finished_run(trainer, workbench, steps=steps, seed=seed, rate=steps) for steps in (10, 20) for seed in (1, 2)
    ]
    workbench.mark(runs)
    pump(window.action("run.compare").isEnabled, "the action")
    window.action("run.compare").trigger()
    assert window.current_page == "compare"
    page = window.findChild(ComparePage)
    assert page is not None
    assert page.run_ids() == runs
    key = find(page, "compare.key", QComboBox)
    pump(lambda: key.findData("rate") >= 0, "the settings of the runs")
    key.setCurrentIndex(key.findData("rate"))
    results = find(page, "compare.results", QTableWidget)
    pump(lambda: results.rowCount() == 2, "two groups")
    cells = [[item.text() for column in range(3) if (item := results.item(row, column))] for row in range(2)]
    assert cells == [["20", "2", "10.5"], ["10", "2", "5.5"]]
    better = find(page, "compare.better", QTableWidget)
    assert better.rowCount() == 2
    assert list(find(page, "compare.chart", Chart).curves()) == ["20", "10"]
    differing = find(page, "compare.settings", QTableWidget)
    names = [item.text() for row in range(differing.rowCount()) if (item := differing.item(row, 0))]
    assert {"rate", "seed", "steps"} <= {name.rpartition(".")[2] for name in names}
    click(find(page, f"chip.{runs[0]}.remove"))
    assert page.run_ids() == runs[1:]
    assert program.settings.get_for_workspace("compare") == runs[1:]


def test_an_empty_compare_page_explains_how_to_add_runs(program: Application) -> None:
    program.window.show()
    program.workbench.page_requested.emit("compare")
    assert find(program.window, "compare.start").isVisible()
    assert not find(program.window, "compare.start").isEnabled()


def test_ticked_runs_are_drawn_in_the_same_charts_with_colors_of_their_own(
    trainer: TrainerClient, workbench: Workbench, shown: Callable[[QWidget], QWidget]
) -> None:
    first, second = (finished_run(trainer, workbench, steps=steps, dt=0.01) for steps in (20, 10))
    panel = AnalyticsTab(workbench)
    shown(panel).resize(1000, 900)
    panel.show_run(first)
    pump(lambda: lengths(panel, RETURN_TAG) == 20, "the curve of the run")
    chart = find(panel, f"analytics.chart.{RETURN_TAG}", Chart)
    workbench.ticks.toggle([first, second])
    pump(lambda: len(chart.curves().get(second, ())) == 10, "the curve of the ticked run")
    assert set(chart.curves()) == {"run", second}
    assert theme.run_color(first) != theme.run_color(second)
    assert {label.text() for label in find(panel, "analytics.runs").findChildren(QLabel)} == {first[-6:], second[-6:]}
    click(find(panel, f"chip.{second}.remove", QToolButton))
    pump(lambda: set(chart.curves()) == {"run"}, "the curve to go")
    assert workbench.ticks.ids == [first]
    workbench.ticks.toggle([second])
    pump(lambda: len(chart.curves().get(second, ())) == 10, "the curve again")
    panel.show_run(second)
    pump(lambda: len(chart.curves()["run"]) == 10 and set(chart.curves()) == {"run", first}, "the other run's page")
