"""The page of sweeps: trials, best settings, importance, and a process that continues a sweep."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QInputDialog, QLabel, QPushButton, QScrollArea, QTableWidget, QToolButton
from tests.helpers.daemons import LiveDaemon
from tests.helpers.gui import click, find, pump, settle
from tests.helpers.gui_fit import FONT_SIZES_PT, SIZES, settled_misfits
from tests.helpers.gui_runs import FakeTrainer, start_with, view
from tests.helpers.uninstalled import uninstalled

from mosaic.base.user_presets import read_presets
from mosaic.contracts.folder import Workspace
from mosaic.features.sweeps.core import TrialRow, TrialStatus, parse_sweep, plan_sweep
from mosaic.features.sweeps.core_folder import SweepFolder
from mosaic.features.sweeps.core_study import Study
from mosaic.features.sweeps.window import SweepsPage, sort_trials
from mosaic.features.sweeps.window_charts import ParallelPlot, best_so_far
from mosaic.features.sweeps.window_model import SweepState, SweepStatus, build_axes, build_lines, read_state
from mosaic.features.sweeps.worker import SweepReport, SweepSnapshot, decode_report, encode_report
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application

CONFIG: dict[str, Any] = {
    "name": "study",
    "algorithm": "ppo",
    "environments": ["CartPole-v1"],
    "settings": {"total_timesteps": 20_000_000},
    "search": {
        "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
        "num_steps": {"values": [64, 128, 256]},
        "activation": {"choices": ["tanh", "relu"]},
    },
    "sampler": "random",
    "trials": 12,
}


def trial(number: int, rate: float, steps: int, activation: str, score: float | None = None, **fields: Any) -> TrialRow:
    params = {"learning_rate": rate, "num_steps": steps, "activation": activation}
    status = TrialStatus.DONE if score is not None else TrialStatus.PRUNED
    return TrialRow(number, fields.pop("status", status), params, score, **fields)


ROWS = (
    trial(0, 1e-4, 64, "tanh", 10.0),
    trial(1, 1e-2, 256, "relu", 30.0),
    trial(2, 1e-3, 128, "tanh", reports={2: 5.0}),
    trial(3, 1e-3, 64, "relu", status=TrialStatus.RUNNING),
)


def state(rows: tuple[TrialRow, ...] = ROWS, **fields: Any) -> SweepState:
    return read_state(SweepSnapshot("study", CONFIG, "one", rows, **fields))


# --- models


def test_a_report_survives_its_way_to_the_window() -> None:
    report = SweepReport(("study",), (SweepSnapshot("study", CONFIG, "one", ROWS, {"num_steps": 0.5}, 7),))
    assert decode_report(encode_report(report).encode()) == report


def test_axes_are_logarithmic_where_the_range_is_and_lines_end_at_their_score() -> None:
    plan = plan_sweep(parse_sweep(CONFIG))
    rate, steps, activation, score = build_axes(plan.dimensions, ROWS)
    assert (rate.title, rate.is_log) == ("learning_rate", True)
    assert [label for _, label in rate.ticks] == ["0.0001", "0.001", "0.01"]
    assert [place for place, _ in rate.ticks] == pytest.approx([0.0, 0.5, 1.0])
    assert [label for _, label in steps.ticks] == ["64", "128", "256"]
    assert activation.ticks == ((0.0, "tanh"), (1.0, "relu"))
    assert score.ticks == ((0.0, "10"), (1.0, "30"))
    lines = build_lines(plan.dimensions, ROWS)
    assert [(line.number, line.share) for line in lines] == [(2, None), (0, 0.0), (1, 1.0)]
    assert lines[0].places == pytest.approx((0.5, 0.5, 0.0))
    assert lines[2].places == (1.0, 1.0, 1.0, 1.0)


def test_a_sweep_is_running_detached_stopped_or_done() -> None:
    assert state(runner_pid=7).status is SweepStatus.RUNNING
    assert "Process 7" in state(runner_pid=7).describe_status()
    assert state().status is SweepStatus.DETACHED
    assert "1 running trial continue" in state().describe_status()
    assert state(ROWS[:3]).status is SweepStatus.STOPPED
    assert state(tuple(trial(number, 1e-3, 64, "tanh", 1.0) for number in range(12))).status is SweepStatus.ENDED
    assert read_state(SweepSnapshot("study", CONFIG | {"algorithm": "pppo"})).status is SweepStatus.UNREADABLE
    assert "8 completed trials; 2 are done" in state().describe_importance()


def test_the_best_so_far_rises_in_steps() -> None:
    rows = [trial(number, 1e-3, 64, "tanh", score) for number, score in enumerate((2.0, 1.0, 3.0))]
    assert best_so_far([*rows, ROWS[3]]) == ([0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0], [2.0, 2.0, 2.0, 2.0, 3.0, 3.0, 3.0])
    assert best_so_far([]) == ([], [])


def test_trials_without_a_value_come_last_in_either_order() -> None:
    by_score = [row.number for row in sort_trials(ROWS, lambda row: row.last_score, True)]
    assert by_score == [1, 0, 2, 3]
    assert [row.number for row in sort_trials(ROWS, lambda row: row.params["activation"], False)][:2] == [1, 3]


# --- the page


@pytest.fixture
def study(workspace: Workspace) -> Study:
    """Nine completed trials of twelve."""
    folder = SweepFolder(workspace.sweeps / "study")
    folder.path.mkdir(parents=True)
    folder.write_config(json.dumps(CONFIG))
    made = Study(folder, plan_sweep(parse_sweep(CONFIG)))
    made.prepare("one")
    for _ in range(9):
        row = made.ask()
        made.tell_done(row.number, 1e4 * row.params["learning_rate"], [1.0])
    return made


def open_sweep(program: Application) -> SweepsPage:
    start_with(program, FakeTrainer([view(1)]))
    program.workbench.sweep_requested.emit("study")
    page = program.window.findChild(SweepsPage)
    assert page is not None
    pump(lambda: page.page.isVisible() and page.page.sweep == "study", "the sweep")
    return page


def text_of(page: SweepsPage, name: str) -> str:
    return find(page, name, QLabel).text()


def test_a_sweep_shows_its_progress_and_follows_what_is_written(
    program: Application, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_sweep(program)
    pump(lambda: text_of(page, "sweep.line") == "9 of 12 trials ended: 9 done", "the progress")
    assert "No process runs this sweep now" in text_of(page, "sweep.status")
    assert find(page, "sweep.trials", QTableWidget).rowCount() == 9
    assert set(page.page.importance._values) <= set(CONFIG["search"])
    assert page.page.importance._values
    with study.folder.hold():
        pump(lambda: text_of(page, "sweep.status").endswith("runs this sweep."), "the process that runs it")
        row = study.ask()
        study.tell_done(row.number, 1e6, [1e6])
        pump(lambda: text_of(page, "sweep.line") == "10 of 12 trials ended: 10 done", "the next trial")
        pump(lambda: text_of(page, "sweep.best").startswith(f"Best so far: 1M  (trial {row.number})"), "the best")
        assert not find(page, "sweep.continue", QToolButton).isEnabled()
    pump(find(page, "sweep.continue", QToolButton).isEnabled, "that nothing runs it")


def test_the_page_of_a_sweep_fits_at_every_size_of_window_and_text(program: Application, study: Study) -> None:
    page = open_sweep(program)
    pump(lambda: text_of(page, "sweep.line") == "9 of 12 trials ended: 9 done", "the progress")
    found: list[str] = []
    for font_size_pt in FONT_SIZES_PT:
        program.settings.put("font_pt", font_size_pt)
        program.workbench.apply_theme()
        for width, height in SIZES:
            program.window.resize(width, height)
            misfits = settled_misfits(program.window)
            found += [f"{width}x{height}, {font_size_pt:g} pt: {misfit}" for misfit in misfits]
    assert not found, "\n".join(found)


def test_the_best_settings_are_copied_and_saved_as_a_preset(program: Application, study: Study) -> None:
    page = open_sweep(program)
    best = page.page._state.best if page.page._state else None
    assert best is not None
    click(find(page, "sweep.copy", QPushButton))
    assert json.loads(QGuiApplication.clipboard().text()) == best.params
    click(find(page, "sweep.preset", QPushButton))
    asked = pump(lambda: program.window.findChild(QInputDialog, "sweep.preset.name"), "the question")
    asked.setTextValue("found")
    asked.accept()
    assert read_presets()["found"].settings["learning_rate"] == best.params["learning_rate"]
    click(find(page, "sweep.command", QToolButton))
    assert str(study.folder.config) in QGuiApplication.clipboard().text().replace("'\"'\"'", "'")


def test_pointing_at_a_line_names_its_trial_and_a_click_selects_it(program: Application, study: Study) -> None:
    page = open_sweep(program).page
    plot: ParallelPlot = page.parallel
    find(page, "sweep.scroll", QScrollArea).ensureWidgetVisible(plot)
    best = max((row for row in study.rows()), key=lambda row: row.score or 0.0)
    line = next(line for line in plot._lines if line.number == best.number)
    one, other = plot.points_of(line)[-2:]
    place = QPointF(0.1 * one.x() + 0.9 * other.x(), 0.1 * one.y() + 0.9 * other.y()).toPoint()
    for moved in (plot.rect().bottomLeft(), place):  # the first one only enters the window
        QTest.mouseMove(plot, moved)
        settle()
    pump(lambda: plot.highlighted == best.number, "the line")
    assert find(page, "sweep.hovered", QLabel).text().startswith(f"Trial {best.number} (done")
    QTest.mouseClick(plot, Qt.MouseButton.LeftButton, pos=place)
    assert page._rows[page.table.selected_row() or 0].number == best.number


def test_a_workspace_without_sweeps_says_how_to_start_one(program: Application) -> None:
    start_with(program, FakeTrainer([view(1)]))
    program.workbench.is_remote = True
    program.window.show_page("sweeps")
    page = program.window.findChild(SweepsPage)
    assert page is not None
    pump(lambda: page._empty.title.text() == "No sweeps yet", "the empty state")
    assert "mosaic sweep init ppo CartPole-v1" in page._empty.text.text()
    assert "stored where their process runs" in page._empty.text.text()
    assert not page.sweeps._process.is_running


def test_without_optuna_the_page_names_the_extra(
    program: Application, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in uninstalled(tmp_path / "without", "optuna").items():
        monkeypatch.setenv(name, value)
    start_with(program, FakeTrainer([view(1)]))
    program.window.show_page("sweeps")
    page = program.window.findChild(SweepsPage)
    assert page is not None
    pump(lambda: "pip install 'mosaic-rl[sweep]'" in page._empty.text.text(), "the sentence")


# --- with a daemon


@pytest.fixture
def long_sweep(workspace: Workspace) -> Iterator[SweepFolder]:
    folder = SweepFolder(workspace.sweeps / "study")
    folder.path.mkdir(parents=True)
    folder.write_config(json.dumps(CONFIG | {"parallel": 1}))
    yield folder
    assert not folder.is_held()


def test_a_sweep_is_continued_by_a_process_of_its_own_and_stopped_with_its_trials(
    daemon: LiveDaemon,
    trainer: TrainerClient,
    long_sweep: SweepFolder,
    make_program: Callable[[], Application],
) -> None:
    """R10.2: a sweep in the window."""
    program = make_program()
    program.start()
    program.workbench.sweep_requested.emit("study")
    page = program.window.findChild(SweepsPage)
    assert page is not None
    pump(lambda: page.page.sweep == "study", "the sweep")
    click(find(page, "sweep.continue", QToolButton))
    pump(lambda: "1 running" in text_of(page, "sweep.line"), "a trial to start", 100)
    pump(long_sweep.is_held, "its process")
    table = find(page, "sweep.trials", QTableWidget)
    run = pump(lambda: next(iter(program.workbench.runs.all()), None), "its run")
    page.page.open_trial(0)
    pump(lambda: program.workbench.selection == run.run_id, "the run of the trial")
    program.window.show_page("sweeps")
    assert table.rowCount() == 1
    click(find(page, "sweep.stop", QToolButton))
    question = pump(
        lambda: next((w for w in QApplication.topLevelWidgets() if w.objectName() == "sweep.stop.question"), None), "it"
    )
    click(find(question, "sweep.stop.question.yes", QPushButton))
    pump(lambda: find(page, "sweep.continue", QToolButton).isEnabled(), "the end", 100)
    pump(lambda: trainer.get_run(run.run_id).outcome == "cancelled", "the run to end")
    assert "0 of 12 trials ended" in text_of(page, "sweep.line")
