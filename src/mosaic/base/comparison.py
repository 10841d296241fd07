"""Compares runs grouped by a setting: the mean of each group with confidence intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mosaic.base.curves import ConfidenceBand, ConfidenceInterval, mean_with_band, resample, smooth
from mosaic.base.formatting import count_noun, format_count, progress_fraction
from mosaic.base.scores import (
    LAST_EPISODES,
    MIN_BOOTSTRAP_RUNS,
    ScoreRange,
    curve_area,
    final_performance,
    iqm_interval,
    min_max_range,
    probability_of_improvement_interval,
)
from mosaic.contracts.options import RunKind
from mosaic.contracts.printable import make_printable
from mosaic.contracts.states import Outcome

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

Settings = Mapping[str, object]
Floats = npt.NDArray[np.float64]
GRID_POINTS = 400
MIN_TAIL = 0.05
"""The share of the x axis that the part of a curve with missing runs has at least."""
NO_GROUPING = ""
"""The key for no grouping: every run is its own group."""
SETTING_KEY = "setting"
"""What an experiment calls an algorithm with its settings."""
DEFAULT_KEYS = ("algo", "env_id", "group", "seed")
NOT_SET_LABEL = "not set"


class ScoreKind(StrEnum):
    """What the score of a run is."""

    FINAL = "final"
    """The mean of its last values."""
    AREA = "area"
    """The mean of its curve over all steps, which is higher for a run that learns earlier."""


@dataclass(frozen=True)
class RunProgress:
    """How far a run is."""

    step: float | None = None
    """The environment step that it has reached: the last one requested where it has finished."""
    fraction: float | None = None
    """From 0 to 1, where the total is known."""
    is_finished: bool = True
    """Whether it has ended with success; not where it was cancelled."""


@dataclass(frozen=True)
class ComparedRun:
    """One run of the comparison."""

    run_id: str
    title: str
    settings: Settings
    x: Floats
    y: Floats
    returns: Floats
    """Values whose last ones are averaged to the final score: returns, or another metric."""
    environment: str = ""
    """What tells its environment apart, where its id is not enough."""
    progress: RunProgress = RunProgress()
    steps: Floats | None = None
    """The environment steps of `y`; None where they are `x`."""
    return_steps: Floats | None = None
    """Those of `returns`; None where they are those of `y`."""

    @property
    def task(self) -> str:
        return self.environment or str(self.settings.get("env_id") or "")

    def __repr__(self) -> str:
        return make_printable(f"<ComparedRun {self.title}: {len(self.x):,} points>")


@dataclass(frozen=True)
class RunGroup:
    name: str
    run_ids: list[str]
    curve: ConfidenceBand
    """Where all runs that have points have values; NaN elsewhere, since the mean would jump at a run's end."""
    tail: Floats
    """The mean of the runs that are left, from where `curve` ends on; NaN before, and where no run is missing."""
    run_curves: Floats
    """One row per run of the group."""
    complete_until: float | None
    """The last x that all runs with points have reached, where `tail` begins; None where no run is missing."""
    final_return: ConfidenceInterval
    """Mean over the runs of their scores (the mean return of their last 100 episodes, unless others were given), with
    Student's 95 % interval; NaN where the runs are on different environments, whose returns cannot be averaged. The
    same holds for `curve`."""
    iqm: ConfidenceInterval
    """The interquartile mean of the same, with a bootstrap interval; scaled if `Comparison.is_normalized`."""

    def __repr__(self) -> str:
        runs = f"{len(self.run_ids)} run{'s' if len(self.run_ids) != 1 else ''}"
        return make_printable(f"<RunGroup {self.name}: {runs}, mean {self.final_return}>")


@dataclass(frozen=True)
class Comparison:
    grid: Floats
    groups: list[RunGroup]
    improvement_probability: dict[tuple[str, str], ConfidenceInterval] = field(default_factory=dict)
    """By the names of two groups: the probability that a run of the first scores higher than one of the second."""
    is_normalized: bool = False
    """Whether scores were scaled to 0…1 per environment, because returns of different ones cannot be averaged."""

    def __repr__(self) -> str:
        return f"<Comparison of {self.groups}>"


def shorten_titles(titles: Mapping[str, str]) -> dict[str, str]:
    """Return labels of runs that are shown together, by run id: without the parts of their titles that all of them
    share, and without their ids where the rest distinguishes them."""
    short = strip_common_parts(list(titles.values()))
    labels = {run_id: short[title] for run_id, title in titles.items()}
    without_ids = {
        run_id: " · ".join(part for part in label.split(" · ") if not run_id.endswith(part))
        for run_id, label in labels.items()
    }
    is_distinct = all(without_ids.values()) and len(set(without_ids.values())) == len(titles)
    return without_ids if is_distinct else labels


