"""What the files of an attempt and the state of its Slurm job mean for the run. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mosaic.base.formatting import capitalize_first
from mosaic.contracts.states import RunRecord, Stage
from mosaic.trainer.executors.local import GRACE_S
from mosaic.trainer.executors.slurm.job_files import ENDED_BY_KEEPER, ENDED_BY_NOTICE, TaskReport
from mosaic.trainer.lifecycle import (
    JobQueued,
    KeeperLost,
    LifecycleEvent,
    NeverStarted,
    NodeLost,
    Placed,
    StartFailed,
)

GONE = "GONE"
"""The state of a job of submitit's local executor that has ended."""
_PLANNED = ("PREEMPTED", "TIMEOUT")
_NODE_STATES = ("NODE_FAIL", "BOOT_FAIL", "REVOKED", GONE)
FINAL_STATES = (*_PLANNED, *_NODE_STATES, "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "OUT_OF_MEMORY")
STATE_TIMEOUT_S = 90.0
"""How long Slurm's accounting may take to say why a job has ended."""
SURVIVAL_S = GRACE_S["stop"] + GRACE_S["term"] + 3.0
"""How long a keeper whose job was killed may still write to the run folder: not every cluster kills all processes."""


@dataclass(frozen=True)
class JobFacts:
    """What is known of the job of an attempt. Times are seconds of one clock."""

    is_offered: bool
    """Whether no job has taken the attempt yet."""
    report: TaskReport | None = None
    job_id: str = ""
    state: str = ""
    """Slurm's word for it, such as `PENDING`; empty where it is not known."""
    is_submitting: bool = False
    """Whether Slurm has not answered yet."""
    refusal: str = ""
    """Why Slurm did not accept it."""
    is_unreachable: bool = False
    """Whether that was because Slurm did not answer."""
    has_keeper_exited: bool = False
    """Whether the keeper has recorded its end."""
    checkpoint_step: int | None = None
    claimed_s: float = 0.0
    """Since when a job has the attempt without having reported."""
    ended_s: float = 0.0
    """Since when it is known that the job is over."""


class JobAction(NamedTuple):
    event: LifecycleEvent
    is_withdrawal: bool = False
    """Whether the event only holds if the offer can be withdrawn, so that no job takes the attempt."""


def is_final(state: str) -> bool:
    return state in FINAL_STATES


def find_action(record: RunRecord, facts: JobFacts, at: float, log_end: str) -> JobAction | None:
    """Return what has happened that the record does not show; None: nothing. `log_end`: the job's last words."""
    if facts.report is not None:
        return _find_reported(record, facts, facts.report, at)
    if facts.refusal:
        reason = f"Slurm did not accept the job: {facts.refusal}"
        return JobAction(NeverStarted(at, reason) if facts.is_unreachable else StartFailed(at, reason), True)
    if record.stage is Stage.STOPPING and facts.is_offered:
        return JobAction(NeverStarted(at), True)
    if facts.is_submitting:
        return None
    if not facts.job_id and facts.is_offered:  # of a daemon that ended before Slurm answered
        return JobAction(NeverStarted(at), True)
    if facts.is_offered and is_final(facts.state):
        return JobAction(_end_unstarted(facts, at, log_end), True)
    if facts.is_offered:
        is_news = not record.attempts[-1].job and record.stage is Stage.STARTING
        return JobAction(JobQueued(at, facts.job_id)) if is_news else None
    is_over = is_final(facts.state) and facts.ended_s > SURVIVAL_S
    if is_over or facts.claimed_s > STATE_TIMEOUT_S:
        reason = capitalize_first(f"{_name_job(facts)} has not reported that it started the run")
        return JobAction(_lose_node(facts, at, reason))
    return None


def _find_reported(record: RunRecord, facts: JobFacts, report: TaskReport, at: float) -> JobAction | None:
    if report.refusal is not None:
        return JobAction(StartFailed(at, report.refusal))
    if not record.attempts[-1].node:
        return JobAction(Placed(at, report.node, report.job_id))
    if report.ended_by == ENDED_BY_KEEPER:
        return JobAction(KeeperLost(at))
    if report.ended_by == ENDED_BY_NOTICE:
        reason = f"Slurm ended {_name_job(facts)} at its time limit, or to run another job"
        return JobAction(_lose_node(facts, at, reason, is_planned=True))
    if is_final(facts.state):
        has_survived = report.ended_by is None and not facts.has_keeper_exited and facts.ended_s <= SURVIVAL_S
        return None if has_survived else JobAction(_end_started(facts, at))
    if report.ended_by is not None and facts.ended_s > STATE_TIMEOUT_S:
        return JobAction(KeeperLost(at, reason=capitalize_first(f"{_name_job(facts)} was terminated.")))
    return None


def _end_started(facts: JobFacts, at: float) -> LifecycleEvent:
    job, state = _name_job(facts), facts.state
    if state == "PREEMPTED":
        return _lose_node(facts, at, f"Slurm preempted {job}", is_planned=True)
    if state == "TIMEOUT":
        return _lose_node(facts, at, f"The time limit of {job} was reached", is_planned=True)
    if state in _NODE_STATES:
        return _lose_node(facts, at, f"Slurm lost {job} ({state})")
    reasons = {
        "CANCELLED": f"In Slurm, {job} was cancelled.",
        "OUT_OF_MEMORY": f"Slurm killed {job}, as it took more memory than it was allowed.",
    }
    return KeeperLost(at, reason=reasons.get(state, f"In Slurm, {job} ended ({state}) before the end of the run."))


def _end_unstarted(facts: JobFacts, at: float, log_end: str) -> LifecycleEvent:
    job, state = _name_job(facts), facts.state
    if state in (*_PLANNED, *_NODE_STATES):
        return NeverStarted(at, f"Slurm ended {job} ({state}) before the run was started")
    if state == "CANCELLED":
        return KeeperLost(at, reason=f"In Slurm, {job} was cancelled before the run was started.")
    return StartFailed(at, f"{job} ended ({state}) before it could start the run. {log_end}")


def _lose_node(facts: JobFacts, at: float, reason: str, is_planned: bool = False) -> NodeLost:
    return NodeLost(at, reason, facts.checkpoint_step, is_planned)


def _name_job(facts: JobFacts) -> str:
    if facts.report is None:
        return f"job {facts.job_id}" if facts.job_id else "its job"
    return f"job {facts.report.job_id} on {facts.report.node}"
