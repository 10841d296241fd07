"""Staying with a run until its end: events, lost daemons, Ctrl-C, exit codes."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest
from tests.helpers.cli_trainer import FakeContext, FakeTrainer, call, finished, record, view

from mosaic.cli import context as outage
from mosaic.cli import following as run_follower
from mosaic.cli.following import DownsampledCurve, LiveRunState, format_log_line
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import MosaicError, NoDaemon
from mosaic.contracts.events import Event, ProgressReported, Sample
from mosaic.contracts.states import Stage
from mosaic.contracts.views import MetricsCursor, MetricSeries
from mosaic.trainer.client.daemon_channel import DaemonChannel
from mosaic.trainer.client.trainer_client import MetricsUpdate, SubmissionUncertain, TrainerClient

RUN = "01NEW000000000000000000000"
STEPS = ProgressReported(seq=1, at=1.0, kind="progress", global_step=500, sps=100.0)


@pytest.fixture(autouse=True)
def _interrupts_are_noticed() -> Iterator[None]:
    """Also where the tests were started in the background of a shell, which lets them ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_follower, "POLL_S", 0.001)
    monkeypatch.setattr(run_follower, "TICK_S", 0.001)


class Daemon(FakeTrainer):
    """Whose run ends as the test wants."""

    def __init__(self, *script: Any, outcome: str = "succeeded", is_slow_to_stop: bool = False) -> None:
        super().__init__()
        self._outcome = outcome
        self._is_slow_to_stop = is_slow_to_stop
        self.was_cancelled = threading.Event()
        self.scripts = [list(script)]

    def end(self, **facts: Any) -> None:
        self.views[RUN] = finished(self.views[RUN], self._outcome, **facts)

    def watch(self, *arguments: Any) -> Any:
        yield from super().watch(*arguments)
        if self.views[RUN].stage == "finished":
            yield from self._ending()

    def _ending(self) -> Any:
        self.scripts.insert(0, [record(self.views[RUN])])
        yield from super().watch(50)

    def cancel_run(self, run: str) -> Any:
        if not self._is_slow_to_stop:
            return super().cancel_run(run)
        self.calls.append(("cancel", run))
        self.views[run] = self.views[run].model_copy(update={"stage": Stage.STOPPING})
        self.was_cancelled.set()
        return self.views[run]


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def train(trainer: FakeTrainer, *arguments: str) -> Any:
    return call(trainer, "train", "ppo", *arguments)


@pytest.mark.parametrize(
    ("outcome", "code"), [("succeeded", 0), ("failed", 3), ("rejected", 3), ("lost", 3), ("cancelled", 130)]
)
def test_the_exit_code_is_the_outcome(outcome: str, code: int) -> None:
    daemon: Daemon = Daemon(STEPS, lambda: daemon.end(reason="So it was."), outcome=outcome)
    result = train(daemon)
    assert result.code == code
    assert outcome.capitalize() in result.out
    assert ("So it was." in result.out) == (outcome != "succeeded")


@pytest.mark.parametrize("is_attached", [False, True])
def test_a_run_is_offered_to_be_resumed_where_that_is_possible(is_attached: bool) -> None:
    daemon: Daemon = Daemon(STEPS, lambda: daemon.end(checkpoint_step=500, is_attached=is_attached), outcome="failed")
    result = train(daemon)
    assert ("Resume from step 500: mosaic resume" in result.out + result.err) != is_attached, result


def test_with_json_stdout_holds_the_last_view_and_nothing_else() -> None:
    daemon: Daemon = Daemon(STEPS, lambda: daemon.end(global_step=1000))
    result = train(daemon, "--json")
    assert json.loads(result.out) == daemon.views[RUN].model_dump(mode="json")
    assert "Workspace: /nowhere/var" in result.err


def test_watching_continues_after_a_restart_of_the_daemon() -> None:
    daemon = Daemon(STEPS, NoDaemon("gone"))
    daemon.scripts.append([lambda: daemon.end()])
    result = train(daemon)
    assert result.code == 0, result.err
    assert [call[1] for call in daemon.calls if call[0] == "watch"][:2] == [0, 1]


def test_an_unreachable_daemon_is_exit_code_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "REMOTE_RETRY_S", -1.0)
    result = train(Daemon(NoDaemon("It is gone for good.")))
    assert result.code == 4
    assert result.err.endswith("It is gone for good.\n")


def test_what_the_daemon_refuses_is_not_tried_again() -> None:
    result = train(Daemon(MosaicError("It is broken.")))
    assert result.code == 1
    assert result.err.endswith("It is broken.\n")


