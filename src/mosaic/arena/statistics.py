"""What a number of episodes says together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mosaic.arena.evaluate import Episode
from mosaic.statistics import iqm

_RESAMPLES = 2000


def summarise(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Plain JSON. `iqm` is the mean of the middle half, `ci95` the bootstrapped interval of the mean."""
    if not episodes:
        return {"episodes": 0, "seeds": [], "returns": [], "lengths": []}
    returns = np.array([episode.episodic_return for episode in episodes])
    lengths = [episode.length for episode in episodes]
    return {
        "episodes": len(episodes),
        "avg_return": float(returns.mean()),
        "median_return": float(np.median(returns)),
        "min_return": float(returns.min()),
        "max_return": float(returns.max()),
        "std_return": float(returns.std()),
        "iqm": iqm(returns),
        "ci95": list(mean_interval(returns)),
        "avg_length": float(np.mean(lengths)),
        "seeds": [episode.seed for episode in episodes],
        "returns": returns.tolist(),
        "lengths": lengths,
    }


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """Bootstrap percentiles, drawn with a fixed seed: the same values give the same interval."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (_RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)
