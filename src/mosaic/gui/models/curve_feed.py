"""From the points of a run to a curve, by the x that was chosen; only what is new is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mosaic.contracts.metric_tags import LENGTH_TAG, RETURN_TAG
from mosaic.gui.models.curve_model import ChartCurve
from mosaic.gui.models.growing_array import Floats
from mosaic.gui.models.series import RunSeries

X_KINDS = {"step": "Step", "relative": "Relative time", "wall": "Wall time", "episode": "Episode"}


class PointColumns(Protocol):
    @property
    def step(self) -> Floats: ...
    @property
    def at(self) -> Floats: ...
    @property
    def value(self) -> Floats: ...
    def __len__(self) -> int: ...


class TaggedPoints(Protocol):
    """What a feed needs of a run's series, or of its hardware."""

    @property
    def tags(self) -> Mapping[str, PointColumns]: ...


@dataclass(frozen=True)
class TagSnapshot:
    """The points of one tag as they are now, for another thread to read."""

    step: Floats
    at: Floats
    value: Floats

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class SeriesSnapshot:
    tags: dict[str, TagSnapshot]


def take_snapshot(series: RunSeries) -> SeriesSnapshot:
    """Costs next to nothing: the arrays are views, and what is written after their end does not affect them."""
    return SeriesSnapshot({tag: TagSnapshot(rows.step, rows.at, rows.value) for tag, rows in series.tags.items()})


class CurveFeed:
    def __init__(self, points: TaggedPoints, tag: str, curve: ChartCurve) -> None:
        self.points = points
        self.tag = tag
        self.curve = curve
        self._source: PointColumns | None = None
        self._x_kind = ""

    def update(self, x_kind: str) -> bool:
        """Whether the curve has changed."""
        source = self.points.tags.get(self.tag)
        if source is not self._source or x_kind != self._x_kind:
            self._source, self._x_kind = source, x_kind
            empty = np.empty(0)
            self.curve.replace(empty, empty)
            if source is None:
                return True
        if source is None or len(source) == len(self.curve):
            return False
        new = slice(len(self.curve), len(source))
        self.curve.extend(self._x_values(source, x_kind)[new], source.value[new])
        return True

    def _x_values(self, source: PointColumns, kind: str) -> Floats:
        if kind == "wall":
            return source.at
        if kind == "relative":
            return source.at - start_time(self.points)
        if kind == "episode":
            if self.tag in (RETURN_TAG, LENGTH_TAG):
                return np.arange(1.0, len(source) + 1)
            episodes = self.points.tags.get(RETURN_TAG)
            if episodes is not None:
                return np.searchsorted(episodes.step, source.step, side="right").astype(np.float64)
        return source.step


def start_time(points: TaggedPoints) -> float:
    """When the first point was logged, in seconds since the epoch."""
    return min((float(source.at[0]) for source in points.tags.values() if len(source)), default=0.0)
