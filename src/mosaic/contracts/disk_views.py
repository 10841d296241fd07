"""What the daemon answers about the disk: what runs hold, and what was or would be removed of them."""

from __future__ import annotations

from enum import StrEnum

from mosaic.contracts.model import Int64, RunId, Time
from mosaic.contracts.states import ShownName
from mosaic.contracts.views import View


class DiskKind(StrEnum):
    """What a file is for."""

    CHECKPOINTS = "checkpoints"
    REPLAY = "replay"
    """Replay buffers inside checkpoints."""
    VIDEOS = "videos"
    TENSORBOARD = "tensorboard"
    LOGS = "logs"
    JOURNALS = "journals"
    """Journals, and episodes that were recorded."""
    WANDB = "wandb"
    OTHER = "other"
    """Configs, records, models, evaluations."""
    TRASH = "trash"
    """Deleted runs."""
    INDEX = "index"


class RunUsage(View):
    run_id: RunId
    size_bytes: dict[DiskKind, Int64]
    """Allocated on the disk; a file that several checkpoints share counts once."""
    status: str = ""
    algo: str | None = None
    env_id: str | None = None

    @property
    def total_bytes(self) -> int:
        return sum(self.size_bytes.values())


class DiskUsage(View):
    run_count: Int64
    """How many runs it covers so far."""
    run_total: Int64
    size_bytes: dict[DiskKind, Int64]
    free_bytes: Int64 = 0
    """What is free on the workspace's disk."""
    largest: tuple[RunUsage, ...] = ()
    """The runs that hold most, the largest first."""

    @property
    def total_bytes(self) -> int:
        return sum(self.size_bytes.values())


class PruneItem(View):
    """What a run loses, or lost."""

    run_id: RunId
    """Of a run in the trash, too."""
    kind: DiskKind
    names: tuple[str, ...]
    """Of the checkpoints or files; empty where all of the kind are meant."""
    size_bytes: Int64
    """What becomes free on the disk."""


class PrunePart(View):
    run_count: Int64
    """How many runs were looked at so far."""
    run_total: Int64
    items: tuple[PruneItem, ...] = ()
    """Those since the part before."""
    notes: tuple[str, ...] = ()
    """Why a run keeps what it has, one sentence each."""


class TrashedRun(View):
    """A deleted run that can still be restored."""

    run_id: RunId
    path: str
    """Its folder on the trainer's machine: importing it restores the run."""
    deleted_at: Time
    seconds_left: float
    """Until the next start of the daemon deletes it for good."""
    size_bytes: Int64 | None = None
    """Null where it was not measured."""
    run_name: str | None = None
    group: ShownName | None = None
    algo: str | None = None
    env_id: str | None = None
    seed: Int64 | None = None
