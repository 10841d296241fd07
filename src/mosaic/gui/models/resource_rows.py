"""Which run holds which slot, CPU and GPU of the trainer's machine, as rows of bars and texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mosaic.contracts.views import GpuSample, RunView, SlotHolder, SlotUsage
from mosaic.formatting import describe_gpu_holders, format_gpu_memory, format_megabytes, run_title, short_ids


@dataclass(frozen=True)
class BarPart:
    fraction: float
    """Of the whole bar."""
    run_id: str = ""
    """The run whose color it has; empty: the accent color."""


@dataclass(frozen=True)
class Meter:
    text: str = ""
    parts: tuple[BarPart, ...] | None = ()
    """None: there is no bar."""
    tooltip: str = ""


@dataclass(frozen=True)
class ResourceRow:
    name: str
    detail: str
    """The words below the name."""
    held: Meter
    """What is reserved, and by which runs."""
    in_use: Meter | None = None
    """How busy it is."""
    memory: Meter | None = None


def build_resource_rows(slots: SlotUsage, find_run: Callable[[str], RunView]) -> list[ResourceRow]:
    """Slots, CPUs, and a row for each GPU. `find_run` returns a placeholder for a run that is not listed yet."""
    ids = [holder.run_id for holder in slots.holders]
    short = short_ids(ids)
    titles = {run_id: run_title(find_run(run_id)) for run_id in ids}
    rows = [_slots_row(slots, titles), _cpus_row(slots, short, titles, [find_run(run_id) for run_id in ids])]
    return rows + [_gpu_row(slots, gpu, short, titles) for gpu in range(slots.gpus)]


def _slots_row(slots: SlotUsage, titles: dict[str, str]) -> ResourceRow:
    total = max(slots.runs, slots.busy, 1)
    waiting = f", {slots.queued} waiting" if slots.queued else ""
    parts = tuple(BarPart(1 / total, holder.run_id) for holder in slots.holders)
    held = Meter("1 run" if slots.busy == 1 else f"{slots.busy or 'no'} runs", parts, "\n".join(titles.values()))
    return ResourceRow("Slots", f"{slots.busy} of {slots.runs}{waiting}", held)


def _cpus_row(slots: SlotUsage, short: dict[str, str], titles: dict[str, str], views: Sequence[RunView]) -> ResourceRow:
    total = max(slots.cpus, slots.busy_cpus, 1)
    held = Meter(
        ", ".join(f"{short[holder.run_id]} {holder.cpus}" for holder in slots.holders) or "free",
        tuple(BarPart(holder.cpus / total, holder.run_id) for holder in slots.holders),
        "\n".join(f"{holder.cpus} CPUs: {titles[holder.run_id]}" for holder in slots.holders),
    )
    measured = [(view.run_id, view.hardware) for view in views if view.hardware is not None]
    used = sum(sample.cpu_percent for _, sample in measured) / 100
    parts = tuple(BarPart(sample.cpu_percent / 100 / total, run_id) for run_id, sample in measured)
    in_use = Meter(f"{used:.1f} CPUs", parts, "What the processes of the runs use now; 1 is a whole core")
    memory = Meter(f"{format_megabytes(sum(sample.rss_mb for _, sample in measured))} by runs", None)
    row = ResourceRow("CPUs", f"{slots.busy_cpus} of {slots.cpus} held", held)
    return ResourceRow(row.name, row.detail, held, in_use, memory) if measured else row


def _gpu_row(slots: SlotUsage, gpu: int, short: dict[str, str], titles: dict[str, str]) -> ResourceRow:
    holders = slots.gpu_holders(gpu)
    name = slots.gpu_names[gpu] if gpu < len(slots.gpu_names) else ""
    held = Meter(
        describe_gpu_holders(slots, gpu, short) or "free",
        tuple(BarPart(_gpu_part(holder, len(holders)), holder.run_id) for holder in holders),
        describe_gpu_holders(slots, gpu, titles),
    )
    sample = slots.gpu_sample(gpu)
    if sample is None:
        return ResourceRow(f"GPU {gpu}", name, held)
    return ResourceRow(f"GPU {gpu}", name, held, _busy_meter(sample), _memory_meter(sample))


def _gpu_part(holder: SlotHolder, holders: int) -> float:
    """Its share; runs of a group that hold the same GPU as a whole have equal parts of the bar."""
    return holder.gpu_share if holder.gpu_share < 1 else 1 / holders


def _busy_meter(sample: GpuSample) -> Meter:
    tip = "The part of the last moments in which it computed something, for any program of the machine"
    return Meter(f"{sample.util_percent:.0f} % busy", (BarPart(sample.util_percent / 100),), tip)


def _memory_meter(sample: GpuSample) -> Meter:
    used, total = sample.memory_used_mb, sample.memory_total_mb
    parts = (BarPart(used / total),) if total else None
    return Meter(format_gpu_memory(sample), parts, "By any program of the machine")
