"""Scores of runs, and comparisons as recommended by Agarwal et al. (2021, "Deep RL at the edge of the statistical
precipice").

Scores come as strata: one array per task (an environment), one number per run. Bootstrap samples are drawn within each
task, so that a task with many runs does not outweigh one with few by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mosaic.statistics.curves import ConfidenceInterval, resample

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
