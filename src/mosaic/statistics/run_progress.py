"""How far compared runs are: which are unfinished, and the step that all of them have reached."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mosaic.contracts.options import RunKind
from mosaic.contracts.states import Outcome
from mosaic.formatting import count_noun, format_count, progress_fraction
from mosaic.statistics.comparison import ComparedRun, Comparison, Floats, RunGroup, RunProgress, shorten_titles
from mosaic.statistics.scores import MIN_BOOTSTRAP_RUNS

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

MAX_NAMED = 3
"""Runs or groups that a sentence names; of more, it counts the rest."""
TOO_FEW_RUNS = (
    f"Fewer than {MIN_BOOTSTRAP_RUNS} runs of a group on an environment are too few for the interval of its IQM, "
    "and of how likely it is better than another."
)
SAME_LENGTH = 0.01
"""Runs whose steps differ by no more than this share were trained equally long."""


def run_progress(view: RunView) -> RunProgress:
    is_finished = view.outcome is Outcome.SUCCEEDED
    if view.kind != RunKind.TRAIN:  # what evaluations and sessions do is not training
        return RunProgress(is_finished=is_finished)
    fraction = progress_fraction(view)
    is_complete = fraction == 1.0 and view.total_timesteps is not None
    return RunProgress(view.total_timesteps if is_complete else view.global_step, fraction, is_finished)


def _point_steps(entry: ComparedRun) -> Floats:
    return entry.x if entry.steps is None else entry.steps


def _reached_step(entry: ComparedRun) -> float | None:
    """The step that a run has reached; None where it has no points, so that it does not count."""
    steps = _point_steps(entry)
    return max(float(steps.max()), entry.progress.step or 0.0) if len(steps) else None


def find_common_steps(entries: Sequence[ComparedRun]) -> dict[str, float]:
    """By environment: the largest step that all its runs with points have reached."""
    common: dict[str, float] = {}
    for entry in entries:
        if (step := _reached_step(entry)) is not None:
            common[entry.task] = min(common.get(entry.task, step), step)
    return common


def cut_at_common_step(entries: Sequence[ComparedRun]) -> tuple[list[ComparedRun], dict[str, float]]:
    """Return the runs without their points after the common step of their environment, and these steps."""
    common = find_common_steps(entries)
    return [_cut(entry, common[entry.task]) if entry.task in common else entry for entry in entries], common


def _cut(entry: ComparedRun, last_step: float) -> ComparedRun:
    steps = _point_steps(entry)
    return_steps = steps if entry.return_steps is None else entry.return_steps
    is_kept, is_return_kept = steps <= last_step, return_steps <= last_step
    return replace(
        entry,
        x=entry.x[is_kept],
        y=entry.y[is_kept],
        returns=entry.returns[is_return_kept],
        steps=steps[is_kept],
        return_steps=return_steps[is_return_kept],
    )


# --- sentences


def describe_seeds(entries: Sequence[ComparedRun], groups: Sequence[RunGroup]) -> list[str]:
    """Ask for more seeds where no two runs have the same settings, or a group has too few for an interval."""
    without_seed = {
        str(sorted((name, str(value)) for name, value in entry.settings.items() if name not in ("seed", "group")))
        for entry in entries
    }
    if any(len(group.run_ids) > 1 for group in groups):
        is_too_few = any(not math.isfinite(group.iqm.low) and math.isfinite(group.iqm.point) for group in groups)
        return [TOO_FEW_RUNS] if is_too_few else []
    if len(entries) < 2 or len(without_seed) < len(entries):
        return []
    return [
        "There is one run of each setting, so there are no intervals. "
        "Run each with several seeds to tell a difference from chance."
    ]


def describe_progress(entries: Sequence[ComparedRun], common: Mapping[str, float]) -> list[str]:
    """Say which runs are unfinished or shorter than the others, and at which step they are compared, if at one."""
    labels = shorten_titles({entry.run_id: entry.title for entry in entries})
    total = len(entries)
    unfinished = [entry for entry in entries if not entry.progress.is_finished]
    sentences = []
    if unfinished:
        unfinished.sort(key=lambda entry: (entry.progress.fraction or 0.0, entry.progress.step or 0.0))
        named = _name([f"{labels[entry.run_id]} {_format_progress(entry.progress)}" for entry in unfinished])
        verb = "is" if len(unfinished) == 1 else "are"
        sentences.append(f"{len(unfinished):,} of {count_noun(total, 'run')} {verb} unfinished: {named}.")
    if shorter := _find_shorter(entries):
        named = _name([f"{labels[entry.run_id]} ({_format_progress(entry.progress)})" for entry in shorter])
        verb = "was" if len(shorter) == 1 else "were"
        sentences.append(
            f"{len(shorter):,} of {count_noun(total, 'run')} {verb} trained for fewer steps than others: {named}."
        )
    if common:
        sentences.append(_describe_common_steps(entries, common))
    return sentences


def _find_shorter(entries: Sequence[ComparedRun]) -> list[ComparedRun]:
    """The finished runs that ended before others of their environment."""
    finished = [entry for entry in entries if entry.progress.is_finished and entry.progress.step is not None]
    longest: dict[str, float] = {}
    for entry in finished:
        longest[entry.task] = max(longest.get(entry.task, 0.0), entry.progress.step or 0.0)
    return [entry for entry in finished if (entry.progress.step or 0.0) < (1 - SAME_LENGTH) * longest[entry.task]]


def _format_progress(progress: RunProgress) -> str:
    if progress.fraction is not None and not progress.is_finished:
        return f"at {min(99, round(100 * progress.fraction))} %"  # 99.9 % is not the end
    return f"at step {format_count(progress.step)}" if progress.step is not None else "without steps"


def _describe_common_steps(entries: Sequence[ComparedRun], common: Mapping[str, float]) -> str:
    steps = [f"{step:,.0f} on {task}" for task, step in sorted(common.items())]
    if len(set(common.values())) == 1:
        steps = [f"{next(iter(common.values())):,.0f}"]
    missing = sum(_reached_step(entry) is None for entry in entries)
    whose = f"all runs with points have reached ({missing:,} of {len(entries):,} {_has(missing)} none)"
    return f"Compared at step {_name(steps, len(steps))}, which {whose if missing else 'all runs have reached'}."


def _has(number: int) -> str:
    return "has" if number == 1 else "have"


def describe_tails(comparison: Comparison, format_x: Callable[[float], str] = "step {:,.0f}".format) -> str:
    """Say up to where groups have all their runs; empty where none is missing."""
    ends = [(group.name, group.complete_until) for group in comparison.groups if group.complete_until is not None]
    if not ends:
        return ""
    (first, end), *others = ends
    parts = [
        f"{first} has all its runs up to {format_x(end)}",
        *(f"{name} up to {format_x(at)}" for name, at in others),
    ]
    return f"{_name(parts)}."


def _name(parts: Sequence[str], most: int = MAX_NAMED) -> str:
    """`a, b and 4 more`."""
    shown = parts if len(parts) <= most else parts[: most - 1]
    last = f"{len(parts) - len(shown):,} more" if len(shown) < len(parts) else shown[-1]
    first = shown if len(shown) < len(parts) else shown[:-1]
    return f"{', '.join(first)} and {last}" if first else last
