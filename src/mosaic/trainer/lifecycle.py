"""The life of a run as one table. Pure: a record and an event in, a record out.

queued → starting → running ⇄ paused → stopping → finished(outcome)

An event that does not fit the stage changes nothing, so that repeating one after a crash is harmless.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mosaic.contracts.events import Exited
from mosaic.contracts.names import CONTRACT_VERSION
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.contracts.states import Attempt, FinalReport, HistoryEntry, Outcome, RunRecord, Stage


@dataclass(frozen=True)
class LifecycleEvent:
    at: float


@dataclass(frozen=True)
class Dispatched(LifecycleEvent):
    """A keeper is being started for it."""

    attempt: Attempt


@dataclass(frozen=True)
class KeeperUp(LifecycleEvent):
    keeper: ProcessIdentity


@dataclass(frozen=True)
class WorkerUp(LifecycleEvent):
    worker: ProcessIdentity


@dataclass(frozen=True)
class HandshakeReceived(LifecycleEvent):
    """The worker's handshake."""

    capabilities: tuple[str, ...]
    resumed_from: int | None
    version: str | None = None
    contract: int = CONTRACT_VERSION


@dataclass(frozen=True)
class EnvironmentReported(LifecycleEvent):
    """A script reported which environment it created, and with which seed."""

    env_id: str | None
    seed: int | None


@dataclass(frozen=True)
class WarningReported(LifecycleEvent):
    text: str
    is_withdrawn: bool = False


class Paused(LifecycleEvent):
    pass


class Unpaused(LifecycleEvent):
    pass


class StopRequested(LifecycleEvent):
    pass


@dataclass(frozen=True)
class CheckpointWaited(LifecycleEvent):
    """Its keeper does not kill it yet, as it is writing a checkpoint."""

    limit_s: float


@dataclass(frozen=True)
class FinishReported(LifecycleEvent):
    final_report: FinalReport


@dataclass(frozen=True)
class StartFailed(LifecycleEvent):
    reason: str


@dataclass(frozen=True)
class Ended(LifecycleEvent):
    """The keeper saw the whole tree end."""

    exited: Exited
    log_path: str
    """Where the full log is."""


@dataclass(frozen=True)
class KeeperLost(LifecycleEvent):
    """The keeper ended without a report."""

    is_reboot: bool = False
    survivors: tuple[int, ...] = ()
    """Processes of the run that could not be killed."""
    reason: str = ""
    """What its executor knows of the end, as a sentence."""
    original: str = ""
    """The run folder that the keeper works in, where this one is a copy of it."""


@dataclass(frozen=True)
class Moved(LifecycleEvent):
    """Its workspace was moved while it ran, and its keeper works in the folder where it is now."""

    folder: str


@dataclass(frozen=True)
class JobQueued(LifecycleEvent):
    """A cluster has accepted the attempt as a job, which may wait there."""

    job: str


@dataclass(frozen=True)
class Placed(LifecycleEvent):
    """A cluster has given the attempt a machine."""

    node: str
    job: str = ""


@dataclass(frozen=True)
class NodeLost(LifecycleEvent):
    """The machine of a cluster that it ran on was lost, or took its processes away: it continues on another."""

    reason: str
    """What was lost, as the beginning of a sentence: `Node 10.0.0.3 was lost`."""
    checkpoint_step: int | None
    """Of the newest checkpoint that the daemon has; None: none."""
    is_planned: bool = False
    """Whether the cluster took the machine away on purpose, as it does at a job's time limit: not the run's doing."""


@dataclass(frozen=True)
class NeverStarted(LifecycleEvent):
    """No keeper was started, and none will be: the run is queued again, unless a stop was requested since."""

    reason: str = "The trainer ended before it was started"


@dataclass(frozen=True)
class Requeued(LifecycleEvent):
    """Another attempt was requested."""

    total_timesteps: int | None


def advance(record: RunRecord, event: LifecycleEvent) -> RunRecord:
    move = _TRANSITIONS.get((record.stage, type(event)))
    return record if move is None else move(record, event)


# --- the moves


def _with_history_entry(record: RunRecord, at: float, stage: Stage, message: str, **changes: Any) -> RunRecord:
    line = HistoryEntry(at=at, stage=stage, message=message)
    return record.model_copy(update={"stage": stage, "history": (*record.history, line), **changes})


def _last_attempt(record: RunRecord, **changes: Any) -> tuple[Attempt, ...]:
    if not record.attempts:
        return ()
    return (*record.attempts[:-1], record.attempts[-1].model_copy(update=changes))


