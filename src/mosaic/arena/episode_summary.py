"""Summarizes the episodes of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mosaic.arena.evaluate import Episode
from mosaic.statistics.curves import score_with_interval
from mosaic.statistics.scores import iqm


def summarize(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return a summary as JSON. `iqm` is the interquartile mean, `ci95` the 95 % interval of the mean, Wilson's of a
    rate where each return is 0 or 1, else Student's.

    A single episode has no interval; values that are not finite are null.
    """
    return summarize_values(
        [episode.seed for episode in episodes],
        [episode.episodic_return for episode in episodes],
        [episode.length for episode in episodes],
    )


def pool_summaries(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summary over the episodes of several summaries."""
    seeds, returns, lengths = (
        [value for batch in batches for value in batch[key]] for key in ("seeds", "returns", "lengths")
    )
    return summarize_values(seeds, [math.nan if value is None else value for value in returns], lengths)


def summarize_values(seeds: Sequence[int], returns: Sequence[float], lengths: Sequence[int]) -> dict[str, Any]:
    if not returns:
        return {"episodes": 0, "seeds": [], "returns": [], "lengths": []}
    values = np.array(returns, np.float64)
    interval = list(score_with_interval(values)[1:])
    figures = {
        "avg_return": values.mean(),
        "median_return": np.median(values),
        "min_return": values.min(),
        "max_return": values.max(),
        "std_return": values.std(),
        "iqm": iqm(values),
    }
    return {
        "episodes": len(values),
        **{name: _finite_or_none(value) for name, value in figures.items()},
        "ci95": interval if all(map(math.isfinite, interval)) else None,
        "avg_length": float(np.mean(lengths)),
        "seeds": list(seeds),
        "returns": [_finite_or_none(value) for value in returns],
        "lengths": list(lengths),
    }


def _finite_or_none(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
