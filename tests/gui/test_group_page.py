"""The page of experiments: groups of runs with their progress, curves and results by setting, and what can be done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QFileDialog, QLabel, QPushButton, QTableWidget, QToolButton
from tests.helpers.daemons import ended, scripted
from tests.helpers.gui import click, find, press, pump
from tests.helpers.gui_runs import FakeTrainer, run_id, running, start_with, view

from mosaic.base.worker_registry import discover_workers
from mosaic.contracts.experiment_member import ExperimentMember
from mosaic.contracts.views import RunView
from mosaic.features.experiments.core_figures import FigureKind
from mosaic.features.experiments.window import ExperimentsPage, GroupPage
from mosaic.features.experiments.window_model import compare_group, group_state, label_runs, list_groups, setting_rows
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application
from mosaic.window.chart import Chart


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def member(setting: str, env: str, seed: int, attempt: int = 1) -> ExperimentMember:
    return ExperimentMember(
        key=digest(setting, env, seed),
        settings_key=digest(setting, env),
        attempt=attempt,
        setting=setting,
        environment=env,
    )


def cell(
    number: int, setting: str, env: str = "CartPole-v1", seed: int = 1, attempt: int = 1, **fields: Any
) -> RunView:
    about = {"group": "study", "env_id": env, "seed": seed, "experiment": member(setting, env, seed, attempt)}
    make = running if fields.get("stage") == "running" else view
    return make(number, **(about | fields))


# --- models


def test_a_later_attempt_replaces_the_run_that_failed() -> None:
    first = cell(1, "ppo", outcome="failed")
    runs = [first, cell(2, "dqn"), cell(3, "ppo", attempt=2, stage="running"), view(9, group="other")]
    state = group_state("study", runs)
    assert state.line == "1 of 2 done, 1 running"
    assert [one.run_id for one in state.superseded] == [first.run_id]
    assert state.retryable == []
    assert [one.name for one in list_groups(runs)] == ["other", "study"]


def test_a_group_whose_runs_are_all_archived_is_listed_on_request_only() -> None:
    runs = [cell(1, "ppo", is_archived=True)]
    assert list_groups(runs) == []
    assert [one.name for one in list_groups(runs, with_archived=True)] == ["study"]


def test_runs_of_no_experiment_are_labelled_by_what_separates_them() -> None:
    runs = [view(number, group="hand", seed=number) for number in (1, 2, 3, 4)]
    assert set(label_runs(runs, {one.run_id: {"algo": "ppo", "seed": one.seed} for one in runs}).values()) == {"ppo"}
    algos = dict(zip((one.run_id for one in runs), ("ppo", "ppo", "dqn", "dqn"), strict=True))
    labels = label_runs(runs, {each: {"algo": algo} for each, algo in algos.items()})
    assert labels == algos


def test_curves_and_scores_are_compared_by_setting_on_each_environment() -> None:
    runs = [
        cell(10 * at + seed, setting, env, seed)
        for at, (setting, env) in enumerate([("ppo", "A"), ("dqn", "A"), ("ppo", "B")])
        for seed in (1, 2)
    ]
    steps = np.arange(1.0, 51.0)
    points = {one.run_id: (steps, np.full(50, float(one.seed or 0))) for one in runs}
    labels = label_runs(runs, {})
    result = compare_group(runs, labels, points)
    assert result is not None
    assert {(env, group.name): group.final_return.point for env, group in result.scored_groups} == {
        ("A", "ppo"): 1.5,
        ("A", "dqn"): 1.5,
        ("B", "ppo"): 1.5,
    }
    assert [(row.environment, row.setting) for row in setting_rows(runs, labels)] == [
        ("A", "ppo"),
        ("A", "dqn"),
        ("B", "ppo"),
    ]
    assert compare_group(runs, labels, {}) is None


# --- the page with runs in memory


def texts(table: QTableWidget, row: int) -> list[str]:
    cells = [table.item(row, column) for column in range(table.columnCount())]
    return [one.text() for one in cells if one is not None]


def test_the_list_opens_a_group_and_escape_returns(program: Application) -> None:
    start_with(program, FakeTrainer([cell(1, "ppo"), cell(2, "dqn", outcome="failed"), view(3)]))
    program.window.show_page("experiments")
    page = program.window.findChild(ExperimentsPage)
    assert page is not None
    table = find(page, "experiments.groups", QTableWidget)
    pump(lambda: table.rowCount() == 1, "the group")
    assert texts(table, 0)[:2] == ["study", "1 of 2 done, 1 failed"]
    table.selectRow(0)
    press(table, Qt.Key.Key_Return)
    pump(page.page.isVisible, "the group's page")
    assert find(page, "group.title", QLabel).text() == "study"
    press(page.page, Qt.Key.Key_Escape)
    pump(table.isVisible, "the list")


def test_a_workspace_without_groups_says_how_to_make_one(program: Application) -> None:
    start_with(program, FakeTrainer([view(1)]))
    program.window.show_page("experiments")
    shown = [label.text() for label in program.window.findChildren(QLabel) if label.isVisible()]
    assert "No groups of runs yet" in shown
    assert any("mosaic experiment run FILE.yaml" in text for text in shown)


def test_the_group_of_a_run_is_opened_from_its_page(program: Application) -> None:
    start_with(program, FakeTrainer([cell(1, "ppo"), view(2)]))
    program.workbench.select(run_id(2))
    button = find(program.window, "run.group", QToolButton)
    assert button.isHidden()
    program.workbench.select(run_id(1))
    click(button)
    assert program.window.current_page == "experiments"
    page = program.window.findChild(GroupPage)
    assert page is not None
    assert page.group == "study"
    program.workbench.mark([run_id(2)])
    assert not program.window.action("run.group").isEnabled()


# --- with real runs


def submit(trainer: TrainerClient, setting: str, seed: int, **config: Any) -> str:
    payload = scripted(**config)
    experiment = member(setting, "scripted", seed).model_dump(mode="json")
    payload["metadata"] |= {"group": "study", "experiment": experiment}
    return str(trainer.submit(payload).run_id)


def open_group(program: Application, count: int) -> GroupPage:
    program.start()
    pump(lambda: len(program.workbench.runs) == count, "the runs")
    program.workbench.group_requested.emit("study")
    page = program.window.findChild(GroupPage)
    assert page is not None
    return page


def dialog(name: str) -> Any:
    return pump(lambda: next((one for one in QApplication.topLevelWidgets() if one.objectName() == name), None), name)


@pytest.fixture
def known_worker(plugins: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The window's process finds the scripted worker, as the daemon's does."""
    monkeypatch.syspath_prepend(str(plugins))
    discover_workers.cache_clear()
    yield
    discover_workers.cache_clear()