def _dispatch(record: RunRecord, event: Dispatched) -> RunRecord:
    attempt = event.attempt
    number = f", attempt {attempt.number}" if attempt.number > 1 else ""
    return _with_history_entry(
        record,
        event.at,
        Stage.STARTING,
        f"It is being started{number}.",
        attempts=(*record.attempts, attempt),
        started_at=record.started_at or event.at,
        final_report=None,
        checkpoint_limit_s=None,
        is_resume=False,
    )


def _set_keeper(record: RunRecord, event: KeeperUp) -> RunRecord:
    if record.attempts[-1].keeper is not None:
        return record  # its keeper reports once, and first; a later report is the worker's
    return record.model_copy(update={"attempts": _last_attempt(record, keeper=event.keeper)})


def _set_worker(record: RunRecord, event: WorkerUp) -> RunRecord:
    return record.model_copy(update={"attempts": _last_attempt(record, worker=event.worker)})


def refuse_contract(worker: str, version: str | None, contract: int) -> str | None:
    """Return why a worker with another version of the contract is refused; None for ours."""
    if contract == CONTRACT_VERSION:
        return None
    return (
        f"The worker {worker!r} {version or ''} writes version {contract} of the journal; this trainer reads version "
        f"{CONTRACT_VERSION}. Install versions that fit together."
    )


def _accept_handshake(record: RunRecord, event: HandshakeReceived) -> RunRecord:
    refusal = refuse_contract(record.worker, event.version, event.contract)
    if refusal is not None:
        report = FinalReport(outcome="rejected", reason=refusal)
        return _with_history_entry(
            record, event.at, Stage.STOPPING, refusal, final_report=report, stop_requested_at=event.at
        )
    message = "The worker is ready." if event.resumed_from is None else f"Resumed from step {event.resumed_from:,}."
    known = {"capabilities": event.capabilities, "worker_version": event.version}
    return _with_history_entry(record, event.at, Stage.RUNNING, message, **known)


def _set_environment(record: RunRecord, event: EnvironmentReported) -> RunRecord:
    """Values from the config take precedence."""
    changes: dict[str, Any] = {"env_id": record.env_id or event.env_id}
    if record.seed is None and event.seed is not None:
        changes["seed"] = event.seed
    return record.model_copy(update=changes)


def _add_warning(record: RunRecord, event: WarningReported) -> RunRecord:
    message = f"Warning: {event.text}"
    if event.is_withdrawn:
        return record.model_copy(update={"history": tuple(line for line in record.history if line.message != message)})
    if len(record.history) >= _MAX_HISTORY or any(entry.message == message for entry in record.history):
        return record
    return _with_history_entry(record, event.at, record.stage, message)


def _move_to(stage: Stage, message: str) -> Callable[[RunRecord, LifecycleEvent], RunRecord]:
    return lambda record, event: _with_history_entry(record, event.at, stage, message)


def _cancel_unstarted(record: RunRecord, event: StopRequested | NeverStarted) -> RunRecord:
    return _finish(record, event.at, Outcome.CANCELLED, "Cancelled before it was started.")


def _ask_to_stop(record: RunRecord, event: StopRequested) -> RunRecord:
    return _with_history_entry(record, event.at, Stage.STOPPING, "A stop was requested.", stop_requested_at=event.at)


def _await_checkpoint(record: RunRecord, event: CheckpointWaited) -> RunRecord:
    waiting = record.model_copy(update={"checkpoint_limit_s": event.limit_s})
    message = f"It is {waiting.checkpoint_wait}. Cancelled again, it is ended at once."
    return _with_history_entry(waiting, event.at, record.stage, message)


def _store_final_report(record: RunRecord, event: FinishReported) -> RunRecord:
    if record.final_report is not None and record.final_report.outcome == "rejected":
        return record  # it was refused, whatever it reports when it is stopped
    return record.model_copy(update={"final_report": event.final_report})


def _fail_to_start(record: RunRecord, event: StartFailed) -> RunRecord:
    return _finish(record, event.at, Outcome.FAILED, f"The worker could not be started: {event.reason}")


def _end(record: RunRecord, event: Ended) -> RunRecord:
    if event.exited.cause == "lifeline_lost":
        return record  # its executor reports what was lost, and the run continues elsewhere
    outcome, reason = classify_exit(record, event.exited, event.log_path)
    return _finish(record, event.at, outcome, reason)


