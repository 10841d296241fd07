"""Buffers logged values for the journal, TensorBoard and analytics.json, which all get the same numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Point = tuple[str, int, float, float]
"""Tag, step, time, value."""
EpisodeRow = tuple[int, int, int, float, float, int]
"""Episode number (from 1), environment index, step, time, return, length."""

RETURN_TAG = "charts/episodic_return"
LENGTH_TAG = "charts/episodic_length"

SeriesByTag = dict[str, list[tuple[int, float, float]]]
"""By tag: step, time, value."""

MAX_BUFFERED_POINTS = 500_000
"""Points (about 100 MB) kept while the disk is full; beyond that the oldest are dropped."""


def as_float32(values: Sequence[float]) -> list[float]:
    """Round to the precision that TensorBoard stores, so that all views show the same value."""
    with np.errstate(over="ignore"):
        rounded: list[float] = np.array(values, dtype=np.float32).tolist()
    return rounded


class MetricBuffer:
    """Collects scalars and episodes at the cost of a list append, and returns them in batches."""

    def __init__(self) -> None:
        self.scalars: list[Point] = []
        self.episodes: list[EpisodeRow] = []

    def __bool__(self) -> bool:
        return bool(self.scalars or self.episodes)

    def take_scalars(self) -> list[Point]:
        raw = self.scalars[:]
        if not raw:
            return []
        del self.scalars[: len(raw)]  # not clear(): another thread may have added one
        tags, steps, times, values = zip(*raw, strict=True)
        return list(zip(tags, map(int, steps), times, as_float32(values), strict=True))

    def take_episodes(self) -> list[EpisodeRow]:
        raw = self.episodes[:]
        if not raw:
            return []
        del self.episodes[: len(raw)]
        numbers, envs, steps, times, returns, lengths = zip(*raw, strict=True)
        rounded = as_float32(returns)
        return list(zip(numbers, map(int, envs), map(int, steps), times, rounded, map(int, lengths), strict=True))


def group_by_tag(points: Sequence[Point]) -> SeriesByTag:
    series: SeriesByTag = {}
    for tag, step, at, value in points:
        row = (step, at, value)
        try:
            series[tag].append(row)
        except KeyError:
            series[tag] = [row]
    return series


def episode_points(rows: Sequence[EpisodeRow]) -> list[Point]:
    """Return two points per episode: its return and its length."""
    points: list[Point] = []
    for _, _, step, at, episodic_return, length in rows:
        points.append((RETURN_TAG, step, at, episodic_return))
        points.append((LENGTH_TAG, step, at, float(length)))
    return points


def replace_non_finite(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Replace infinity and NaN, which JSON does not have, by None."""
    return [
        tuple(None if isinstance(item, float) and not math.isfinite(item) else item for item in row) for row in rows
    ]


def first_non_finite(series: SeriesByTag) -> dict[str, int]:
    """Return by tag the step of its first value that is not finite."""
    steps = {}
    for tag, rows in series.items():
        # Float32 values cannot overflow a sum in double: it is finite exactly when all of them are.
        if not math.isfinite(sum(row[2] for row in rows)):
            steps[tag] = next(row[0] for row in rows if not math.isfinite(row[2]))
    return steps
