"""Numbers, ids, times and runs as text: the same in the command line and in the window."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mosaic.contracts.options import LOCAL_EXECUTOR, RunKind

if TYPE_CHECKING:
    from mosaic.contracts.run_settings import RunSettings, SourceCommit
    from mosaic.contracts.views import (
        DaemonStatus,
        Evaluation,
        EvaluationBatch,
        ExecutorStatus,
        GpuSample,
        HardwareSample,
        RunView,
        SlotUsage,
    )

YEAR_S = 365.25 * 86400
PLACEHOLDER = "–"
COMMIT_LENGTH = 10
BAD_OUTCOMES = ("failed", "rejected", "lost")
"""Outcomes that need an explanation."""
SHOWN_PACKAGES = ("mosaic-rl", "gymnasium", "torch", "numpy", "stable-baselines3", "cleanrl", "jax", "tensorflow")
"""The packages that a summary names."""
SHORT_ID_LENGTH = 6
"""Characters from the end of a run id: its beginning is the time, which runs of one day share."""


# --- ids and titles


def short_id(run_id: str) -> str:
    """Return the end of a run id, which every place that takes a run accepts."""
    return run_id[-SHORT_ID_LENGTH:]


def short_ids(run_ids: Sequence[str]) -> dict[str, str]:
    """Return the shortest ends that are different for each of these runs, but no shorter than `short_id`."""
    different = set(run_ids)
    longest = max(map(len, different), default=0)
    length = SHORT_ID_LENGTH
    while length < longest and len({run_id[-length:] for run_id in different}) < len(different):
        length += 1
    return {run_id: run_id[-length:] for run_id in run_ids}


def describe_place(view: RunView) -> str:
    """Where a run that is not on the daemon's machine runs or ran: `ray, on 10.0.0.3`; empty for others."""
    node = view.attempts[-1].node if view.attempts else ""
    return "" if view.executor == LOCAL_EXECUTOR else f"{view.executor}{f', on {node}' if node else ''}"


def describe_executor(status: ExecutorStatus) -> str:
    """A cluster in a line: `127.0.0.2:6379, 3 nodes, 2 of 6 CPUs busy`."""
    if status.problem:
        return status.problem
    if status.jobs is not None:
        return f"{status.jobs} of at most {status.max_jobs} jobs wait or run there"
    nodes = count_noun(len(status.nodes), "node")
    gpus = f", {status.busy_gpus:g} of {status.gpus:g} GPUs busy" if status.gpus else ""
    return f"{status.address}, {nodes}, {status.busy_cpus:g} of {status.cpus:g} CPUs busy{gpus}"


def describe_worker(view: RunView) -> str:
    """`cleanrl 0.2.0 (inbox, pause, checkpoint, resume)`: what the worker stated in its handshake."""
    stated = f" ({', '.join(view.capabilities)})" if view.capabilities else ""
    return f"{view.worker} {view.worker_version or ''}".strip() + stated


def run_title(view: RunView) -> str:
    """Return a title that identifies a run: `CartPole-v1 · ppo · seed 1 · ABC123`, after its name if it has one."""
    parts = [view.run_name, view.env_id, view.algo or view.worker]
    if view.seed is not None:
        parts.append(f"seed {view.seed}")
    title = " · ".join(str(part) for part in (*parts, short_id(view.run_id)) if part)
    return f"{title} (Eval)" if view.kind == RunKind.POLICY_EVAL else title


def run_description(view: RunView) -> str:
    """Return a phrase for what a run does: `ppo on CartPole-v1, seed 1`."""
    if view.kind == RunKind.POLICY_EVAL:
        return f"evaluation of {view.algo} on {view.env_id}"
    if not view.algo:
        return str(view.run_name or view.worker)
    place = f" on {view.env_id}" if view.env_id else ""
    seed = f", seed {view.seed}" if view.seed is not None else ""
    return f"{view.algo}{place}{seed}"


# --- numbers


def format_count(number: float | None) -> str:
    """Format a whole number exactly: `12,400`."""
    return PLACEHOLDER if number is None else f"{number:,.0f}"


def join_words(words: Sequence[str]) -> str:
    """`A`, `A and B`, or `A, B and C`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def count_noun(number: float, noun: str, plural: str = "") -> str:
    """Format a number of things: `1 run`, `1,200 runs`, `2 batches`."""
    return f"{number:,.0f} {noun if number == 1 else plural or f'{noun}s'}"


def describe_read_only(status: DaemonStatus) -> str:
    """What is shown in a workspace that its reader neither created nor trusts."""
    waiting = f" {count_noun(status.slots.queued, 'queued run')} will not start." if status.slots.queued else ""
    return f"This workspace was not created by you, so it is read-only.{waiting}"


def capitalize_first(text: str) -> str:
    """Return a text with a capital first letter; unlike `str.capitalize`, it leaves the rest as it is."""
    return text[:1].upper() + text[1:]


def format_number(value: float | None) -> str:
    """Format a metric with about four significant digits and its whole part exactly: `0.0123`, `1,234`."""
    if value is None:
        return PLACEHOLDER
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size < 1e9 and value == int(value):
        return f"{value:,.0f}"
    if size and not 0.001 <= size < 1e9:
        return f"{value:.3g}"
    digits = next(digits for digits, bound in enumerate((1000, 100, 10, 1, 0)) if size >= bound)
    return f"{value:,.{digits}f}"


def format_ranges(numbers: Sequence[int]) -> str:
    """`1-5,9` for 1, 2, 3, 4, 5 and 9, in the order given."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in ranges)


