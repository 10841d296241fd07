"""The texts of the run page agree with the state of the run, also when it ends while it is shown."""

from __future__ import annotations

import threading
from typing import Any

from PySide6.QtWidgets import QLabel, QScrollArea
from tests.helpers.gui import awaited, find, finish_calls, pump
from tests.helpers.gui_runs import FakeTrainer, run_id, running, start_with, view

from mosaic.client.trainer_client import MetricsUpdate
from mosaic.contracts.states import HistoryEntry, Stage
from mosaic.contracts.views import RunView
from mosaic.gui.app import Application
from mosaic.gui.views.details_view import HistoryView
from mosaic.gui.views.run_charts import ReturnChart


def test_a_run_that_is_cancelled_in_the_queue_is_no_longer_waiting(program: Application) -> None:
    fake = FakeTrainer([running(1, stage="queued")])
    start_with(program, fake)
    program.workbench.select(run_id(1), "fastlane")
    status = awaited(program.window, "fastlane.state", QLabel)
    pump(lambda: status.text() == "waiting: the run is queued", "the queued run")
    program.workbench.select(run_id(1), "overview")
    pump(lambda: not status.isVisible(), "the other tab")
    program.workbench.runs.update([fake._changed(run_id(1), stage="finished", outcome="cancelled")])
    program.workbench.select(run_id(1), "fastlane")
    pump(lambda: status.text() == "unavailable: the run has ended (cancelled)", "the end", 10)


def test_the_return_chart_of_an_ended_run_does_not_wait_for_an_episode(program: Application) -> None:
    fake = FakeTrainer([view(1), running(2)])
    is_readable = threading.Event()
    read = fake.metrics_after

    def metrics_after(*arguments: Any) -> MetricsUpdate:
        is_readable.wait(60)
        return read(*arguments)

    fake.metrics_after = metrics_after  # type: ignore[method-assign, assignment]
    start_with(program, fake)
    program.workbench.select(run_id(2), "overview")
    chart = awaited(program.window, "overview.chart", ReturnChart)
    pump(lambda: chart._empty_label.text() != "No points yet", "the run")
    assert chart._empty_label.text() == "Loading…"
    is_readable.set()
    pump(lambda: chart._empty_label.text() == "No episode has ended yet", "the points of the running one")
    program.workbench.runs.update([fake._changed(run_id(2), stage="finished", outcome="cancelled")])
    pump(lambda: chart._empty_label.text() == "The run ended before an episode did", "the end")
    program.workbench.select(run_id(1))
    pump(lambda: chart._empty_label.text() == "The run ended before an episode did", "the ended one")


def test_the_history_shows_its_newest_line(program: Application) -> None:
    fake = FakeTrainer([view(1)])

    def get(run: str) -> RunView:
        lines = tuple(HistoryEntry(at=float(at), stage=Stage.RUNNING, message=f"Line {at}.") for at in range(40))
        return fake.views[run].model_copy(update={"history": lines})

    fake.get = get  # type: ignore[method-assign]
    start_with(program, fake)
    program.workbench.select(run_id(1), "overview")
    history = pump(lambda: program.window.findChild(HistoryView), "the history")
    area = history.parentWidget().parentWidget()
    assert isinstance(area, QScrollArea)
    bar = area.verticalScrollBar()
    pump(lambda: bar.maximum() > 0 and bar.value() == bar.maximum(), "the newest line", 10)


def test_cancelling_an_evaluation_promises_no_checkpoint(program: Application) -> None:
    fake = FakeTrainer([running(1, kind="policy_eval"), running(2)])
    start_with(program, fake)
    for number, text in ((1, "Run 000001: stopping."), (2, "Run 000002: stopping, with a checkpoint where it can.")):
        program.workbench.select(run_id(number))
        program.window.action("run.cancel").trigger()
        finish_calls(program.bridge)
        assert program.window.messages.label.text() == text
    assert find(program.window, "message").isVisible()
