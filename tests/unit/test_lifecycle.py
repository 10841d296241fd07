"""The life of a run, as one table."""

from __future__ import annotations

from typing import Any

import pytest

from mosaic.contracts.events import Exited
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.contracts.states import Attempt, FinalReport, Outcome, RunRecord, Stage
from mosaic.contracts.views import RunView
from mosaic.trainer import lifecycle as life

PROCESS: ProcessIdentity = {"pid": 7, "start": "1", "boot_id": "b"}


def record(**facts: Any) -> RunRecord:
    return RunRecord(**{"run_id": "R", "worker": "w", "submitted_at": 1.0, "queued_at": 1.0, **facts})


def attempt(number: int = 1, **facts: Any) -> Attempt:
    return Attempt(number=number, slot=number, started_at=2.0, **facts)


def exited(**facts: Any) -> Exited:
    return Exited(**{"seq": 1, "at": 9.0, "kind": "exited", "duration_s": 1.0, "peak_rss_mb": 100.0, **facts})


def running(**facts: Any) -> RunRecord:
    made = life.advance(record(**facts), life.Dispatched(at=2.0, attempt=attempt()))
    return life.advance(made, life.HandshakeReceived(at=3.0, capabilities=("pause",), resumed_from=None))


def ending(run: RunRecord, **facts: Any) -> RunRecord:
    return life.advance(run, life.Ended(at=9.0, exited=exited(**facts), log_path="/there/x.stderr.log"))


def test_a_run_moves_from_queue_to_end_and_keeps_its_history() -> None:
    """R2.4: stages and outcomes."""
    run = ending(running(), code=0)
    assert (run.stage, run.outcome, run.finished_at) == (Stage.FINISHED, Outcome.SUCCEEDED, 9.0)
    assert [line.stage for line in run.history] == [Stage.STARTING, Stage.RUNNING, Stage.FINISHED]
    assert run.attempts[-1].ended_at == 9.0


@pytest.mark.parametrize(
    ("facts", "obstacle", "obstacle_to_extend"),
    [
        ({"stage": "queued"}, "active", "active"),
        ({"stage": "stopping"}, "active", "active"),
        ({"stage": "paused", "checkpoint_step": None}, None, None),
        ({"outcome": "failed"}, None, None),
        ({"outcome": "cancelled"}, None, None),
        ({"outcome": "succeeded"}, "succeeded", None),
        ({"outcome": "rejected"}, "no_checkpoint", "no_checkpoint"),
        ({"outcome": "lost", "checkpoint_step": None}, "no_checkpoint", "no_checkpoint"),
        ({"outcome": "failed", "kind": "policy_eval"}, "no_checkpoint", "no_checkpoint"),
        ({"outcome": "failed", "is_attached": True}, "attached", "attached"),
    ],
)
def test_what_keeps_a_run_from_being_resumed(
    facts: dict[str, Any], obstacle: str | None, obstacle_to_extend: str | None
) -> None:
    """R2.4: the daemon, the command line and the window decide by the same rule."""
    run = RunView(**{**record(stage="finished").model_dump(), "run_dir": "", "checkpoint_step": 100, **facts})
    has_checkpoint = run.checkpoint_step is not None
    assert run.find_resume_obstacle(has_checkpoint, is_extended=False) == obstacle
    assert run.find_resume_obstacle(has_checkpoint, is_extended=True) == obstacle_to_extend
    assert (run.can_resume(), run.can_resume(is_extended=True)) == (not obstacle, not obstacle_to_extend)


def test_the_end_of_an_attached_run_is_what_its_program_or_its_keeper_says() -> None:
    """Its log is of the process that waits for it, and empty."""
    attached = running(is_attached=True)
    failed = life.FinishReported(at=8.0, final_report=FinalReport(outcome="failed", reason="KeyError: 'a'"))
    assert ending(life.advance(attached, failed), code=1).reason == "KeyError: 'a'"
    assert ending(attached, code=1, last_words="Process 7 ended.").reason == "Process 7 ended."
    assert ending(attached, signal=9).reason == "Killed by signal 9 (SIGKILL)."
    interrupted = life.FinishReported(at=8.0, final_report=FinalReport(outcome="stopped", reason="Ctrl-C"))
    assert ending(life.advance(attached, interrupted), code=0).reason == "Ctrl-C"


def test_events_that_do_not_fit_the_state_are_ignored() -> None:
    finished = ending(running(), code=0)
    happenings: list[life.LifecycleEvent] = [
        life.Paused(at=1.0),
        life.StopRequested(at=1.0),
        life.KeeperLost(at=1.0),
        life.Ended(at=1.0, exited=exited(code=1), log_path=""),
        life.HandshakeReceived(at=1.0, capabilities=(), resumed_from=None),
        life.StartFailed(at=1.0, reason=""),
    ]
    for happening in happenings:
        assert life.advance(finished, happening) is finished


def test_a_warning_is_added_to_the_history_once_and_their_number_is_limited() -> None:
    warned = life.advance(running(), life.WarningReported(at=4.0, text="Mind the gap."))
    assert (warned.stage, warned.history[-1].message) == (Stage.RUNNING, "Warning: Mind the gap.")
    assert life.advance(warned, life.WarningReported(at=5.0, text="Mind the gap.")) is warned
    withdrawn = life.advance(warned, life.WarningReported(at=5.0, text="Mind the gap.", is_withdrawn=True))
    assert withdrawn.history == running().history
    for number in range(300):
        warned = life.advance(warned, life.WarningReported(at=6.0, text=f"Warning {number}"))
    assert len(warned.history) == 100
    assert ending(warned, code=0).history[-1].stage == Stage.FINISHED


