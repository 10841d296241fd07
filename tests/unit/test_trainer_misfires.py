"""A queue that waits where run after run fails at once."""

from __future__ import annotations

import pytest

from mosaic.contracts.options import RunKind
from mosaic.contracts.states import Attempt, Outcome, RunRecord, Stage
from mosaic.trainer.scheduler import MAX_FAST_FAILURES, FastFailureBreaker


def ended(outcome: Outcome, seconds: float, at: float = 100.0) -> RunRecord:
    attempt = Attempt(number=1, slot=1, started_at=at - seconds)
    return RunRecord(
        run_id=f"01K9{at:020.3f}".replace(".", "A"),
        kind=RunKind.TRAIN,
        stage=Stage.FINISHED,
        outcome=outcome,
        worker="cleanrl",
        submitted_at=1.0,
        queued_at=1.0,
        finished_at=at,
        attempts=(attempt,),
    )


def waiting(run_id: str) -> RunRecord:
    return RunRecord(run_id=run_id, kind=RunKind.TRAIN, stage=Stage.QUEUED, worker="c", submitted_at=1, queued_at=1)


def paused() -> FastFailureBreaker:
    misfires = FastFailureBreaker()
    failures = [ended(Outcome.FAILED, 1, 100.0 + number) for number in range(MAX_FAST_FAILURES)]
    assert [misfires.record_end(failure, [waiting("OLD")]) for failure in failures] == [False, False, True]
    return misfires


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.REJECTED, Outcome.LOST])
def test_the_third_fast_failure_pauses_the_queue(outcome: Outcome) -> None:
    misfires = FastFailureBreaker()
    assert [misfires.record_end(ended(outcome, 1), [waiting("OLD")]) for _ in range(4)] == [False, False, True, False]
    assert misfires.blocks_queue([waiting("OLD")])
    assert "mosaic daemon continue" in (misfires.pause_reason or "")


@pytest.mark.parametrize("between", [ended(Outcome.SUCCEEDED, 1), ended(Outcome.FAILED, 60)])
def test_a_success_or_late_failure_resets_the_count(between: RunRecord) -> None:
    misfires = FastFailureBreaker()
    for record in (ended(Outcome.FAILED, 1), ended(Outcome.FAILED, 1), between, ended(Outcome.FAILED, 1)):
        assert not misfires.record_end(record, [])


def test_a_cancelled_run_does_not_count() -> None:
    misfires = FastFailureBreaker()
    ends = [Outcome.FAILED, Outcome.FAILED, Outcome.CANCELLED, Outcome.FAILED]
    assert [misfires.record_end(ended(outcome, 1), []) for outcome in ends] == [False, False, False, True]


def test_a_run_submitted_to_an_empty_queue_starts() -> None:
    misfires = paused()
    assert not misfires.blocks_queue([waiting("NEW")])
    assert misfires.pause_reason is None


def test_a_pause_keeps_its_reason_when_another_run_ends_well() -> None:
    """F51: the runs that failed are forgotten, the pause is not."""
    misfires = paused()
    reason = misfires.pause_reason
    assert not misfires.record_end(ended(Outcome.SUCCEEDED, 60), [waiting("OLD")])
    assert misfires.blocks_queue([waiting("OLD")])
    assert misfires.pause_reason == reason
    misfires.clear()
    assert misfires.pause_reason is None


def test_runs_submitted_to_a_paused_queue_wait_until_it_is_resumed() -> None:
    misfires = paused()
    assert misfires.blocks_queue([waiting("OLD"), waiting("NEW")])
    misfires.clear()
    assert not misfires.blocks_queue([waiting("OLD"), waiting("NEW")])
