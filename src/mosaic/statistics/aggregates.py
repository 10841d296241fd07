"""Aggregates over environments as recommended by Agarwal et al. (2021, arXiv:2108.13264).

Returns of different environments have different scales, so a run's score x is normalized on its environment first,
(x - low) / (high - low). Scores come as strata: one array per environment, one number per run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mosaic.contracts.printable import make_printable
from mosaic.statistics.curves import ConfidenceBand, ConfidenceInterval
from mosaic.statistics.scores import (
    Strata,
    bootstrap_strata,
    can_bootstrap,
    iqm_interval,
    iqm_rows,
    percentile_interval,
    without_interval,
)

Floats = npt.NDArray[np.float64]

THRESHOLDS = (0.25, 0.5, 0.75, 0.9)
"""Normalized scores at which performance profiles are printed."""
REPETITIONS = 10_000
CURVE_REPETITIONS = 1_000
_CURVE_CHUNK = 50


class ScoreRange(NamedTuple):
    """The returns on one environment that are normalized to 0 and 1."""

    low: float
    high: float

    def normalize(self, values: Floats) -> Floats:
        """Where all scores are equal there is no scale: they become 0."""
        normalized: Floats = (values - self.low) / ((self.high - self.low) or 1.0)
        return normalized


def min_max_range(scores: Iterable[float]) -> ScoreRange:
    """From the worst to the best of these scores; those that are not finite do not count."""
    known = [score for score in scores if np.isfinite(score)]
    return ScoreRange(min(known, default=0.0), max(known, default=0.0))


@dataclass(frozen=True)
class GroupAggregate:
    """The normalized scores of a group of runs over all environments, each with a 95 % bootstrap interval."""

    name: str
    runs: int
    iqm: ConfidenceInterval
    """The mean without the lowest and the highest quarter of all runs."""
    median: ConfidenceInterval
    """The median over environments of the mean over runs."""
    mean: ConfidenceInterval
    optimality_gap: ConfidenceInterval
    """How far scores fall short of 1 on average; what is above 1 does not count. Lower is better."""
    profile: tuple[ConfidenceInterval, ...]
    """For each threshold: the share of runs that score higher, averaged over environments."""

    def __repr__(self) -> str:
        return make_printable(f"<GroupAggregate {self.name}: {self.runs} runs, IQM {self.iqm}>")


@dataclass(frozen=True)
class Aggregates:
    ranges: Mapping[str, ScoreRange]
    """By environment: how its returns were normalized. Only these environments count, which all groups have."""
    is_reference: bool
    """Whether the ranges are given; otherwise they are those of the compared runs."""
    thresholds: tuple[float, ...]
    groups: tuple[GroupAggregate, ...]
    """Best first, by IQM."""


def aggregate_groups(
    scores: Mapping[str, Mapping[str, Floats]],
    ranges: Mapping[str, ScoreRange],
    is_reference: bool,
    thresholds: Sequence[float] = THRESHOLDS,
) -> Aggregates | None:
    """`scores` by group and environment; None where no environment is common to all groups.

    `ranges` are those of the environments.
    """
    shared = [task for task in ranges if scores and all(len(tasks.get(task, ())) for tasks in scores.values())]
    if not shared:
        return None
    groups = [
        _aggregate_group(name, [ranges[task].normalize(tasks[task]) for task in shared], thresholds)
        for name, tasks in scores.items()
    ]
    groups.sort(key=lambda group: -group.iqm.point)
    return Aggregates({task: ranges[task] for task in shared}, is_reference, tuple(thresholds), tuple(groups))


def _aggregate_group(name: str, strata: Strata, thresholds: Sequence[float]) -> GroupAggregate:
    return GroupAggregate(
        name=name,
        runs=sum(map(len, strata)),
        iqm=iqm_interval(strata, REPETITIONS),
        median=bootstrap_interval(strata, lambda rows: np.median(_task_means(rows), axis=0)),
        mean=bootstrap_interval(strata, lambda rows: _task_means(rows).mean(axis=0)),
        optimality_gap=bootstrap_interval(strata, _optimality_gap),
        profile=tuple(
            bootstrap_interval(strata, lambda rows, at=threshold: _share_above(rows, at))  # type: ignore[misc]
            for threshold in thresholds
        ),
    )


def bootstrap_interval(
    strata: Strata, statistic: Callable[[Sequence[Floats]], Floats], repetitions: int = REPETITIONS
) -> ConfidenceInterval:
    """Return a statistic with the 95 % interval of a stratified bootstrap; NaN where runs are too few.

    `statistic` takes, per environment, a matrix whose rows are samples of its runs, and gives one value per row.
    """
    point = float(statistic([part[None] for part in strata])[0])
    if not can_bootstrap(strata):
        return without_interval(point)
    return percentile_interval(
        point, np.concatenate([statistic(drawn) for drawn in bootstrap_strata(strata, repetitions)])
    )


def _task_means(rows: Sequence[Floats]) -> Floats:
    return np.stack([part.mean(axis=1) for part in rows])


def _optimality_gap(rows: Sequence[Floats]) -> Floats:
    """1 - mean(min(x, 1))."""
    gap: Floats = 1.0 - _task_means([np.minimum(part, 1.0) for part in rows]).mean(axis=0)
    return gap


def _share_above(rows: Sequence[Floats], threshold: float) -> Floats:
    """The run-score distribution: mean over environments of mean over runs of [x > threshold]."""
    share: Floats = _task_means([(part > threshold).astype(np.float64) for part in rows]).mean(axis=0)
    return share


def performance_profile(strata: Strata, thresholds: Floats) -> ConfidenceBand:
    """Return the share of runs above each threshold, with the 95 % band of a stratified bootstrap."""
    parts = [bootstrap_interval(strata, lambda rows, at=at: _share_above(rows, at), 2_000) for at in thresholds]  # type: ignore[misc]
    point, low, high = (np.array(column) for column in zip(*parts, strict=True))
    return ConfidenceBand(point, low, high, np.full(len(thresholds), sum(map(len, strata))))


def iqm_curve(strata: Sequence[Floats]) -> ConfidenceBand:
    """Return the IQM over all runs at each point of a grid, with the 95 % band of a stratified bootstrap over runs.

    `strata` has a matrix per environment: a row per run, a column per point. A point where a run has no value is NaN,
    and so is the band where runs are too few.
    """
    points = np.concatenate(strata)
    is_complete = np.isfinite(points).all(axis=0)
    low, high, mean = (np.full(points.shape[1], np.nan) for _ in range(3))
    count = np.isfinite(points).sum(axis=0)
    if not is_complete.any():
        return ConfidenceBand(mean, low, high, count)
    known = [part[:, is_complete] for part in strata]
    mean[is_complete] = _iqm_columns(np.concatenate(known)[None])[0]
    if not can_bootstrap(known):
        return ConfidenceBand(mean, low, high, count)
    places = [np.arange(len(part)) for part in known]
    samples = [
        _iqm_columns(np.concatenate([part[rows] for part, rows in zip(known, drawn, strict=True)], axis=1))
        for drawn in bootstrap_strata(places, CURVE_REPETITIONS, _CURVE_CHUNK)
    ]
    low[is_complete], high[is_complete] = np.percentile(np.concatenate(samples), (2.5, 97.5), axis=0)
    return ConfidenceBand(mean, low, high, count)


def _iqm_columns(samples: Floats) -> Floats:
    """The IQM over the second of three axes."""
    flat = np.moveaxis(samples, 1, 2)
    return iqm_rows(flat.reshape(-1, flat.shape[2])).reshape(flat.shape[:2])