def strip_common_parts(titles: Sequence[str]) -> dict[str, str]:
    """Return each title without the parts that all of them share."""
    parts = {title: title.split(" · ") for title in titles}
    common = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    return {title: " · ".join(part for part in own if part not in common) or title for title, own in parts.items()}


def format_value(value: object) -> str:
    """Format a setting's value for display."""
    if value is None:
        return NOT_SET_LABEL
    return value if isinstance(value, str) else json.dumps(value)


def differing_settings(settings: Sequence[Settings]) -> dict[str, list[object]]:
    """Return the settings that differ between runs: by name, one value per run."""
    names = sorted({name for one in settings for name in one})
    table = {name: [one.get(name) for one in settings] for name in names}
    return {name: row for name, row in table.items() if any(value != row[0] for value in row)}


def grouping_keys(settings: Sequence[Settings]) -> list[str]:
    """Return the keys for grouping: the default ones, then the settings that differ."""
    defaults = [key for key in DEFAULT_KEYS if any(one.get(key) is not None for one in settings)]
    return defaults + [name for name in differing_settings(settings) if name not in defaults]


def suggest_grouping_key(settings: Sequence[Settings], max_groups: int | None = None) -> str:
    """Return the default key that splits these runs into groups of several, or NO_GROUPING.

    With `max_groups`, more runs than that are grouped by a key that leaves no more groups.
    """
    most = len(settings) - 1 if max_groups is None else min(max_groups, len(settings) - 1)
    differing = [key for key in differing_settings(settings) if key != "seed"]
    is_many = max_groups is not None and len(settings) > max_groups
    candidates: list[str] = [SETTING_KEY, "group", "algo", "env_id", *(differing if is_many else [])]
    for key in candidates:
        if 1 < len({format_value(one.get(key)) for one in settings}) <= most:
            return key
    return "algo" if is_many or (not differing and len(settings) > 1) else NO_GROUPING


def _mask_partial(band: ConfidenceBand) -> ConfidenceBand:
    """Keep the points where all runs of the group have values."""
    is_complete = band.runs == band.runs.max(initial=0)
    mean, low, high = (np.where(is_complete, part, np.nan) for part in (band.mean, band.low, band.high))
    return ConfidenceBand(mean, low, high, band.runs)


def _incomplete_tail(band: ConfidenceBand, min_points: float) -> tuple[Floats, int | None]:
    """Return the mean after the last point where all runs have values, and the number of that point.

    A tail of no more than `min_points` is none: the last episodes of runs of the same length end at different steps.
    """
    nothing = np.full(len(band.mean), np.nan)
    most = band.runs.max(initial=0)
    if most < 2:
        return nothing, None
    last = int(np.flatnonzero(band.runs == most)[-1])
    known = np.flatnonzero(band.runs > 0)
    if known[-1] - last <= min_points:
        return nothing, None
    return np.where(np.arange(len(band.mean)) >= last, band.mean, np.nan), last


def group_entries(entries: Sequence[ComparedRun], key: str) -> dict[str, list[ComparedRun]]:
    members: dict[str, list[ComparedRun]] = {}
    for entry in entries:
        name = entry.title if key == NO_GROUPING else format_value(entry.settings.get(key))
        members.setdefault(name, []).append(entry)
    return members


def final_scores(entries: Sequence[ComparedRun], last_episodes: int = LAST_EPISODES) -> dict[str, float]:
    """By run: the mean of its last values; NaN where it has none."""
    return {entry.run_id: final_performance(entry.returns, last_episodes) for entry in entries}


def area_scores(entries: Sequence[ComparedRun]) -> dict[str, float]:
    """By run: the mean of its curve up to the last step of all runs on its environment; NaN where it has no points."""
    ends: dict[str, float] = {}
    for entry in entries:
        if len(entry.x):
            ends[entry.task] = max(ends.get(entry.task, 0.0), float(entry.x[-1]))
    return {entry.run_id: curve_area(entry.x, entry.y, ends.get(entry.task, 0.0)) for entry in entries}


