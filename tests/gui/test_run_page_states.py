"""The texts of the run page agree with the state of the run, also when it ends while it is shown."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QMessageBox, QPushButton, QScrollArea
from tests.helpers.gui import awaited, click, find, finish_calls, pump, settle
from tests.helpers.gui_runs import FakeTrainer, run_id, running, show_active, start_with, view

from mosaic.contracts.states import HistoryEntry, Outcome, Stage
from mosaic.contracts.views import DaemonStatus, RunView, SlotUsage
from mosaic.features.runs.window_analytics import ReturnChart
from mosaic.features.runs.window_page import RunPage, run_details
from mosaic.features.runs.window_table import RunsTableModel
from mosaic.trainer.client.trainer_client import MetricsUpdate
from mosaic.window import widgets as ui
from mosaic.window.app import Application
from mosaic.window.runs import EMPTY_STATES, RunPhase, empty_text, run_phase
from mosaic.window.tables import HistoryView


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


@pytest.mark.parametrize("tab", EMPTY_STATES)
def test_every_empty_state_has_a_sentence_that_fits_the_run(tab: str) -> None:
    views = {
        RunPhase.QUEUED: running(1, stage="queued", started_at=None),
        RunPhase.STARTING: running(1, stage="starting"),
        RunPhase.RUNNING: running(1, episodes=42),
        RunPhase.PAUSED: running(1, stage="paused", episodes=1),
        RunPhase.NEVER_STARTED: view(1, outcome="cancelled", started_at=None),
        RunPhase.ENDED: view(1, outcome="failed"),
    }
    assert {run_phase(running(1, stage=stage)) for stage in Stage if stage != "finished"} == set(list(RunPhase)[:4])
    assert {run_phase(of_phase): of_phase for of_phase in views.values()} == views
    for phase, of_phase in views.items():
        title, text = empty_text(tab, of_phase, "stdout")
        assert title
        assert not {"{", "}"} & set(title + text)
        sentence = f"{title} {text}".lower()
        if phase in (RunPhase.NEVER_STARTED, RunPhase.ENDED):
            assert " yet" not in sentence, "it will not change"
            assert " is queued" not in sentence
        if phase is RunPhase.NEVER_STARTED:
            assert "never started" in sentence


@pytest.mark.parametrize("tab", EMPTY_STATES)
@pytest.mark.parametrize("outcome", Outcome)
def test_the_empty_states_of_an_ended_run_expect_nothing(tab: str, outcome: Outcome) -> None:
    for started_at in (1.0, None):
        sentence = empty_text(tab, view(1, outcome=outcome, started_at=started_at), "stdout").as_line().lower()
        assert not {"yet", "waits", "starting", "paused"} & set(sentence.replace(".", "").split())
        assert started_at or "never started" in sentence


def test_the_empty_states_name_what_is_known() -> None:
    evaluation = running(1, kind="policy_eval", episodes=42)
    assert empty_text("evaluation", evaluation) == ("The first batch is being played", "42 episodes so far.")
    assert empty_text("logs", view(1), "stderr").title == "The run wrote nothing to stderr"
    assert empty_text("fastlane", view(1, outcome="lost")).title == "The run has ended: lost"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"outcome": "cancelled", "reason": "Cancelled on request."}, "cancelled on request."),
        ({"outcome": "failed", "reason": "Ended with exit code 1."}, "failed"),
        ({"reason": "It completed all its steps."}, "succeeded: It completed all its steps."),
    ],
)
def test_the_title_states_how_a_run_ended_once(program: Application, fields: dict[str, str], text: str) -> None:
    start_with(program, FakeTrainer([view(1, **fields)]))
    program.workbench.select(run_id(1), "overview")
    pump(lambda: find(program.window, "run.state", QLabel).text() == text, "the state")


def test_the_history_shows_its_newest_line(program: Application) -> None:
    fake = FakeTrainer([view(1)])

    def get(run: str) -> RunView:
        lines = tuple(HistoryEntry(at=float(at), stage=Stage.RUNNING, message=f"Line {at}.") for at in range(40))
        return fake.views[run].model_copy(update={"history": lines})

    fake.get_run = get  # type: ignore[method-assign]
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
    for number, text in (
        (1, "Run 000001: stop requested."),
        (2, "Run 000002: stop requested, with a checkpoint where it can."),
    ):
        program.workbench.select(run_id(number))
        program.window.action("run.cancel").trigger()
        finish_calls(program.bridge)
        assert program.window.messages.label.text() == text
    assert find(program.window, "message").isVisible()


def test_a_message_about_a_request_follows_the_runs(program: Application) -> None:
    fake = FakeTrainer([running(1)])
    fake.pause_run = fake.get_run  # type: ignore[method-assign]
    start_with(program, fake)
    program.window.show()
    message, label = find(program.window, "message"), program.window.messages.label
    program.workbench.select(run_id(1))
    paused = "Run 000001: paused. Space in the list of runs continues."
    for action, waiting, stage, done in (
        ("run.pause", "Run 000001: pause requested.", "paused", paused),
        ("run.cancel", "Run 000001: stop requested, with a checkpoint where it can.", "finished", ""),
    ):
        program.window.action(action).trigger()
        finish_calls(program.bridge)
        assert message.isVisible()
        assert label.text() == waiting
        program.workbench.runs.update([fake._changed(run_id(1), stage=stage)])
        assert message.isVisible() is bool(done)
        assert label.text() == (done or waiting)
    program.window.messages.show_message("Another one.")
    program.workbench.runs.update([fake._changed(run_id(1), stage="running")])
    assert label.text() == "Another one."


def test_a_tab_whose_page_is_left_while_it_is_created_is_shown_later(program: Application) -> None:
    start_with(program, FakeTrainer([view(1)]))
    program.window.show_page("run")
    program.workbench.select(run_id(1), "overview")
    page = program.window.findChild(RunPage)
    assert page is not None
    page._create_pane_timer.stop()
    page._create_pane()
    program.window.show_page("settings")
    page._fill_pane_timer.stop()
    page._on_tab_changed()
    program.window.show_page("run")
    settle()
    assert find(program.window, "overview.split").isVisible()


def test_a_queued_run_shows_what_it_waits_for_once_in_the_list_and_once_on_its_page(program: Application) -> None:
    waiting = "2 of 2 slots busy, place 5"
    start_with(program, FakeTrainer([running(1, stage="queued", wait_reason=waiting, started_at=None)]))
    program.workbench.select(run_id(1), "overview")
    banner = awaited(program.window, "overview.why")
    pump(lambda: find(program.window, "run.state", QLabel).text() == f"queued: {waiting}", "the reason")
    assert not banner.isVisible()
    table = RunsTableModel(program.workbench.runs)
    tip = table.data(table.index(0, 0), Qt.ItemDataRole.ToolTipRole)
    assert tip.splitlines()[1:] == [waiting]


def test_what_cannot_be_read_of_a_run_is_shown_with_its_outcome(program: Application) -> None:
    problem = "journal.jsonl cannot be read (ValueError: <b>a line</b>)"
    start_with(program, FakeTrainer([view(1, reason="It completed all its steps.", problem=problem)]))
    program.workbench.select(run_id(1), "overview")
    reason = awaited(program.window, "overview.reason", QLabel)
    pump(lambda: reason.text() == problem, "the problem")
    assert reason.textFormat() is Qt.TextFormat.PlainText
    assert reason.isVisible()
    table = RunsTableModel(program.workbench.runs)
    tip = table.data(table.index(0, 0), Qt.ItemDataRole.ToolTipRole)
    assert tip.splitlines()[1:] == ["It completed all its steps.", problem]


def test_the_warnings_of_the_dry_run_are_in_the_history(program: Application) -> None:
    start_with(program, FakeTrainer([view(1, warnings=("1,000 is not a multiple of 512.",))]))
    program.workbench.select(run_id(1), "overview")
    history = pump(lambda: program.window.findChild(HistoryView), "the history")
    texts = ["It waits.", "Warning: 1,000 is not a multiple of 512."]
    pump(lambda: [line.message for line in history._lines] == texts, "the warning")


def test_an_imported_run_is_marked() -> None:
    assert [detail.value for detail in run_details(view(1, is_imported=True)) if detail.name == "Imported"] == ["yes"]
    assert not any(detail.name == "Imported" for detail in run_details(view(1)))


@pytest.mark.parametrize(("kind", "title"), [("train", "training"), ("policy_eval", "evaluation"), ("play", "play")])
def test_the_details_name_the_kind_of_a_run(kind: str, title: str) -> None:
    assert [detail.value for detail in run_details(view(1, kind=kind)) if detail.name == "Kind"] == [title]


def test_a_rebuilt_index_is_reported_once_and_stays_in_the_log(program: Application) -> None:
    fake = FakeTrainer([view(1)])
    status = fake.get_status().model_copy(update={"rebuilt_index": "The index was missing."})
    fake.get_status = lambda: status  # type: ignore[method-assign]
    shown: list[str] = []
    program.workbench.message_posted.connect(lambda text, _: shown.append(text))
    start_with(program, fake)
    pump(lambda: shown == ["The index was missing."], "the message")
    program.bridge.connected.emit(status)
    assert shown == ["The index was missing."]
    assert program.workbench.events.lines[-1].text == "at 127.0.0.1:1, pid 1. The index was missing."


def test_the_banner_of_a_full_disk_stays_until_there_is_space(program: Application) -> None:
    start_with(program, FakeTrainer([view(1)]))
    program.window.show()

    def poll(full_disk: str | None) -> None:
        status = DaemonStatus(pid=1, address="", workspace="", version="0", full_disk=full_disk)
        program.bridge.status_polled.emit([], status)

    poll("The disk is full: 12 bytes are free.")
    assert program.window.banner.isVisible()
    assert find(program.window, "banner", QLabel).text() == "The disk is full: 12 bytes are free."
    poll(None)
    assert not program.window.banner.isVisible()


def test_a_read_only_workspace_has_a_banner_and_one_question(program: Application) -> None:
    """R2.9."""
    fake = FakeTrainer([view(number, stage="queued", outcome=None, is_imported=True) for number in range(7)])
    foreign = fake.get_status().model_copy(update={"is_read_only": True, "slots": SlotUsage(queued=7)})
    answers = [foreign]
    fake.get_status = lambda: answers[-1]  # type: ignore[method-assign]

    def trust_workspace(is_trusted: bool) -> DaemonStatus:
        fake.views = {run_id: one.model_copy(update={"is_imported": False}) for run_id, one in fake.views.items()}
        answers.append(foreign.model_copy(update={"is_read_only": False}))
        return answers[-1]

    fake.trust_workspace = trust_workspace  # type: ignore[attr-defined]
    start_with(program, fake)
    show_active(program)
    banner = program.window.banner
    text = "This workspace was not created by you, so it is read-only. 7 queued runs will not start."
    pump(lambda: banner.label.text() == text, "the banner")
    pump(lambda: program.workbench.status, "the status")
    click(find(program.window, "banner.button", QPushButton))
    question = awaited(program.window, "workspace.trust", QMessageBox)
    assert "7 queued runs will start: " in question.informativeText()
    assert " and others. " in question.informativeText()
    click(question.escapeButton())
    assert answers == [foreign]
    asked_again: list[DaemonStatus] = []
    program.bridge.connected.connect(asked_again.append)
    click(find(program.window, "banner.button", QPushButton))
    click(awaited(program.window, "workspace.trust.yes", QPushButton))
    pump(lambda: not banner.isVisible(), "the banner to go")
    pump(lambda: not any(one.is_imported for one in program.workbench.runs.all()), "the runs to be the user's")
    assert asked_again == answers[1:], "forms that were refused ask again"
    full = foreign.model_copy(update={"full_disk": "The disk is full."})
    program.bridge.status_polled.emit([], full)
    assert banner.isVisible()
    assert not find(program.window, "banner.button", QPushButton).isVisible()


def test_questions_show_plain_text_and_do_nothing_by_default(program: Application) -> None:
    answers: list[bool] = []
    program.window.show()
    ui.confirm(program.window, "q", "Title", "Really?", "<b>bold</b>", "Do it", lambda: answers.append(True), "Leave")
    box = find(program.window, "q", QMessageBox)
    formats = {label.textFormat() for label in box.findChildren(QLabel) if label.text()}
    assert formats == {Qt.TextFormat.PlainText}
    default = next(button for button in box.buttons() if button.text() == "Leave")
    assert box.defaultButton() is default
    assert box.escapeButton() is default
    box.reject()
    assert answers == []


@pytest.mark.parametrize("page", ["train", "run", "compare", "policy", "leaderboard", "trainer", "settings"])
def test_pages_fit_into_a_small_window(program: Application, page: str) -> None:
    start_with(program, FakeTrainer([view(number) for number in range(1, 9)]))
    program.window.resize(1024, 700)
    program.workbench.comparison_requested.emit([run_id(number) for number in range(1, 9)])
    program.workbench.select(run_id(1))
    program.window.show_page(page)
    finish_calls(program.bridge)
    settle()
    assert program.window.size().toTuple() == (1024, 700)
