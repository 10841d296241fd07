"""One line of a chart as numbers: it grows, is smoothed, and is reduced to what a screen can show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mosaic.contracts.metric_tags import LENGTH_TAG, RETURN_TAG
from mosaic.gui.models.series import Floats, GrowingArray, GrowingPoints
from mosaic.statistics.curves import Smoother

X_KINDS = {"step": "Step", "relative": "Relative time", "wall": "Wall time", "episode": "Episode"}

NEGLIGIBLE = 1e-9
"""A smoothed value smaller than this part of the largest value is shown as 0: an average never quite reaches it."""
Line = tuple[Floats, Floats]
"""x and y."""
NO_LINE: Line = (np.empty(0), np.empty(0))


class ReducedCurve(NamedTuple):
    """What is drawn: at most about one entry per bin, ascending in x."""

    x: Floats
    raw: Floats
    smooth: Floats
    low: Floats
    high: Floats


class ChartCurve:
    """Points in ascending x. The band shows `low` and `high` where they are given, else the extremes of the points.

    A value that is not finite is a gap.
    """

    def __init__(self, weight: float = 0.0) -> None:
        self._reset(weight)

    def _reset(self, weight: float) -> None:
        self._x, self._y, self._smooth, self._low, self._high = (GrowingArray() for _ in range(5))
        self._smoother = Smoother(weight)
        self._has_gaps = False
        self._largest = 0.0
        """Of all values without their sign."""
        self.has_band = False
        """Whether `low` and `high` were given."""
        self.tail: Line = NO_LINE
        """How the curve continues where it is not complete; drawn dotted."""
        self.lines: Line = NO_LINE
        """Thin lines behind the curve, with gaps between them."""

    def __len__(self) -> int:
        return len(self._x)

    @property
    def weight(self) -> float:
        return self._smoother.weight

    @property
    def x(self) -> Floats:
        return self._x.values

    @property
    def y(self) -> Floats:
        return self._y.values

    @property
    def smooth(self) -> Floats:
        """Return the smoothed values. Computed on request: a hidden chart costs nothing when the weight changes."""
        known = len(self._smooth)
        if known < len(self):
            self._smooth.extend(self._smoother.extend(self.y[known:]))
        return self._smooth.values

    def replace(self, x: Floats, y: Floats, low: Floats | None = None, high: Floats | None = None) -> None:
        self._reset(self.weight)
        self.extend(x, y, low, high)

    def extend(self, x: Floats, y: Floats, low: Floats | None = None, high: Floats | None = None) -> None:
        """Append points. Where they are not in ascending order, all are sorted again."""
        last = self.x[-1] if len(self) else -math.inf
        if len(x) and (x[0] < last or bool((x[1:] < x[:-1]).any())):
            all_x, all_y = np.concatenate([self.x, x]), np.concatenate([self.y, y])
            order = np.argsort(all_x, kind="stable")
            self._reset(self.weight)
            x, y, low, high = all_x[order], all_y[order], None, None
        self._x.extend(x)
        self._y.extend(y)
        finite = y[np.isfinite(y)]
        self._has_gaps = self._has_gaps or len(finite) < len(y)
        if len(finite):
            self._largest = max(self._largest, float(np.abs(finite).max()))
        if low is not None and high is not None:
            self.has_band = True
            self._low.extend(low)
            self._high.extend(high)

    def set_weight(self, weight: float) -> None:
        if weight != self.weight:
            self._smoother = Smoother(weight)
            self._smooth = GrowingArray()

    def value_at(self, x: float) -> tuple[float, float, float] | None:
        """Return x, value and smoothed value of the point nearest to `x`; None outside of the curve."""
        xs = self.x
        if len(xs) == 0 or not xs[0] <= x <= xs[-1]:
            return None
        right = int(np.searchsorted(xs, x))
        left = max(0, right - 1)
        at = left if x - xs[left] < xs[min(right, len(xs) - 1)] - x else min(right, len(xs) - 1)
        return self._point(at)

    def last_point(self) -> tuple[float, float, float] | None:
        """Return the last point that is not a gap, as `value_at` does."""
        at = len(self) - 1
        if at >= 0 and not math.isfinite(self.y[at]):
            known = np.flatnonzero(np.isfinite(self.y))
            at = int(known[-1]) if len(known) else -1
        return None if at < 0 else self._point(at)

    def _point(self, at: int) -> tuple[float, float, float]:
        smooth = float(self.smooth[at])
        if self.weight > 0 and abs(smooth) < self._largest * NEGLIGIBLE:
            smooth = 0.0
        return float(self.x[at]), float(self.y[at]), smooth

    def reduce(self, begin: float, end: float, bins: int) -> ReducedCurve:
        """Return the points from `begin` to `end` and one at either side, reduced to bins where they are too many."""
        x = self.x
        first, last = np.searchsorted(x, (begin, end), side="left")
        first, last = max(0, int(first) - 1), min(len(x), int(last) + 1)
        part = slice(first, last)
        y = self.y[part]
        low, high = (self._low.values[part], self._high.values[part]) if self.has_band else (y, y)
        if last - first <= 2 * bins or end <= begin:
            return ReducedCurve(x[part], y, self.smooth[part], low, high)
        # Bins are multiples of their width, not parts of the range: the line does not flicker while it is panned.
        width = (end - begin) / bins
        edges = np.arange(math.floor(begin / width), math.ceil(end / width) + 1) * width
        starts = np.concatenate([[first], np.clip(np.searchsorted(x, edges), first, last - 1)])
        starts = starts[np.append(True, starts[1:] > starts[:-1])]  # np.unique would load a module of its own here
        stops = np.append(starts[1:], last)
        offsets = starts - first
        low, high = np.fmin.reduceat(low, offsets), np.fmax.reduceat(high, offsets)
        if self._has_gaps:
            finite = np.isfinite(y)
            counts = np.add.reduceat(finite.astype(np.float64), offsets)
            sums = np.add.reduceat(np.where(finite, y, 0.0), offsets)
            raw = np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)
        else:
            raw = np.add.reduceat(y, offsets) / (stops - starts)
        middle = (starts + stops) // 2
        return ReducedCurve((x[starts] + x[stops - 1]) / 2, raw, self.smooth[middle], low, high)


class CurveFeed:
    """Appends the new points of one tag to a curve, by the chosen x."""

    def __init__(self, tags: Mapping[str, GrowingPoints], tag: str, curve: ChartCurve) -> None:
        self.tags = tags
        self.tag = tag
        self.curve = curve
        self._source: GrowingPoints | None = None
        self._x_axis = ("", 0.0)
        """Its kind, and where it begins: a tag that arrives later may have an earlier point."""

    def update(self, x_kind: str) -> bool:
        """Return whether the curve has changed."""
        source, origin = self.tags.get(self.tag), _origin(self.tags) if x_kind == "relative" else 0.0
        if source is not self._source or (x_kind, origin) != self._x_axis:
            self._source, self._x_axis = source, (x_kind, origin)
            empty = np.empty(0)
            self.curve.replace(empty, empty)
            if source is None:
                return True
        if source is None or len(source) == len(self.curve):
            return False
        new = slice(len(self.curve), len(source))
        self.curve.extend(x_values(self.tags, self.tag, x_kind)[new], source.value[new])
        return True


def _origin(tags: Mapping[str, GrowingPoints]) -> float:
    """Return the time of the earliest point."""
    return min((float(points.at[0]) for points in tags.values() if len(points)), default=0.0)


def x_values(tags: Mapping[str, GrowingPoints], tag: str, kind: str) -> Floats:
    """Return the x of the points of a tag."""
    source = tags[tag]
    if kind == "wall":
        return source.at
    if kind == "relative":
        return source.at - _origin(tags)
    if kind == "episode":
        if tag in (RETURN_TAG, LENGTH_TAG):
            return np.arange(1.0, len(source) + 1)
        episodes = tags.get(RETURN_TAG)
        if episodes is not None:
            return np.searchsorted(episodes.step, source.step, side="right").astype(np.float64)
    return source.step


def to_log_scale(reduced: ReducedCurve) -> ReducedCurve:
    """As drawn on a logarithmic axis: what is not above zero is a gap; a band that reaches there ends at the line."""

    raw, smooth, low, high = map(log_values, (reduced.raw, reduced.smooth, reduced.low, reduced.high))
    return ReducedCurve(reduced.x, raw, smooth, np.where(np.isnan(low), raw, low), high)


def log_values(values: Floats) -> Floats:
    return np.log10(values, out=np.full(len(values), np.nan), where=values > 0)


def finite_range(*parts: Floats) -> tuple[float, float] | None:
    """Return the smallest and the largest finite number."""
    known = [part[np.isfinite(part)] for part in parts]
    known = [part for part in known if len(part)]
    if not known:
        return None
    return min(float(part.min()) for part in known), max(float(part.max()) for part in known)


def round_range(low: float, high: float) -> tuple[float, float]:
    """Widen a range to round numbers, so that it does not change with every new point."""
    span = high - low
    # Less than this is the rounding of the smoothing, not a change of the data.
    if span <= 1e-9 * max(abs(low), abs(high)) or not math.isfinite(span):
        half = abs(low) * 0.1 or 1.0
        return low - half, high + half
    step = round_step(span / 25)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def round_step(min_step: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, … that is at least `min_step`."""
    scale = 10.0 ** math.floor(math.log10(min_step))
    return next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= min_step * (1 - 1e-9))