def format_si_number(value: float | None) -> str:
    """Format a number for a narrow place, with an SI suffix from 10,000 on: `482.1`, `50.7k`, `1.2M`."""
    if value is None:
        return PLACEHOLDER
    if not math.isfinite(value):
        return str(value)
    for limit, scale, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / scale:.3g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def format_size(size_bytes: float) -> str:
    """Format a size: `812 bytes`, `3.4 MB`."""
    if size_bytes < 1000:
        return f"{size_bytes:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        size_bytes /= 1000
        if size_bytes < 1000:
            return f"{size_bytes:.1f} {unit}"
    return f"{size_bytes / 1000:.1f} TB"


def format_megabytes(size_mb: float) -> str:
    """Format a size of memory: `812 MB`, `3.4 GB`."""
    return f"{size_mb / 1024:.1f} GB" if size_mb >= 1024 else f"{size_mb:.0f} MB"


# --- times


def format_duration(seconds: float | None) -> str:
    """Format a duration in at most two units: `4.1s`, `3m 20s`, `2h 5m`, `3d 4h`, `1,200 years`."""
    if seconds is None or math.isnan(seconds):
        return PLACEHOLDER
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    if seconds >= 2 * YEAR_S:
        return (
            f"{format_number(seconds / YEAR_S)} years" if seconds > 1e9 * YEAR_S else f"{seconds / YEAR_S:,.0f} years"
        )
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(days, "d"), (hour, "h"), (minute, "m"), (second, "s")]
    first = next(index for index, (amount, _) in enumerate(parts) if amount)
    return " ".join(f"{amount}{unit}" for amount, unit in parts[first : first + 2] if amount)