def test_repeated_events_give_the_same_history() -> None:
    happenings: list[life.LifecycleEvent] = [
        life.Dispatched(at=2.0, attempt=attempt()),
        life.KeeperUp(at=2.1, keeper=PROCESS),
        life.WorkerUp(at=2.2, worker=PROCESS),
        life.HandshakeReceived(at=3.0, capabilities=(), resumed_from=None),
        life.Paused(at=4.0),
        life.Unpaused(at=5.0),
        life.StopRequested(at=6.0),
        life.FinishReported(at=7.0, final_report=FinalReport(outcome="stopped")),
        life.Ended(at=8.0, exited=exited(code=0), log_path=""),
    ]
    once = twice = record()
    for happening in happenings:
        once = life.advance(once, happening)
        twice = life.advance(life.advance(twice, happening), happening)
    assert once == twice
    assert once.outcome is Outcome.CANCELLED


def test_a_queued_run_is_cancelled_at_once() -> None:
    run = life.advance(record(), life.StopRequested(at=2.0))
    assert (run.stage, run.outcome, run.attempts) == (Stage.FINISHED, Outcome.CANCELLED, ())


@pytest.mark.parametrize(
    ("facts", "outcome", "said"),
    [
        ({"code": 3, "last_words": "boom"}, Outcome.FAILED, 'exit code 3. Last words: "boom". Full log: /there'),
        ({"signal": 9}, Outcome.FAILED, "signal 9 (SIGKILL)"),
        ({"signal": 11}, Outcome.FAILED, "SIGSEGV"),
        ({"code": 0, "cause": "time_limit", "limit": 60.0}, Outcome.FAILED, "time limit of 60 s"),
        ({"signal": 9, "cause": "memory_limit", "limit": 64.0}, Outcome.FAILED, "Out of memory"),
        ({"code": 0, "cause": "stop"}, Outcome.CANCELLED, "on request"),
        ({"signal": 15, "cause": "keeper_terminated"}, Outcome.CANCELLED, "keeper"),
    ],
)
def test_an_end_has_its_cause_in_one_sentence(facts: dict[str, Any], outcome: Outcome, said: str) -> None:
    run = ending(running(), **facts)
    assert run.outcome is outcome
    assert run.reason is not None
    assert said in run.reason


def test_a_worker_that_refuses_its_config_is_rejected_not_failed() -> None:
    farewell = life.FinishReported(at=4.0, final_report=FinalReport(outcome="rejected", reason="No such thing."))
    run = ending(life.advance(running(), farewell), code=2)
    assert (run.outcome, run.reason) == (Outcome.REJECTED, "No such thing.")


def test_a_run_that_had_finished_before_the_stop_has_succeeded() -> None:
    stopping = life.advance(running(), life.StopRequested(at=4.0))
    done = life.advance(stopping, life.FinishReported(at=5.0, final_report=FinalReport(outcome="succeeded")))
    assert ending(done, code=0).outcome is Outcome.SUCCEEDED


def test_resuming_queues_the_same_run_again_and_forgets_its_end() -> None:
    run = life.advance(ending(running(total_timesteps=10), code=0), life.Requeued(at=11.0, total_timesteps=20))
    assert (run.stage, run.outcome, run.finished_at, run.is_resume) == (Stage.QUEUED, None, None, True)
    assert run.total_timesteps == 20
    again = life.advance(run, life.Dispatched(at=12.0, attempt=attempt(2)))
    assert [one.number for one in again.attempts] == [1, 2]
    assert again.is_resume is False


def test_time_in_which_a_run_was_over_queued_or_paused_is_not_running_time() -> None:
    assert record().idle_seconds(now=50.0) == 0.0, "it was never started"
    run = running()
    assert run.idle_seconds(now=50.0) == 0.0
    paused = life.advance(life.advance(run, life.Paused(at=4.0)), life.Unpaused(at=6.5))
    assert paused.idle_seconds(now=50.0) == 2.5
    over = ending(paused, code=0)
    assert over.idle_seconds(now=50.0) == 2.5, "it does not grow once the run is over"
    queued = life.advance(over, life.Requeued(at=11.0, total_timesteps=20))
    assert queued.idle_seconds(now=11.5) == 5.0
    again = ending(life.advance(queued, life.Dispatched(at=12.0, attempt=attempt(2))), code=0)
    assert again.idle_seconds(now=50.0) == 5.5
    view = RunView(**{**again.model_dump(), "finished_at": 14.0, "run_dir": "/nowhere", "idle_s": 5.5})
    assert view.active_s == 6.5


def test_a_failed_start_is_queued_again() -> None:
    starting = life.advance(record(is_resume=True), life.Dispatched(at=2.0, attempt=attempt(is_resume=True)))
    run = life.advance(starting, life.NeverStarted(at=3.0))
    assert (run.stage, run.attempts, run.is_resume) == (Stage.QUEUED, (), True)


def test_a_failed_start_is_not_repeated_after_a_stop() -> None:
    starting = life.advance(record(), life.Dispatched(at=2.0, attempt=attempt()))
    run = life.advance(life.advance(starting, life.StopRequested(at=3.0)), life.NeverStarted(at=4.0))
    assert (run.stage, run.outcome, run.finished_at) == (Stage.FINISHED, Outcome.CANCELLED, 4.0)