def _mark_lost(record: RunRecord, event: KeeperLost) -> RunRecord:
    if event.original:
        reason = f"This is a copy, made while it was running; the run itself continues in {event.original}"
    elif event.reason:
        reason = f"{event.reason} {_resume_hint(record)}"
    elif event.is_reboot:
        reason = f"The machine was restarted while it ran. {_resume_hint(record)}"
    elif event.survivors:
        pids = ", ".join(map(str, event.survivors))
        reason = f"Its keeper disappeared, so its end was not recorded; these processes could not be stopped: {pids}."
    else:
        reason = "Its keeper disappeared, so its end was not recorded; its remaining processes were stopped."
    return _finish(record, event.at, Outcome.LOST, reason)


def _move(record: RunRecord, event: Moved) -> RunRecord:
    message = f"Its workspace was moved from {record.attempts[-1].folder}; it continues here."
    attempts = _last_attempt(record, folder=event.folder)
    return _with_history_entry(record, event.at, record.stage, message, attempts=attempts)


def _set_job(record: RunRecord, event: JobQueued) -> RunRecord:
    message = f"It waits in the cluster's queue, job {event.job}."
    return _with_history_entry(record, event.at, record.stage, message, attempts=_last_attempt(record, job=event.job))


def _set_node(record: RunRecord, event: Placed) -> RunRecord:
    return record.model_copy(update={"attempts": _last_attempt(record, node=event.node, job=event.job)})


def _continue_elsewhere(record: RunRecord, event: NodeLost) -> RunRecord:
    # One that loses nothing may happen any number of times.
    losses = record.node_losses + (not event.is_planned or event.checkpoint_step is None)
    if losses > record.node_losses and losses >= MAX_NODE_LOSSES:
        reason = f"{event.reason}, the {losses}th time; it is not started again. {_resume_hint(record)}"
        return _finish(record, event.at, Outcome.LOST, reason)
    step = event.checkpoint_step
    plan = "it starts again" if step is None else f"it continues from step {step:,}"
    return _with_history_entry(
        record,
        event.at,
        Stage.QUEUED,
        f"{event.reason}; {plan}.",
        attempts=_last_attempt(record, ended_at=event.at),
        final_report=None,
        is_resume=step is not None,
        node_losses=losses,
    )


def _cancel_lost(record: RunRecord, event: NodeLost) -> RunRecord:
    return _finish(record, event.at, Outcome.CANCELLED, f"Cancelled on request. {event.reason} before it had stopped.")


def _requeue(record: RunRecord, event: Requeued) -> RunRecord:
    total = event.total_timesteps or record.total_timesteps
    extended = f", to {event.total_timesteps:,} steps" if event.total_timesteps else ""
    return _with_history_entry(
        record,
        event.at,
        Stage.QUEUED,
        f"It will continue from its last good checkpoint{extended}.",
        outcome=None,
        reason=None,
        finished_at=None,
        stop_requested_at=None,
        final_report=None,
        is_resume=True,
        node_losses=0,
        queued_at=event.at,
        total_timesteps=total,
    )


def _return_to_queue(record: RunRecord, event: NeverStarted) -> RunRecord:
    return _with_history_entry(
        record,
        event.at,
        Stage.QUEUED,
        f"{event.reason}; it waits again.",
        attempts=record.attempts[:-1],
        is_resume=record.attempts[-1].is_resume,
    )


def _finish(record: RunRecord, at: float, outcome: Outcome, reason: str) -> RunRecord:
    return _with_history_entry(
        record,
        at,
        Stage.FINISHED,
        reason if reason.lower().startswith(outcome.value) else f"{outcome.value.capitalize()}: {reason}",
        outcome=outcome,
        reason=reason,
        finished_at=at,
        checkpoint_limit_s=None,
        attempts=_last_attempt(record, ended_at=at) if record.holds_slot else record.attempts,
    )


