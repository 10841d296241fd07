"""Which queued run starts next. Pure: lists in, ids out."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import groupby

from mosaic.contracts.states import RunRecord


@dataclass
class Slots:
    """One for a daemon; its cap may change while it lives."""

    runs: int
    """How many runs may hold a slot at a time."""
    cpus: int
    gpus: int


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
    free_runs = slots.runs - len(running)
    free_cpus = slots.cpus - sum(record.cpus for record in running)
    free_gpus = slots.gpus - sum(record.gpus for record in running)
    chosen = [record.run_id for record in queued if record.is_attached]
    waiting = [record for record in queued if not record.is_attached]
    for record in start_order(waiting, running) if free_runs > 0 else ():
        cpus = min(record.cpus, slots.cpus)
        if free_runs == 0 or cpus > free_cpus:
            break
        if record.gpus > free_gpus:
            free_gpus = 0
            continue
        free_runs, free_cpus, free_gpus = free_runs - 1, free_cpus - cpus, free_gpus - record.gpus
        chosen.append(record.run_id)
    return chosen
