"""Compares final scores of runs as recommended by Agarwal et al. (2021, "Deep RL at the edge of the statistical
precipice").

Scores come as strata: one array per task (an environment), one number per run. Bootstrap samples are drawn within each
task, so that a task with many runs does not outweigh one with few by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mosaic.statistics.curves import ConfidenceInterval

Floats = npt.NDArray[np.float64]
Strata = Sequence[Floats]
Scalar = TypeVar("Scalar", bound=np.generic)

LAST_EPISODES = 100
BOOTSTRAP_REPETITIONS = 50_000
PAIR_BOOTSTRAP_REPETITIONS = 2_000
_CHUNK = 5_000
_SEED = 0
"""Fixed, so that the same runs always give the same interval."""


def final_performance(returns: Floats, last_episodes: int = LAST_EPISODES) -> float:
    """Return the mean of the last `last_episodes` finite returns; NaN if there are none."""
    finite = returns[np.isfinite(returns)][-last_episodes:]
    return float(finite.mean()) if len(finite) else float("nan")


def iqm(scores: Floats) -> float:
    """Return the interquartile mean: the mean without the lowest and the highest quarter."""
    return float(iqm_rows(np.asarray(scores, np.float64).reshape(1, -1))[0])


def iqm_interval(strata: Strata, repetitions: int = BOOTSTRAP_REPETITIONS) -> ConfidenceInterval:
    """Return the IQM over all tasks with the 95 % interval of a stratified bootstrap."""
    point = iqm(np.concatenate(list(strata)))
    samples = np.concatenate(
        [iqm_rows(np.concatenate(drawn, axis=1)) for drawn in bootstrap_strata(strata, repetitions)]
    )
    return percentile_interval(point, samples)


def probability_of_improvement(one: Strata, other: Strata) -> float:
    """Return P(a run of `one` scores higher than one of `other`), averaged over tasks; ties count half."""
    return float(_improvement_rows([part[None] for part in one], [part[None] for part in other])[0])


def probability_of_improvement_interval(
    one: Strata, other: Strata, repetitions: int = PAIR_BOOTSTRAP_REPETITIONS
) -> ConfidenceInterval:
    """Return the probability with the 95 % interval of a bootstrap that resamples both sides independently."""
    samples = np.concatenate(
        [
            _improvement_rows(left, right)
            for left, right in zip(
                bootstrap_strata(one, repetitions), bootstrap_strata(other, repetitions, seed=_SEED + 1), strict=True
            )
        ]
    )
    return percentile_interval(probability_of_improvement(one, other), samples)


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


def _improvement_rows(one: Sequence[Floats], other: Sequence[Floats]) -> Floats:
    """Compare each pair of runs of a task, row by row: the Mann-Whitney U divided by the number of pairs."""
    tasks = []
    for left, right in zip(one, other, strict=True):
        is_higher = left[:, :, None] > right[:, None, :]
        is_tie = left[:, :, None] == right[:, None, :]
        tasks.append((is_higher + 0.5 * is_tie).mean(axis=(1, 2)))
    mean: Floats = np.mean(tasks, axis=0)
    return mean


def percentile_interval(point: float, samples: Floats) -> ConfidenceInterval:
    low, high = np.percentile(samples, (2.5, 97.5))
    return ConfidenceInterval(point, float(low), float(high))