def test_failed_runs_of_a_group_are_submitted_as_their_next_attempt(
    trainer: TrainerClient,
    make_program: Callable[[], Application],
    tmp_path: Path,
    known_worker: None,
) -> None:
    runs = [submit(trainer, name, seed, steps=30) for name in ("fast", "slow") for seed in (1, 2)]
    runs.append(submit(trainer, "slow", 3, steps=3, exit=3))
    for one in runs:
        ended(trainer, one)
    page = open_group(make_program(), 5)
    line = find(page, "group.line", QLabel)
    pump(lambda: line.text() == "4 of 5 done, 1 failed", "the progress")
    chart = pump(lambda: page.charts.findChild(Chart), "the chart")
    pump(lambda: set(chart.curves()) == {"fast", "slow"}, "the curves")
    pump(lambda: "15.5" in texts(page.table, 0), "the score: the mean of the returns 1 to 30")
    assert texts(page.table, 0)[0] == "fast"
    assert texts(page.table, 1)[2:4] == ["2 of 3", "1"]

    page.write_figure(FigureKind.CURVES, tmp_path / "curves.svg")
    pump((tmp_path / "curves.svg").exists, "the figure")

    click(find(page, "group.retry", QToolButton))
    again = pump(lambda: [one for one in trainer.runs(group="study") if one.run_id not in runs], "another attempt")
    assert again[0].experiment is not None
    assert again[0].experiment.attempt == 2
    ended(trainer, again[0].run_id)
    note = find(page, "group.note", QLabel)
    left_out = "1 run with earlier settings or attempts is not counted."
    pump(lambda: note.text().startswith(left_out), "the note")  # a sentence about the dotted line may follow
    pump(lambda: line.text() == "4 of 5 done, 1 failed", "the same failure again")

    archive = find(page, "group.archive", QToolButton)
    click(archive)
    pump(lambda: archive.text() == "Unarchive", "the archive")
    assert all(one.is_archived for one in trainer.runs(group="study", include_archived=True))


def test_a_running_group_advances_by_itself_and_is_cancelled_as_a_whole(
    trainer: TrainerClient, make_program: Callable[[], Application]
) -> None:
    """R10.4: a group in the window."""
    runs = [submit(trainer, "fast", seed, steps=100_000, dt=0.02) for seed in (1, 2)]
    page = open_group(make_program(), 2)
    line = find(page, "group.line", QLabel)
    pump(lambda: line.text() == "0 of 2 done, 2 running", "the runs to start")
    chart = pump(lambda: page.charts.findChild(Chart), "the chart")

    def last_step() -> float:
        curve = chart.curves().get("fast")
        point = None if curve is None else curve.last_point()
        return 0.0 if point is None else float(point[0])

    first = pump(last_step, "points")
    pump(lambda: last_step() > first, "further points")
    click(find(page, "group.cancel", QToolButton))
    click(find(dialog("cancel.question"), "cancel.question.yes", QPushButton))
    for one in runs:
        assert ended(trainer, one).outcome == "cancelled"
    pump(lambda: line.text() == "0 of 2 done, 2 cancelled", "the end")
    pump(lambda: find(page, "group.retry", QToolButton).text() == "Retry 2 runs", "what is possible now")


@pytest.mark.parametrize("kind", list(FigureKind))
def test_a_figure_is_named_by_its_group_and_kind(program: Application, kind: FigureKind) -> None:
    start_with(program, FakeTrainer([cell(1, "ppo")]))
    program.workbench.group_requested.emit("study")
    page = program.window.findChild(GroupPage)
    assert page is not None
    page.buttons._ask_figure_path(kind)
    asked = pump(lambda: next(iter(program.window.findChildren(QFileDialog)), None), "the dialog")
    assert f"study-{kind}" in asked.selectedFiles()[0]
    asked.reject()