def format_age(at: float | None, now: float | None = None) -> str:
    """Format the time since `at` in one unit: `3m`."""
    if at is None:
        return PLACEHOLDER
    seconds = max(0.0, (time.time() if now is None else now) - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def format_ago(at: float | None) -> str:
    """Format a moment in the past in one unit: `3 min ago`."""
    if at is None:
        return PLACEHOLDER
    age = format_age(at)
    return f"{age[:-1]} {'min' if age.endswith('m') else age[-1]} ago"


def format_timestamp(at: float | None) -> str:
    """Format a moment in local time: `2026-01-31 18:05:00`; one that no calendar has is shown as its number."""
    if at is None:
        return PLACEHOLDER
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return format_number(at)


# --- progress


def progress_fraction(view: RunView) -> float | None:
    """Return the progress of a run from 0 to 1, None where it is unknown."""
    if view.outcome == "succeeded" and view.end_reason is None:
        return 1.0  # also where the last update would not have fitted into the steps requested
    total, step = view.total_timesteps, view.global_step
    return min(1.0, step / total) if total and step is not None else view.fraction


def format_progress(view: RunView) -> str:
    """Format the progress of a run: `51%`, or a count of episodes or steps where no total is known."""
    if view.kind == RunKind.POLICY_EVAL:
        return f"{view.episodes or 0} ep."
    fraction = progress_fraction(view)
    return format_count(view.global_step) if fraction is None else f"{fraction:.0%}"


def format_eval_line(batch: EvaluationBatch) -> str:
    """Format the result of a batch: `eval batch 3 | episodes=50 avg=112.3 min=90.1 max=142.6`."""
    returns = {"avg": batch.avg_return, "min": batch.min_return, "max": batch.max_return}
    figures = [f"{name}={value:.1f}" for name, value in returns.items() if value is not None]
    return f"eval batch {batch.batch} | {' '.join([f'episodes={batch.episodes}', *figures])}"


def describe_acting(evaluation: Evaluation) -> str:
    """Return how the policy acted, and the return of its training, where it acted otherwise: they may be far apart."""
    acted = "deterministic" if evaluation.summary.deterministic else "sampled"
    trained = evaluation.trained
    if trained is None or trained.episodic_return is None:
        return acted
    return f"{acted}; training return {format_number(trained.episodic_return)}, exploring"


def describe_unfinished_training(evaluation: Evaluation) -> str:
    """Return a sentence about the evaluated policy if its run is still training, else nothing."""
    trained, step = evaluation.trained, evaluation.summary.checkpoint_step
    if trained is None or trained.stage == "finished" or trained.run_id == evaluation.run_id:
        return ""
    return "Its training has not ended." if step is None else f"Its training has not ended; this is step {step:,}."


def explain_state(view: RunView) -> str:
    """Return why a run is in its state: how it ended or what it waits for, and what of it cannot be read."""
    return "\n".join(filter(None, (view.reason, view.wait_reason, view.problem)))


def describe_status(status: str) -> str:
    """Return it with its verb: `is running`, `has failed`, `was cancelled`."""
    verbs = {"succeeded": "has", "failed": "has", "cancelled": "was", "rejected": "was"}
    return f"{verbs.get(status, 'is')} {status}"


def short_state(view: RunView) -> str:
    """Return a run's state in one line: `queued: 2 of 2 slots busy`; of a failure only the word, as it takes more."""
    reason = "" if view.outcome in BAD_OUTCOMES else explain_state(view).partition("\n")[0]
    if reason.lower().startswith(view.status):  # `cancelled: Cancelled on request.`
        return f"{reason[:1].lower()}{reason[1:]}"
    return ": ".join(filter(None, (view.status, reason)))


def format_progress_line(view: RunView) -> str:
    """Format what a run does now: `running, 12,400 of 50,000 steps (25%), 8,200 steps/s, 4.6s left, return 93.1`."""
    parts = [f"{view.status} ({view.wait_reason})" if view.wait_reason else view.status]
    if view.is_evaluation:
        parts.append(count_noun(view.episodes, "episode"))
    elif view.global_step is not None:
        total = f" of {view.total_timesteps:,}" if view.total_timesteps else ""
        fraction = progress_fraction(view)
        parts.append(f"{view.global_step:,}{total} steps" + (f" ({fraction:.0%})" if fraction is not None else ""))
    if view.sps and view.stage != "finished":
        parts.append(f"{view.sps:,.0f} steps/s")
    if view.seconds_left is not None:
        parts.append(f"{format_duration(view.seconds_left)} left")
    if view.episodic_return is not None:
        parts.append(f"return {format_number(view.episodic_return)}")
    return ", ".join(parts)


def surroundings_rows(settings: RunSettings) -> list[tuple[str, str]]:
    """Name what a run was started with: its Python, the commits of the user's code, and the machine."""
    rows = [("config", settings.problem)] if settings.problem else []
    if settings.python:
        shown = [f"{name} {settings.packages[name]}" for name in SHOWN_PACKAGES if name in settings.packages]
        rows.append(("Python", ", ".join([settings.python, *shown])))
    rows += [("commit", format_commit(source)) for source in settings.sources]
    machine = settings.machine
    if machine is not None:
        memory = f"{format_size(machine.memory_mb * 2**20)} of memory"
        parts = [machine.host, machine.system, f"{machine.cpus} × {machine.cpu}", memory, *machine.gpus]
        rows.append(("machine", ", ".join(filter(None, parts))))
    return rows


def format_commit(source: SourceCommit) -> str:
    """`1a2b3c4d5e in /home/me/project, with changes`."""
    changes = ", with uncommitted changes" if source.is_dirty else ""
    return f"{source.commit[:COMMIT_LENGTH]} in {source.folder}{changes}"


def format_hardware(hardware: HardwareSample) -> str:
    """Format a sample of a run's processes: `CPU 98 %, RAM 143 MB, GPU 50 % 1,200 MB`."""
    parts = [f"CPU {hardware.cpu_percent:.0f} %", f"RAM {hardware.rss_mb:,.0f} MB"]
    parts += [f"GPU {gpu.util_percent:.0f} % {gpu.memory_used_mb:,.0f} MB" for gpu in hardware.gpus]
    return ", ".join(parts)


def format_gpu_sample(sample: GpuSample) -> str:
    """`63 % busy, 12.4 of 139.8 GB`."""
    return f"{sample.util_percent:.0f} % busy, {format_gpu_memory(sample)}"


def format_gpu_memory(sample: GpuSample) -> str:
    """`12.4 of 139.8 GB`; without the total where the driver does not report it."""
    if not sample.memory_total_mb:
        return format_megabytes(sample.memory_used_mb)
    return f"{sample.memory_used_mb / 1024:.1f} of {sample.memory_total_mb / 1024:.1f} GB"


def describe_gpu_holders(slots: SlotUsage, gpu: int, names: Mapping[str, str]) -> str:
    """Return which runs hold a GPU, by their names, and how they share it; empty if it is free."""
    holders = slots.gpu_holders(gpu)
    shares = [f" {holder.gpu_share:.0%}" if holder.gpu_share < 1 else "" for holder in holders]
    text = ", ".join(names[holder.run_id] + share for holder, share in zip(holders, shares, strict=True))
    if len(holders) < 2 or any(shares):
        return text
    return f"group {holders[0].group} {'through MPS' if slots.has_mps else 'in turns'}: {text}"
