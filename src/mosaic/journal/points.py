"""Prepares logged values for the journal, TensorBoard and analytics.json, which all get the same numbers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Dict, List, Tuple

from mosaic.contracts.metric_tags import LENGTH_TAG, RETURN_TAG

Point = Tuple[str, int, float, float]
"""Tag, step, time, value."""
EpisodeRow = Tuple[int, int, int, float, float, int]
"""Episode number (from 1), environment index, step, time, return, length."""
SeriesByTag = Dict[str, List[Tuple[int, float, float]]]
"""By tag: step, time, value."""


def as_float32(values: Iterable[float]) -> list[float]:
    """Round to the precision that TensorBoard stores, so that all views show the same value."""
    return array("f", values).tolist()


def finite_or_none(value: float) -> float | None:
    """Replace infinity and NaN, which JSON does not have, by None."""
    return value if math.isfinite(value) else None


def group_by_tag(points: Iterable[Point]) -> SeriesByTag:
    series: SeriesByTag = {}
    for tag, step, at, value in points:
        row = (step, at, value)
        try:
            series[tag].append(row)
        except KeyError:
            series[tag] = [row]
    return series


def episode_points(rows: Iterable[EpisodeRow]) -> list[Point]:
    """Return two points per episode: its return and its length."""
    points: list[Point] = []
    for _, _, step, at, episodic_return, length in rows:
        points.append((RETURN_TAG, step, at, episodic_return))
        points.append((LENGTH_TAG, step, at, float(length)))
    return points


def first_non_finite(series: SeriesByTag) -> dict[str, int]:
    """Return by tag the step of its first value that is not finite."""
    steps = {}
    for tag, rows in series.items():
        # Float32 values cannot overflow a sum in double: it is finite exactly when all of them are.
        if not math.isfinite(sum(row[2] for row in rows)):
            steps[tag] = next(row[0] for row in rows if not math.isfinite(row[2]))
    return steps


def json_series(series: SeriesByTag, non_finite: Iterable[str]) -> dict[str, Sequence[tuple[int, float, float | None]]]:
    """Return the series for JSON; `non_finite` are the tags with values that are not finite."""
    replaced = {tag: [(step, at, finite_or_none(value)) for step, at, value in series[tag]] for tag in non_finite}
    return {**series, **replaced}


def json_rows(rows: Iterable[EpisodeRow]) -> list[Any]:
    """Return episodes for JSON."""
    return [(*row[:4], finite_or_none(row[4]), row[5]) for row in rows]
