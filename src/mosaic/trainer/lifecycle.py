"""The life of a run as one table. Pure: a record and a happening in, a record out.

queued → starting → running ⇄ paused → stopping → finished(outcome)

A happening that does not fit the stage changes nothing, so that repeating one after a crash is harmless.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from mosaic.contracts.events import Exited
from mosaic.contracts.processes import ProcessIdentity
from mosaic.contracts.states import Attempt, Farewell, Outcome, RunRecord, Stage, StoryLine


@dataclass(frozen=True)
class Happening:
    at: float


@dataclass(frozen=True)
class Dispatched(Happening):
    """A keeper is being started for it."""

    attempt: Attempt


@dataclass(frozen=True)
class KeeperUp(Happening):
    keeper: ProcessIdentity


@dataclass(frozen=True)
class WorkerUp(Happening):
    worker: ProcessIdentity


@dataclass(frozen=True)
class Greeted(Happening):
    """The worker's handshake."""

    capabilities: tuple[str, ...]
    resumed_from: int | None


@dataclass(frozen=True)
class EnvironmentTold(Happening):
    """A script said which environment it made, and with which seed."""

    env_id: str | None
    seed: int | None


@dataclass(frozen=True)
class Paused(Happening):
    pass


@dataclass(frozen=True)
class Unpaused(Happening):
    pass


@dataclass(frozen=True)
class StopAsked(Happening):
    pass


@dataclass(frozen=True)
class SaidFarewell(Happening):
    farewell: Farewell


@dataclass(frozen=True)
class NotStarted(Happening):
    reason: str


@dataclass(frozen=True)
class Ended(Happening):
    """The keeper saw the whole tree end."""

    exited: Exited
    log: str
    """Where the full log is."""


@dataclass(frozen=True)
class KeeperLost(Happening):
    pass


@dataclass(frozen=True)
class NeverStarted(Happening):
    """We died before its keeper lived: it waits again, as if nothing had happened."""


@dataclass(frozen=True)
class Requeued(Happening):
    """A further attempt was asked for."""

    total_timesteps: int | None


def advance(record: RunRecord, happening: Happening) -> RunRecord:
    move = _TABLE.get((record.stage, type(happening)))
    return record if move is None else move(record, happening)


# --- the moves


def _told(record: RunRecord, at: float, stage: Stage, said: str, **changes: Any) -> RunRecord:
    line = StoryLine(at=at, stage=stage, said=said)
    return record.model_copy(update={"stage": stage, "story": (*record.story, line), **changes})


def _last_attempt(record: RunRecord, **changes: Any) -> tuple[Attempt, ...]:
    if not record.attempts:
        return ()
    return (*record.attempts[:-1], record.attempts[-1].model_copy(update=changes))


def _dispatch(record: RunRecord, happening: Dispatched) -> RunRecord:
    attempt = happening.attempt
    number = f", attempt {attempt.number}" if attempt.number > 1 else ""
    return _told(
        record,
        happening.at,
        Stage.STARTING,
        f"It is being started{number}.",
        attempts=(*record.attempts, attempt),
        started_at=record.started_at or happening.at,
        farewell=None,
        is_resume=False,
    )


def _keeper_up(record: RunRecord, happening: KeeperUp) -> RunRecord:
    return record.model_copy(update={"attempts": _last_attempt(record, keeper=happening.keeper)})


def _worker_up(record: RunRecord, happening: WorkerUp) -> RunRecord:
    return record.model_copy(update={"attempts": _last_attempt(record, worker=happening.worker)})


def _greet(record: RunRecord, happening: Greeted) -> RunRecord:
    said = (
        "The worker is ready."
        if happening.resumed_from is None
        else f"It goes on from step {happening.resumed_from:,}."
    )
    return _told(record, happening.at, Stage.RUNNING, said, capabilities=happening.capabilities)


def _tell_environment(record: RunRecord, happening: EnvironmentTold) -> RunRecord:
    """What the config said stands."""
    changes: dict[str, Any] = {"env_id": record.env_id or happening.env_id}
    if record.seed is None and happening.seed is not None:
        changes["seed"] = happening.seed
    return record.model_copy(update=changes)


def _pause(record: RunRecord, happening: Paused) -> RunRecord:
    return _told(record, happening.at, Stage.PAUSED, "It was paused.")


def _unpause(record: RunRecord, happening: Unpaused) -> RunRecord:
    return _told(record, happening.at, Stage.RUNNING, "It goes on.")


def _cancel_queued(record: RunRecord, happening: StopAsked) -> RunRecord:
    return _finish(record, happening.at, Outcome.CANCELLED, "Cancelled before it was started.")


def _ask_to_stop(record: RunRecord, happening: StopAsked) -> RunRecord:
    return _told(record, happening.at, Stage.STOPPING, "It was asked to stop.", stop_requested_at=happening.at)


def _farewell(record: RunRecord, happening: SaidFarewell) -> RunRecord:
    return record.model_copy(update={"farewell": happening.farewell})


def _fail_to_start(record: RunRecord, happening: NotStarted) -> RunRecord:
    return _finish(record, happening.at, Outcome.FAILED, f"The worker could not be started: {happening.reason}")


