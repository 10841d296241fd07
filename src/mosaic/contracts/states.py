"""What is known of a run: its stage, its outcome, its attempts and its story."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from mosaic.contracts.model import Contract, ProcessFacts
from mosaic.contracts.run_kind import RunKind


class Stage(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    FINISHED = "finished"


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    """Refused by the worker itself after it had been accepted."""
    LOST = "lost"
    """Its keeper vanished; nobody saw how it ended."""


class HistoryEntry(Contract):
    at: float
    stage: Stage
    message: str
    """One sentence: what happened."""


class Attempt(Contract):
    number: int
    """1 for the first start, one more for each resume."""
    slot: int
    """The global count of started worker processes; names its config file."""
    started_at: float
    ended_at: float | None = None
    keeper: ProcessFacts | None = None
    worker: ProcessFacts | None = None
    is_resume: bool = False
    gpus: tuple[int, ...] = ()
    """Which GPUs it was given."""
    journal_from: int = 0
    """Where in the journal this attempt begins; what stands before it is history."""
    keeper_from: int = 0
    """Likewise in the keeper's file."""


class FinalReport(Contract):
    """What the worker said last, before it ended."""

    outcome: str
    reason: str | None = None


class RunRecord(Contract):
    """`record.json`: written by the daemon alone, by rename."""

    run_id: str
    kind: RunKind = RunKind.TRAIN
    stage: Stage = Stage.QUEUED
    outcome: Outcome | None = None
    reason: str | None = None
    """Why it ended as it did, in one sentence."""
    worker: str
    run_name: str | None = None
    algo: str | None = None
    env_id: str | None = None
    seed: int | None = None
    total_timesteps: int | None = None
    worker_id: str | None = None
    """The name that the config gives to the worker process."""
    agent_id: str | None = None
    """The name that the config gives to the agent."""
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    is_archived: bool = False
    is_resume: bool = False
    """Whether the next start continues from the last good checkpoint."""
    priority: int = 0
    cpus: int = 1
    gpus: int = 0
    submitted_at: float
    queued_at: float
    """When it last entered the queue."""
    started_at: float | None = None
    finished_at: float | None = None
    stop_requested_at: float | None = None
    farewell: FinalReport | None = None
    capabilities: tuple[str, ...] = ()
    """What its worker said it can do, in its handshake."""
    attempts: tuple[Attempt, ...] = ()
    story: tuple[HistoryEntry, ...] = ()

    @property
    def is_active(self) -> bool:
        return self.stage is not Stage.FINISHED

    @property
    def holds_slot(self) -> bool:
        return self.stage not in (Stage.QUEUED, Stage.FINISHED)


class RunView(RunRecord):
    """A record with what the index knows of its progress: one row of `mosaic runs`."""

    run_dir: str
    pid: int | None = None
    """The worker's; null when none lives."""
    global_step: int | None = None
    sps: float | None = None
    """Environment steps a second, as the worker measured it."""
    episodic_return: float | None = None
    """Mean of the last 100 episodes."""
    episodes: int = 0
    is_stalled: bool = False
    """Running, but without a sign of progress for a while."""
    seconds_left: float | None = None
    hardware: dict[str, Any] | None = None
    """The keeper's last sample: cpu_percent, rss_mb, and GPU figures where there is one."""
    checkpoint_step: int | None = None
    queue_position: int | None = None
    """1 for the queued run that starts next, by the scheduler's order; null when it is not queued."""
    has_wandb: bool = False
    """Whether W&B has written anything in its folder."""