def compare(
    entries: Sequence[ComparedRun],
    key: str,
    weight: float,
    run_scores: Mapping[str, float] | None = None,
    has_probabilities: bool = True,
) -> Comparison:
    """Compare runs grouped by `key`. `weight` smooths the curves; without `run_scores`, final scores are compared.

    The time for the probabilities of improvement grows with the square of the number of groups.
    """
    grid = _grid(entries)
    members = group_entries(entries, key)
    finals = final_scores(entries) if run_scores is None else run_scores
    scores, is_normalized = _normalize_scores(entries, finals)
    strata = {name: scores_by_task(group, scores) for name, group in members.items()}
    groups = [
        RunGroup(
            name,
            [entry.run_id for entry in group],
            *_group_curves(group, grid, weight),
            _nan_interval() if _is_mixed(group) else _mean_confidence_interval([finals[e.run_id] for e in group]),
            iqm_interval(list(strata[name].values())) if strata[name] else _nan_interval(),
        )
        for name, group in members.items()
    ]
    groups.sort(key=lambda group: -group.iqm.point if np.isfinite(group.iqm.point) else np.inf)
    improvement = {}
    names = [group.name for group in groups] if has_probabilities and key != NO_GROUPING else []
    for one, other in combinations(names, 2):
        shared = [task for task in strata[one] if task in strata[other]]
        if shared:
            better = probability_of_improvement_interval(
                [strata[one][task] for task in shared], [strata[other][task] for task in shared]
            )
            improvement[one, other] = better
            # Not sampled again, so that both directions agree.
            improvement[other, one] = ConfidenceInterval(1 - better.point, 1 - better.high, 1 - better.low)
    return Comparison(grid, groups, improvement, is_normalized)


def _is_mixed(group: Sequence[ComparedRun]) -> bool:
    """Whether the runs are on different environments, so that neither their returns nor their curves have a mean."""
    return len({entry.task for entry in group if entry.task}) > 1


def _group_curves(
    group: Sequence[ComparedRun], grid: Floats, weight: float
) -> tuple[ConfidenceBand, Floats, Floats, float | None]:
    """Return `curve`, `tail`, `run_curves` and `complete_until` of a group."""
    each = np.stack([resample(entry.x, smooth(entry.y, weight), grid) for entry in group])
    if _is_mixed(group):
        nothing = np.full(len(grid), np.nan)
        return ConfidenceBand(nothing, nothing, nothing, np.zeros(len(grid), np.int64)), nothing, each, None
    band = mean_with_band(each)
    # A run is not missing where its next point may follow.
    widest_gap = max(float(np.diff(entry.x).max(initial=0.0)) for entry in group)
    tail, last = _incomplete_tail(band, max(MIN_TAIL * len(grid), 1 + widest_gap / (grid[1] - grid[0])))
    # Not the last point of the grid, which may be far before it where another run is much longer.
    complete_until = None if last is None else min(float(entry.x[-1]) for entry in group if len(entry.x))
    return _mask_partial(band), tail, each, complete_until


def _grid(entries: Sequence[ComparedRun]) -> Floats:
    axes = [entry.x for entry in entries if len(entry.x)]
    if not axes:
        return np.array([0.0, 1.0])
    begin, end = min(float(x[0]) for x in axes), max(float(x[-1]) for x in axes)
    return np.linspace(begin, max(end, begin + 1), GRID_POINTS)


def _normalize_scores(entries: Sequence[ComparedRun], finals: Mapping[str, float]) -> tuple[dict[str, float], bool]:
    tasks = {entry.task for entry in entries}
    if len(tasks) < 2:
        return dict(finals), False
    ranges = score_ranges(entries, finals)
    return {e.run_id: float(ranges[e.task].normalize(np.array(finals[e.run_id]))) for e in entries}, True


def score_ranges(entries: Sequence[ComparedRun], finals: Mapping[str, float]) -> dict[str, ScoreRange]:
    """By environment: from the worst to the best score."""
    tasks = sorted({entry.task for entry in entries})
    return {task: min_max_range(finals[e.run_id] for e in entries if e.task == task) for task in tasks}


def scores_by_task(group: Sequence[ComparedRun], scores: Mapping[str, float]) -> dict[str, Floats]:
    by_task: dict[str, list[float]] = {}
    for entry in group:
        if np.isfinite(scores[entry.run_id]):
            by_task.setdefault(entry.task, []).append(scores[entry.run_id])
    return {task: np.array(values) for task, values in by_task.items()}


def _mean_confidence_interval(values: Sequence[float]) -> ConfidenceInterval:
    band = mean_with_band(np.array(values, np.float64).reshape(-1, 1))
    return ConfidenceInterval(float(band.mean[0]), float(band.low[0]), float(band.high[0]))


def _nan_interval() -> ConfidenceInterval:
    return ConfidenceInterval(float("nan"), float("nan"), float("nan"))


# --- How far compared runs are: which are unfinished, and the step that all of them have reached.


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
