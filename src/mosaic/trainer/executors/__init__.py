"""What starts the keeper of a run and knows whether it is alive: on this machine, or on those of a cluster.

The supervisor follows the files in the run folder, whoever writes them. An executor adds what the files cannot tell:
that an attempt was placed on a node, that it could not be started, that its processes are gone. Process ids are looked
up by the executor that started the process and by nobody else, as they may be those of another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:  # nodes of a cluster import this package for each attempt, and need none of these
    from pathlib import Path

    from mosaic.base.worker_registry import WorkerDescription
    from mosaic.contracts.folder import RunFolder
    from mosaic.contracts.payload import Payload
    from mosaic.contracts.process_identity import ProcessIdentity
    from mosaic.contracts.states import Attempt, RunRecord
    from mosaic.contracts.views import ExecutorStatus
    from mosaic.trainer.lifecycle import LifecycleEvent
    from mosaic.trainer.scheduler import Slots


@dataclass(frozen=True)
class StartRequest:
    """One attempt of a run, which its record already shows as starting."""

    record: RunRecord
    """With this attempt as its last one."""
    worker: WorkerDescription
    folder: RunFolder
    payload: Payload
    config: Path
    """The file with the worker's config."""
    inbox_offset: int
    """Where this attempt starts in the inbox."""
    end_key: str
    """What the keeper's last event will contain; the record has its SHA-256."""
    environment: dict[str, str] | None = None
    """The caller's own, where it handed one over: a script of the caller's runs in it."""
    tracking: dict[str, str] | None = None
    """What the caller's environment sets for W&B and the Hub, of a run that is tracked or uploaded there."""

    @property
    def attempt(self) -> Attempt:
        return self.record.attempts[-1]


class HeldRun(NamedTuple):
    """A run that holds a slot of the executor."""

    record: RunRecord
    folder: RunFolder

    @property
    def attempt(self) -> Attempt:
        return self.record.attempts[-1]


class RunChange(NamedTuple):
    run_id: str
    event: LifecycleEvent


class Executor(Protocol):
    """Called by the supervisor's thread, `check` and `capacity` by others, too. Only `check` may wait for a network."""

    name: str

    def check(self, payload: Payload) -> None:
        """Raise a MosaicError where a run that is submitted cannot run here at all. It may take some seconds."""

    def capacity(self) -> Slots:
        """Return what it can hand out in all; runs of its own are planned within it."""

    def describe_wait(self, queued: Sequence[RunRecord]) -> Mapping[str, str]:
        """Return, by run, why it waits for something that the capacity does not tell, such as a node that fits."""

    def status(self) -> ExecutorStatus | None:
        """Return what is known of a cluster that is in use; None: nothing beyond the daemon's own status."""

    def start(self, request: StartRequest) -> ProcessIdentity | None:
        """Start a keeper, or have it started; return its identity where that is known now and is of this machine."""

    def find_changes(self, held: Sequence[HeldRun]) -> list[RunChange]:
        """Return what has happened to attempts outside of their files; again at each call until the record shows it.

        `Placed` is applied at once, other events when all that is there of the run's files has been read.
        """

    def reap(self, held: Sequence[HeldRun]) -> None:
        """Release what none of these runs needs: processes that have ended, servers without a client."""

    def close(self) -> None:
        """End what belongs to the daemon. Runs continue."""
