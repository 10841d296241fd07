"""Scores of runs, and comparisons as recommended by Agarwal et al. (2021, "Deep RL at the edge of the statistical
precipice").

Scores come as strata: one array per task (an environment), one number per run. Bootstrap samples are drawn within each
task, so that a task with many runs does not outweigh one with few by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from mosaic.base.curves import ConfidenceBand, ConfidenceInterval, resample
from mosaic.contracts.printable import make_printable

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Strata = Sequence[Floats]
Scalar = TypeVar("Scalar", bound=np.generic)

LAST_EPISODES = 100
AREA_POINTS = 100
BOOTSTRAP_REPETITIONS = 50_000
PAIR_BOOTSTRAP_REPETITIONS = 2_000
MIN_BOOTSTRAP_RUNS = 5
"""Of each environment. A bootstrap of fewer values gives hardly more than their range."""
_CHUNK = 5_000
_SEED = 0
"""Fixed, so that the same runs always give the same interval."""


def final_performance(returns: Floats, last_episodes: int = LAST_EPISODES) -> float:
    """Return the mean of the last `last_episodes` finite returns; NaN if there are none."""
    finite = returns[np.isfinite(returns)][-last_episodes:]
    return float(finite.mean()) if len(finite) else float("nan")


def curve_area(steps: Floats, returns: Floats, end: float) -> float:
    """Return the mean of the return curve over the steps up to `end`: the area under it, divided by its length.

    Every step has the same weight, however many episodes end there. Before the first episode has ended, and after the
    last one, the curve has that episode's return. NaN without an episode.
    """
    is_known = (steps <= end) & np.isfinite(returns)
    steps, returns = steps[is_known], returns[is_known]
    if not len(returns):
        return float("nan")
    curve = resample(steps, returns, np.linspace(end / AREA_POINTS, end, AREA_POINTS))
    known = np.flatnonzero(np.isfinite(curve))
    curve[: known[0]], curve[known[-1] + 1 :] = curve[known[0]], curve[known[-1]]
    return float(curve.mean())


def can_bootstrap(strata: Sequence[npt.NDArray[Scalar]]) -> bool:
    return bool(strata) and min(map(len, strata)) >= MIN_BOOTSTRAP_RUNS


def iqm(scores: Floats) -> float:
    """Return the interquartile mean: the mean without the lowest and the highest quarter."""
    return float(iqm_rows(np.asarray(scores, np.float64).reshape(1, -1))[0])


def iqm_interval(strata: Strata, repetitions: int = BOOTSTRAP_REPETITIONS) -> ConfidenceInterval:
    """Return the IQM over all tasks with the 95 % interval of a stratified bootstrap; NaN where runs are too few."""
    point = iqm(np.concatenate(list(strata)))
    if not can_bootstrap(strata):
        return without_interval(point)
    samples = np.concatenate(
        [iqm_rows(np.concatenate(drawn, axis=1)) for drawn in bootstrap_strata(strata, repetitions)]
    )
    return percentile_interval(point, samples)


def probability_of_improvement(one: Strata, other: Strata) -> float:
    """Return P(a run of `one` scores higher than one of `other`), averaged over tasks; ties count half."""
    return float(np.mean([wins.mean() for wins in map(_pairwise_wins, one, other)]))


def probability_of_improvement_interval(
    one: Strata, other: Strata, repetitions: int = PAIR_BOOTSTRAP_REPETITIONS
) -> ConfidenceInterval:
    """Return the probability with the 95 % interval of a bootstrap that resamples both sides independently.

    The interval is NaN where runs are too few.
    """
    point = probability_of_improvement(one, other)
    if not can_bootstrap([*one, *other]):
        return without_interval(point)
    wins = [_pairwise_wins(left, right) for left, right in zip(one, other, strict=True)]
    samples = [
        np.mean([_mean_of_drawn(*task) for task in zip(wins, left, right, strict=True)], axis=0)
        for left, right in zip(
            bootstrap_strata(list(map(_places, one)), repetitions),
            bootstrap_strata(list(map(_places, other)), repetitions, seed=_SEED + 1),
            strict=True,
        )
    ]
    return percentile_interval(point, np.concatenate(samples))


def bootstrap_strata(
    strata: Sequence[npt.NDArray[Scalar]], repetitions: int, chunk: int = _CHUNK, seed: int = _SEED
) -> Iterator[list[npt.NDArray[Scalar]]]:
    """Yield chunks: for each task a matrix whose rows are samples of its runs, with replacement."""
    random = np.random.default_rng(seed)
    for begin in range(0, repetitions, chunk):
        rows = min(chunk, repetitions - begin)
        yield [part[random.integers(0, len(part), (rows, len(part)))] for part in strata]


def iqm_rows(rows: Floats) -> Floats:
    cut = rows.shape[1] // 4
    middle: Floats = np.sort(rows, axis=1)[:, cut : rows.shape[1] - cut]
    mean: Floats = middle.mean(axis=1)
    return mean


def _pairwise_wins(one: Floats, other: Floats) -> Floats:
    """For each pair of runs 1 where the first scores higher, 0.5 for a tie; their mean is Mann-Whitney's U per pair."""
    wins: Floats = (one[:, None] > other[None, :]) + 0.5 * (one[:, None] == other[None, :])
    return wins


def _places(part: Floats) -> Places:
    return np.arange(len(part))


def _mean_of_drawn(pairs: Floats, rows: Places, columns: Places) -> Floats:
    """Return the mean of the pairs of each sample: how often each run was drawn weighs its pairs.

    The matrix of pairs of every sample, with hundreds of runs, would take gigabytes.
    """
    mean: Floats = ((_count_draws(rows) @ pairs) * _count_draws(columns)).sum(axis=1) / pairs.size
    return mean


def _count_draws(drawn: Places) -> Floats:
    """Return how often each place occurs in each row."""
    rows, size = drawn.shape
    flat = drawn + size * np.arange(rows)[:, None]
    return np.bincount(flat.ravel(), minlength=rows * size).reshape(rows, size).astype(np.float64)


def percentile_interval(point: float, samples: Floats) -> ConfidenceInterval:
    low, high = np.percentile(samples, (2.5, 97.5))
    return ConfidenceInterval(point, float(low), float(high))


def without_interval(point: float) -> ConfidenceInterval:
    return ConfidenceInterval(point, float("nan"), float("nan"))


# --- Aggregates over environments as recommended by Agarwal et al. (2021, arXiv:2108.13264). Returns of different
#     environments have different scales, so a run's score x is normalized on its environment first, (x - low) / (high
#     - low). Scores come as strata: one array per environment, one number per run.


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