def test_the_first_interrupt_stops_the_run_with_a_checkpoint() -> None:
    daemon = Daemon(STEPS, interrupt)
    result = train(daemon)
    assert result.code == 130
    assert ("cancel", RUN) in daemon.calls
    assert "Cancelled" in result.out


def test_the_second_interrupt_detaches_from_a_stopping_run() -> None:
    # Not at once: the kernel keeps one pending signal of a kind.
    daemon: Daemon = Daemon(
        STEPS, interrupt, lambda: daemon.was_cancelled.wait(10) and None, interrupt, is_slow_to_stop=True
    )
    result = train(daemon)
    assert result.code == 130
    assert [call for call in daemon.calls if call[0] == "cancel"] == [("cancel", RUN)]
    assert f"Detached; run {RUN[-6:]} is stopping." in result.err
    assert "mosaic show -f" in result.err


@pytest.mark.parametrize("words", [("train", "ppo"), ("play", "CartPole-v1"), ("train", "ppo", "--seeds", "1-3")])
def test_an_interrupt_before_the_submission_says_that_nothing_was_started(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeContext, "connect", lambda *_: interrupt())
    plain, result = (call(None, *words, *more) for more in ((), ("--json",)))
    assert plain.code == result.code == 130
    assert "Nothing was started." in plain.err
    assert "Nothing was started." in json.loads(result.out)["error"]
    shown = call(None, "show", "last")
    assert (shown.code, shown.err.strip()) == (130, ""), "it would have started nothing"


def test_an_interrupt_between_submissions_says_how_many_runs_there_are() -> None:
    daemon = FakeTrainer()
    submit = daemon.submit

    def interrupted(payload: Any, environment: Any = None, is_trusted: bool = False, key: str = "") -> Any:
        run = submit(payload)
        if run.seed == 2:
            interrupt()
        return run

    daemon.submit = interrupted  # type: ignore[method-assign]
    result = train(daemon, "--seeds", "1-5", "--group", "five")
    assert (result.code, len(daemon.submitted)) == (130, 2)
    assert "2 of 5 runs were submitted" in result.err
    assert "mosaic cancel five" in result.err


def test_the_second_interrupt_detaches_from_a_group() -> None:
    daemon = FakeTrainer()
    list_runs, shown = daemon.runs, list[None]()

    def runs(*filters: Any, **named: Any) -> Any:
        shown.append(None)
        if len(shown) in (2, 4):
            interrupt()
        return list_runs(*filters, **named)

    daemon.runs = runs  # type: ignore[method-assign]
    daemon.cancel_run = lambda run: daemon.views[run]  # type: ignore[method-assign]
    result = train(daemon, "--seeds", "1-2", "--group", "two")
    assert result.code == 130
    assert "Detached; 2 runs continue." in result.err
    assert "mosaic runs --group two" in result.err


def test_an_interrupt_while_watching_does_not_affect_the_run() -> None:
    daemon = Daemon(interrupt)
    daemon.views[RUN] = view(RUN)
    result = call(daemon, "show", "-f", "last")
    assert result.code == 0
    assert not [call for call in daemon.calls if call[0] == "cancel"]


def test_after_a_watched_run_an_interrupt_is_an_interrupt_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    daemon: Daemon = Daemon(lambda: daemon.end())
    train(daemon)
    assert signal.getsignal(signal.SIGINT) is before


def test_all_runs_of_a_group_are_waited_for_and_the_worst_end_counts() -> None:
    daemon = FakeTrainer()
    submit = daemon.submit

    def ended(payload: Any, environment: Any = None, is_trusted: bool = False, key: str = "") -> Any:
        run = submit(payload)
        outcome = "failed" if run.seed == 2 else "succeeded"
        daemon.views[run.run_id] = finished(run, outcome)
        return run

    daemon.submit = ended  # type: ignore[method-assign]
    result = train(daemon, "--seeds", "1-3", "--json")
    assert result.code == 3
    assert [run["outcome"] for run in json.loads(result.out)] == ["succeeded", "failed", "succeeded"]


def test_a_submission_that_breaks_is_repeated_with_the_same_key_and_its_end_is_certain() -> None:
    daemon = FakeTrainer()
    submit, keys = daemon.submit, []

    def breaks_once(payload: Any, environment: Any = None, is_trusted: bool = False, key: str = "") -> Any:
        keys.append(key)
        if len(keys) == 1:
            raise SubmissionUncertain(NoDaemon("The connection broke."))
        return submit(payload)

    daemon.submit = breaks_once  # type: ignore[method-assign]
    result = train(daemon, "--detach", "--json")
    assert result.code == 0, result.err
    assert len(daemon.submitted) == 1
    assert len(keys) == 2
    assert keys[0] == keys[1] != ""


# --- the state behind the view


