"""Final scores of runs compared as Agarwal et al. (2021, "Deep RL at the edge of the statistical precipice") advise.

Scores come as strata: one array a task (an environment), one number a run. Bootstrap samples are drawn within each
task, so that a task with many runs does not outweigh one with few by chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mosaic.statistics.curves import ConfidenceInterval

Floats = npt.NDArray[np.float64]
Strata = Sequence[Floats]

LAST_EPISODES = 100
BOOTSTRAP_REPETITIONS = 50_000
PAIR_BOOTSTRAP_REPETITIONS = 2_000
_CHUNK = 5_000
_SEED = 0
"""The same runs always give the same interval."""


def final_performance(returns: Floats, last_episodes: int = LAST_EPISODES) -> float:
    """The mean of the last 100 episodes, or so many; NaN where there are none."""
    known = returns[np.isfinite(returns)][-last_episodes:]
    return float(known.mean()) if len(known) else float("nan")


def iqm(scores: Floats) -> float:
    """The interquartile mean: the mean of what is left when a quarter is cut off at either end."""
    return float(_iqm_rows(np.asarray(scores, np.float64).reshape(1, -1))[0])


def iqm_interval(strata: Strata, repetitions: int = BOOTSTRAP_REPETITIONS) -> ConfidenceInterval:
    """Over all tasks together, with the 95 % interval of a stratified bootstrap."""
    point = iqm(np.concatenate(list(strata)))
    samples = np.concatenate([_iqm_rows(np.concatenate(drawn, axis=1)) for drawn in _bootstrap(strata, repetitions)])
    return _percentile_interval(point, samples)


def probability_of_improvement(one: Strata, other: Strata) -> float:
    """How likely a run of `one` scores higher than one of `other`, averaged over tasks; draws count half."""
    return float(_improvement_rows([part[None] for part in one], [part[None] for part in other])[0])


def probability_of_improvement_interval(
    one: Strata, other: Strata, repetitions: int = PAIR_BOOTSTRAP_REPETITIONS
) -> ConfidenceInterval:
    """The same with the 95 % interval of a bootstrap that draws both sides independently."""
    samples = np.concatenate(
        [
            _improvement_rows(left, right)
            for left, right in zip(_bootstrap(one, repetitions), _bootstrap(other, repetitions, _SEED + 1), strict=True)
        ]
    )
    return _percentile_interval(probability_of_improvement(one, other), samples)


def _bootstrap(strata: Strata, repetitions: int, seed: int = _SEED) -> Iterator[list[Floats]]:
    """In chunks: for each task a matrix whose rows are draws of its runs, with replacement."""
    random = np.random.default_rng(seed)
    for begin in range(0, repetitions, _CHUNK):
        rows = min(_CHUNK, repetitions - begin)
        yield [part[random.integers(0, len(part), (rows, len(part)))] for part in strata]


def _iqm_rows(rows: Floats) -> Floats:
    cut = rows.shape[1] // 4
    kept: Floats = np.sort(rows, axis=1)[:, cut : rows.shape[1] - cut]
    mean: Floats = kept.mean(axis=1)
    return mean


def _improvement_rows(one: Sequence[Floats], other: Sequence[Floats]) -> Floats:
    """Row by row, each pair of runs of a task compared: Mann and Whitney's U as a share."""
    tasks = []
    for left, right in zip(one, other, strict=True):
        above = left[:, :, None] > right[:, None, :]
        level = left[:, :, None] == right[:, None, :]
        tasks.append((above + 0.5 * level).mean(axis=(1, 2)))
    mean: Floats = np.mean(tasks, axis=0)
    return mean


def _percentile_interval(point: float, samples: Floats) -> ConfidenceInterval:
    low, high = np.percentile(samples, (2.5, 97.5))
    return ConfidenceInterval(point, float(low), float(high))