def classify_exit(record: RunRecord, exited: Exited, log_path: str) -> tuple[Outcome, str]:
    """How it ended, and why in one sentence. A limit and a stop come first: they are why the process ended."""
    resume_hint, report = _resume_hint(record), record.final_report
    note = f" {report.reason}" if report is not None and report.outcome == "stopped" and report.reason else ""
    if exited.cause == "time_limit":
        return Outcome.FAILED, f"It reached its time limit of {exited.limit:g} s and was stopped.{note} {resume_hint}"
    if exited.cause == "memory_limit":
        used = f"{exited.peak_rss_mb:,.0f} MB of the {exited.limit:,.0f} MB it was allowed"
        return Outcome.FAILED, f"Out of memory: it took {used}. {resume_hint}"
    if exited.code == 0 and report is not None and report.outcome == "succeeded":
        return Outcome.SUCCEEDED, report.reason or "It completed all its steps."
    if report is not None and report.outcome == "rejected":
        return Outcome.REJECTED, report.reason or "The worker refused its config."
    if record.stop_requested_at is not None or exited.cause == "stop":
        how = " It did not obey in time and was killed." if exited.signal == signal.SIGKILL else ""
        return Outcome.CANCELLED, f"Cancelled on request.{how}{note}"
    if exited.cause == "keeper_terminated":
        return Outcome.CANCELLED, "Its keeper was terminated."
    log = "" if record.is_attached else f" Full log: {log_path}"  # the program's own output is elsewhere
    words = f' Last words: "{exited.last_words}".' if exited.last_words else ""
    if exited.signal is not None:
        name = _signal_name(exited.signal)
        return Outcome.FAILED, f"Killed by signal {exited.signal} ({name}).{words}{log}"
    if exited.code:
        message = report.reason if report is not None else exited.last_words if record.is_attached else None
        return Outcome.FAILED, f"{message or f'Ended with exit code {exited.code}.{words}'}{log}"
    if report is not None and report.outcome == "stopped":
        own_reason = report.reason if record.is_attached else None
        return Outcome.CANCELLED, own_reason or f"It was stopped from outside.{note}"
    left = exited.ended_leftovers
    ended = f" {left} process{'es' if left > 1 else ''} that it left running had to be ended." if left else ""
    return Outcome.SUCCEEDED, f"It ended without an error.{ended}"


def failure_cause(event: LifecycleEvent) -> str:
    """Return one of a few words for why a run ended, for metrics."""
    if isinstance(event, StartFailed):
        return "not_started"
    if not isinstance(event, Ended):
        return "lost"
    if event.exited.cause in ("time_limit", "memory_limit"):
        return str(event.exited.cause)
    return "exit_code" if event.exited.signal is None else "signal"


def _resume_hint(record: RunRecord) -> str:
    return f"If it saved a checkpoint, resume from there: mosaic resume {record.run_id}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


MAX_NODE_LOSSES = 5
"""After this number of losses, a run is not started again by itself: it may be what takes its nodes down."""
_MAX_HISTORY = 100
"""Further warnings are in the run's events only."""
_LIVE_STAGES = (Stage.STARTING, Stage.RUNNING, Stage.PAUSED)
_SLOT_STAGES = (*_LIVE_STAGES, Stage.STOPPING)
_TABLE: tuple[tuple[type[LifecycleEvent], Callable[[RunRecord, Any], RunRecord], tuple[Stage, ...]], ...] = (
    (Dispatched, _dispatch, (Stage.QUEUED,)),
    (KeeperUp, _set_keeper, _SLOT_STAGES),
    (WorkerUp, _set_worker, _SLOT_STAGES),
    (HandshakeReceived, _accept_handshake, (Stage.STARTING,)),
    (EnvironmentReported, _set_environment, _SLOT_STAGES),
    (WarningReported, _add_warning, _SLOT_STAGES),
    (Paused, _move_to(Stage.PAUSED, "It was paused."), (Stage.RUNNING,)),
    (Unpaused, _move_to(Stage.RUNNING, "Resumed."), (Stage.PAUSED,)),
    (StopRequested, _cancel_unstarted, (Stage.QUEUED,)),
    (StopRequested, _ask_to_stop, _LIVE_STAGES),
    (CheckpointWaited, _await_checkpoint, _SLOT_STAGES),
    (FinishReported, _store_final_report, _SLOT_STAGES),
    (StartFailed, _fail_to_start, (Stage.QUEUED, *_SLOT_STAGES)),
    (Ended, _end, _SLOT_STAGES),
    (KeeperLost, _mark_lost, _SLOT_STAGES),
    (Moved, _move, _SLOT_STAGES),
    (JobQueued, _set_job, (Stage.STARTING,)),
    (Placed, _set_node, _SLOT_STAGES),
    (NodeLost, _continue_elsewhere, _LIVE_STAGES),
    (NodeLost, _cancel_lost, (Stage.STOPPING,)),
    (NeverStarted, _return_to_queue, (Stage.STARTING,)),
    (NeverStarted, _cancel_unstarted, (Stage.STOPPING,)),
    (Requeued, _requeue, (Stage.FINISHED,)),
)
"""Which event moves a run, how, and in which stages."""
_TRANSITIONS = {(stage, event): move for event, move, stages in _TABLE for stage in stages}