def _end(record: RunRecord, happening: Ended) -> RunRecord:
    outcome, reason = judged(record, happening.exited, happening.log)
    return _finish(record, happening.at, outcome, reason)


def _lose(record: RunRecord, happening: KeeperLost) -> RunRecord:
    reason = "Its keeper vanished, so nobody saw how it ended; what was left of it was stopped."
    return _finish(record, happening.at, Outcome.LOST, reason)


def _requeue(record: RunRecord, happening: Requeued) -> RunRecord:
    total = happening.total_timesteps or record.total_timesteps
    extended = f", to {happening.total_timesteps:,} steps" if happening.total_timesteps else ""
    return _told(
        record,
        happening.at,
        Stage.QUEUED,
        f"It is to go on from its last good checkpoint{extended}.",
        outcome=None,
        reason=None,
        finished_at=None,
        stop_requested_at=None,
        farewell=None,
        is_resume=True,
        queued_at=happening.at,
        total_timesteps=total,
    )


def _wait_again(record: RunRecord, happening: NeverStarted) -> RunRecord:
    return _told(
        record,
        happening.at,
        Stage.QUEUED,
        "The trainer ended before it was started; it waits again.",
        attempts=record.attempts[:-1],
        is_resume=record.attempts[-1].is_resume,
    )


def _finish(record: RunRecord, at: float, outcome: Outcome, reason: str) -> RunRecord:
    return _told(
        record,
        at,
        Stage.FINISHED,
        f"{outcome.value.capitalize()}: {reason}",
        outcome=outcome,
        reason=reason,
        finished_at=at,
        attempts=_last_attempt(record, ended_at=at) if record.holds_slot else record.attempts,
    )


def judged(record: RunRecord, exited: Exited, log: str) -> tuple[Outcome, str]:
    """How it ended, and why in one sentence. A limit and a stop come first: they are why the process ended."""
    if exited.cause == "time_limit":
        return Outcome.FAILED, f"It reached its time limit of {exited.limit:g} s and was stopped. {_resume(record)}"
    if exited.cause == "memory_limit":
        return (
            Outcome.FAILED,
            f"Out of memory: it took {exited.peak_rss_mb:,.0f} MB of the {exited.limit:,.0f} MB it was allowed. "
            f"{_resume(record)}",
        )
    farewell = record.farewell
    if exited.code == 0 and farewell is not None and farewell.outcome == "succeeded":
        return Outcome.SUCCEEDED, "It did what it was asked to do."
    if record.stop_requested_at is not None or exited.cause == "stop":
        how = " It did not obey in time and was killed." if exited.signal == signal.SIGKILL else ""
        return Outcome.CANCELLED, f"Cancelled on request.{how}"
    if farewell is not None and farewell.outcome == "rejected":
        return Outcome.REJECTED, farewell.reason or "The worker refused its config."
    if exited.cause == "keeper_terminated":
        return Outcome.CANCELLED, "Its keeper was told to end."
    words = f' Last words: "{exited.last_words}".' if exited.last_words else ""
    if exited.signal is not None:
        return Outcome.FAILED, f"Killed by signal {exited.signal} ({_name(exited.signal)}).{words} Full log: {log}"
    if exited.code:
        said = farewell.reason if farewell is not None and farewell.reason else ""
        return Outcome.FAILED, f"{said or f'Ended with exit code {exited.code}.{words}'} Full log: {log}"
    if farewell is not None and farewell.outcome == "stopped":
        return Outcome.CANCELLED, "It was stopped from outside."
    return Outcome.SUCCEEDED, "It ended without an error."


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _resume(record: RunRecord) -> str:
    return f"If it saved a checkpoint, it goes on from there: mosaic resume {record.run_id}"


_H = TypeVar("_H", bound=Happening)


def _rows(kind: type[_H], move: Callable[[RunRecord, _H], RunRecord], *stages: Stage) -> dict[Any, Any]:
    return {(stage, kind): move for stage in stages}


_UP = (Stage.STARTING, Stage.RUNNING, Stage.PAUSED)
_HELD = (*_UP, Stage.STOPPING)

_TABLE: dict[tuple[Stage, type[Happening]], Callable[[RunRecord, Any], RunRecord]] = {
    **_rows(Dispatched, _dispatch, Stage.QUEUED),
    **_rows(KeeperUp, _keeper_up, *_HELD),
    **_rows(WorkerUp, _worker_up, *_HELD),
    **_rows(Greeted, _greet, Stage.STARTING),
    **_rows(EnvironmentTold, _tell_environment, *_HELD),
    **_rows(Paused, _pause, Stage.RUNNING),
    **_rows(Unpaused, _unpause, Stage.PAUSED),
    **_rows(StopAsked, _cancel_queued, Stage.QUEUED),
    **_rows(StopAsked, _ask_to_stop, *_UP),
    **_rows(SaidFarewell, _farewell, *_HELD),
    **_rows(NotStarted, _fail_to_start, Stage.QUEUED, *_HELD),
    **_rows(Ended, _end, *_HELD),
    **_rows(KeeperLost, _lose, *_HELD),
    **_rows(NeverStarted, _wait_again, Stage.STARTING),
    **_rows(Requeued, _requeue, Stage.FINISHED),
}