def returns(*values: float, is_reload: bool = False) -> MetricsUpdate:
    steps = [10 * number for number in range(1, len(values) + 1)]
    return MetricsUpdate(MetricsCursor(1, len(values)), is_reload, [return_series(steps, values)])


def return_series(steps: Sequence[int], values: Sequence[float]) -> MetricSeries:
    return MetricSeries("charts/episodic_return", steps, [1.0] * len(steps), values)


def test_events_make_the_figures_of_the_view() -> None:
    watched = LiveRunState(view(total_timesteps=1000))
    watched.apply_event(STEPS)
    watched.apply_returns(returns(*[10.0] * 100, *[20.0] * 50))
    watched.apply_event(Sample(seq=1, at=1.0, kind="sample", cpu_percent=98.0, rss_mb=143.4, processes=1))
    watched.apply_event(Event(seq=1, at=1.0, kind="unknown"))
    shown = watched.view
    assert (shown.episodic_return, shown.episodes, shown.global_step, shown.seconds_left) == (15.0, 150, 500, 5.0)
    in_its_first_seconds = LiveRunState(view(total_timesteps=1000, started_at=time.time() + 60.0))
    in_its_first_seconds.apply_event(STEPS)
    assert (in_its_first_seconds.view.sps, in_its_first_seconds.view.seconds_left) == (100.0, None)
    assert format_log_line(shown) == (
        "3GKCSW running, 500 of 1,000 steps (50%), 100 steps/s, 5.0s left, return 15, CPU 98 %, RAM 143 MB"
    )


def test_returns_that_are_not_finite_are_counted_and_left_out_of_the_mean() -> None:
    watched = LiveRunState(view())
    watched.apply_returns(returns(math.nan))
    assert (watched.view.episodes, watched.invalid_returns_note, watched.curve.points) == (
        1,
        " (1 of 1 not finite)",
        [],
    )
    assert math.isnan(watched.view.episodic_return or 0.0)
    watched.apply_returns(returns(10.0, math.nan, 20.0))
    assert (watched.view.episodes, watched.view.episodic_return) == (4, 15.0)
    assert "return 15 (2 of 4 not finite)" in format_log_line(watched.view, watched.invalid_returns_note)
    assert watched.curve.points == [10.0, 15.0]


def test_a_resume_that_drops_episodes_starts_the_figures_again() -> None:
    watched = LiveRunState(view())
    watched.apply_returns(returns(1.0, 2.0, 3.0))
    watched.apply_returns(returns(5.0, 7.0, is_reload=True))
    assert (watched.view.episodes, watched.view.episodic_return, watched.curve.points) == (2, 6.0, [5.0, 6.0])


def test_returns_are_read_when_the_daemon_reports_new_points() -> None:
    daemon: Daemon = Daemon(return_series([10, 20], [1.0, math.nan]), lambda: daemon.end())
    assert train(daemon).code == 0
    assert ("metrics_after", MetricsCursor()) in daemon.calls


def test_the_outcome_of_an_earlier_attempt_does_not_end_the_watch() -> None:
    watched = LiveRunState(view(stage="queued", queued_at=200.0))
    watched.apply_event(record(finished(view(queued_at=100.0))))
    assert watched.active_views
    watched.apply_event(record(finished(view(queued_at=200.0))))
    assert not watched.active_views


def test_an_evaluation_is_measured_in_episodes() -> None:
    watched = LiveRunState(view(kind="policy_eval", total_timesteps=400_000), target_episodes=20)
    watched.apply_returns(returns(1.0, 2.0, 3.0, 4.0, 5.0))
    assert (watched.fraction_done, watched.progress_text, watched.view.seconds_left) == (0.25, "5 / 20 episodes", None)


def test_a_curve_of_a_million_points_is_thinned_and_keeps_its_shape() -> None:
    curve = DownsampledCurve()
    for value in range(100_000):
        curve.add(float(value))
    assert len(curve.points) < 512
    assert curve.points == sorted(curve.points)


def test_skipped_events_are_counted_where_they_would_have_been_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6.1: a slow reader learns how many events it missed: a warning on the command line and in the window's log."""
    replies = [pb.EventBatch(cursor=7, skipped=0), pb.EventBatch(cursor=1300, skipped=1234)]
    monkeypatch.setattr(DaemonChannel, "stream", lambda *_, **__: iter(replies))
    with grpc.insecure_channel("127.0.0.1:9") as channel:
        first, second = TrainerClient(channel, "token").watch(run=RUN)
    assert first.events == []
    (warning,) = second.events
    assert (warning.kind, warning.run_id) == ("warning", RUN)
    daemon: Daemon = Daemon(warning, lambda: daemon.end())
    result = train(daemon)
    assert "1,234 events were skipped, because this program reads them too slowly." in result.err + result.out
