"""Which queued run starts next, and when the queue is paused. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import groupby

from mosaic.base.formatting import short_id
from mosaic.contracts.options import RunKind
from mosaic.contracts.states import Outcome, RunRecord
from mosaic.trainer.gpus import GpuCount, GpuPool

FAST_FAILURE_S = 10.0
"""A run that fails within this time of its start is a fast failure."""
MAX_FAST_FAILURES = 3
PLAY_SLOTS = 8
"""Play sessions of an executor at a time: most of them wait for someone."""


@dataclass
class Slots:
    """The capacity of an executor; it may change while runs are active."""

    runs: int
    """How many trainings, and how many evaluations, may hold a slot at a time."""
    cpus: int
    gpus: int
    gpu_names: tuple[str, ...] = ()
    """By index."""
    are_gpus_numbered: bool = True
    """Whether runs are given GPUs by index; else whoever runs them chooses, and they are only counted here."""

    def limit(self, kind: RunKind) -> int:
        """Return how many runs of a kind may be active: a game never waits for a training, nor the reverse."""
        return PLAY_SLOTS if kind is RunKind.PLAY else self.runs

    def gpu_pool(self, running: Iterable[RunRecord]) -> GpuPool | GpuCount:
        return GpuPool(self.gpus, running) if self.are_gpus_numbered else GpuCount(self.gpus, running)


def start_order(queued: Iterable[RunRecord], running: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the queued runs in the order in which they start if resources suffice.

    Higher priority first; among equals the group with the fewest running, so that fifty seeds of one experiment do
    not hold up a single run of another; then first come, first served.
    """
    busy = Counter(record.group for record in running)
    order: list[RunRecord] = []
    by_arrival = sorted(queued, key=lambda record: (-record.priority, record.queued_at, record.run_id))
    for _, equals in groupby(by_arrival, key=lambda record: record.priority):
        groups: dict[str | None, deque[RunRecord]] = {}
        for record in equals:
            groups.setdefault(record.group, deque()).append(record)
        # Only the first of each group can be next. Run ids are unique, so records are never compared.
        heads = [(busy[group], members[0].queued_at, members[0].run_id, group) for group, members in groups.items()]
        heapify(heads)
        while heads:
            *_, group = heappop(heads)
            order.append(groups[group].popleft())
            busy[group] += 1
            if groups[group]:
                head = groups[group][0]
                heappush(heads, (busy[group], head.queued_at, head.run_id, group))
    return order


def choose(queued: Sequence[RunRecord], running: Sequence[RunRecord], slots: Slots) -> list[str]:
    """Return the runs to start now, in order.

    A run that waits for a resource reserves it against the runs after it, so that it is not overtaken indefinitely.
    Attached runs take nothing, as their process runs already.
    """
    running = [record for record in running if not record.is_attached]
    pool = slots.gpu_pool(running)
    chosen = [record.run_id for record in queued if record.is_attached]
    for kind in RunKind:
        own = [record for record in running if record.kind is kind]
        waiting = [record for record in queued if record.kind is kind and not record.is_attached]
        free_runs = slots.limit(kind) - len(own)
        free_cpus = slots.cpus - sum(record.cpus for record in own) if kind is not RunKind.PLAY else PLAY_SLOTS
        for record in start_order(waiting, own) if free_runs > 0 else ():
            cpus = min(record.cpus, slots.cpus)
            if free_runs == 0 or cpus > free_cpus:
                break
            if pool.take(record) is None:
                pool.reserve(record)
                continue
            free_runs, free_cpus = free_runs - 1, free_cpus - cpus
            chosen.append(record.run_id)
    return chosen


def describe_busy(running: Sequence[RunRecord], slots: Slots, has_waiting: bool, kind: RunKind = RunKind.TRAIN) -> str:
    """Return what a queued run of a kind waits for: `2 of 2 slots busy`; empty where it need not wait."""
    own = [record for record in running if record.kind is kind and not record.is_attached]
    if len(own) >= slots.limit(kind):
        return f"{len(own)} of {slots.limit(kind)} slots busy"
    if not has_waiting:
        return ""
    busy = {"CPUs": (sum(record.cpus for record in own), slots.cpus)}
    if slots.gpus:
        busy["GPUs"] = (slots.gpu_pool(running).busy_count, slots.gpus)
    exhausted = {name: (used, total) for name, (used, total) in busy.items() if used >= total}
    return ", ".join(f"{used} of {total} {name} busy" for name, (used, total) in (exhausted or busy).items())


class FastFailureBreaker:
    """Pauses a queue after several fast failures in a row, instead of failing all of its runs; other ends reset it."""

    def __init__(self) -> None:
        self._failed_run_ids: list[str] = []
        self._held_run_ids: frozenset[str] = frozenset()
        """The runs that were queued when the queue was paused."""
        self.pause_reason: str | None = None
        """Why the queue is paused; None: it is not. Only `clear` ends a pause."""

    def record_end(self, record: RunRecord, queued: Iterable[RunRecord]) -> bool:
        """Whether the queue pauses with this end of a run."""
        if not _is_fast_failure(record):
            if record.outcome is not Outcome.CANCELLED:
                self._failed_run_ids.clear()
            return False
        self._failed_run_ids.append(record.run_id)
        if len(self._failed_run_ids) < MAX_FAST_FAILURES or self.pause_reason is not None:
            return False
        self._held_run_ids = frozenset(other.run_id for other in queued)
        self.pause_reason = (
            f"The last {MAX_FAST_FAILURES} runs failed within {FAST_FAILURE_S:g} seconds of their start, so the queue "
            f"waits. See why: mosaic show {short_id(record.run_id)}    Continue: mosaic daemon continue"
        )
        return True

    def blocks_queue(self, queued: Iterable[RunRecord]) -> bool:
        """Whether these have to wait. The pause ends when none of the runs queued before it is left."""
        if self.pause_reason is None:
            return False
        if any(record.run_id in self._held_run_ids for record in queued):
            return True
        self.clear()
        return False

    def clear(self) -> None:
        self._failed_run_ids.clear()
        self._held_run_ids = frozenset()
        self.pause_reason = None


def _is_fast_failure(record: RunRecord) -> bool:
    if record.outcome not in (Outcome.FAILED, Outcome.REJECTED, Outcome.LOST) or record.finished_at is None:
        return False
    started_at = record.attempts[-1].started_at if record.attempts else record.queued_at
    return record.finished_at - started_at < FAST_FAILURE_S
