"""Who starts next. Pure: lists in, ids out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mosaic.contracts.states import RunRecord


@dataclass
class Slots:
    """One for a daemon; its cap may change while it lives."""

    runs: int
    """How many runs may hold a slot at a time."""
    cpus: int
    gpus: int


def choose(queued: Sequence[RunRecord], running: Sequence[RunRecord], slots: Slots) -> list[str]:
    """The runs to start now, in order.

    Higher priority first; among equals the group that has the fewest running, so that fifty seeds of one experiment do
    not hold up a single run of another; then first come, first served. A run that waits for a resource holds that
    resource back from those behind it, so that it is never overtaken for ever.
    """
    free_runs = slots.runs - len(running)
    free_cpus = slots.cpus - sum(record.cpus for record in running)
    free_gpus = slots.gpus - sum(record.gpus for record in running)
    busy = Counter(record.group for record in running)
    waiting = sorted(queued, key=lambda record: (-record.priority, record.queued_at, record.run_id))
    chosen: list[str] = []
    while waiting and free_runs > 0 and free_cpus > 0:
        top = waiting[0].priority
        record = min((r for r in waiting if r.priority == top), key=lambda r: busy[r.group])
        waiting.remove(record)
        cpus = min(record.cpus, slots.cpus)
        if cpus > free_cpus:
            break
        if record.gpus > free_gpus:
            free_gpus = 0
            continue
        free_runs, free_cpus, free_gpus = free_runs - 1, free_cpus - cpus, free_gpus - record.gpus
        busy[record.group] += 1
        chosen.append(record.run_id)
    return chosen
