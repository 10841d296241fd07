"""Aggregates the curves of several runs: smoothing, resampling to a common grid, and the mean with a 95 % interval."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_BLOCK_POINTS = 32
"""Points per row of the matrix product in `_decaying_sum`: more cost arithmetic, fewer cost passes."""
_CHUNK_POINTS = 1 << 18
"""Points that are averaged at once: intermediate arrays then fit the processor's cache, which is twice as fast."""
_T_975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""Student's t for 95 %, by degrees of freedom from 1; beyond the table its expansion is exact to four digits."""
_Z_975 = 1.959964


class ConfidenceBand(NamedTuple):
    """The mean and its 95 % interval at each point of a grid. NaN where unknown."""

    mean: Floats
    low: Floats
    high: Floats
    runs: npt.NDArray[np.int64]
    """Number of runs with a value at each point."""

    def __repr__(self) -> str:
        return f"<ConfidenceBand: {len(self.mean):,} points>"


class ConfidenceInterval(NamedTuple):
    point: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.point:.6g}" + (f" [{self.low:.6g}, {self.high:.6g}]" if math.isfinite(self.low) else "")


class Smoother:
    """TensorBoard's exponential moving average with bias correction.

        level[t] = weight * level[t-1] + (1 - weight) * value[t],  average[t] = level[t] / (1 - weight**t)

    `extend` continues where it stopped, so that a growing curve is not averaged again. Values that are not finite are
    skipped and stay gaps.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self._level = 0.0
        self._age = 0

    def extend(self, values: Floats) -> Floats:
        if self.weight <= 0 or len(values) == 0:
            return values.copy()
        if len(values) > _CHUNK_POINTS:
            parts = range(0, len(values), _CHUNK_POINTS)
            return np.concatenate([self.extend(values[part : part + _CHUNK_POINTS]) for part in parts])
        finite = np.isfinite(values)
        known = values if finite.all() else values[finite]
        average = self._average(known) if len(known) else known
        if known is values:
            return average
        result = np.full(len(values), np.nan)
        result[finite] = average
        return result

    def _average(self, known: Floats) -> Floats:
        weight = self.weight
        average = _decaying_sum(known, weight)
        average *= 1 - weight
        reach = int(-40 / np.log(weight)) + 1  # beyond it the past is below a float's precision
        near = min(len(known), reach)
        decay = np.power(weight, np.arange(1, near + 1))
        average[:near] += self._level * decay
        self._level = float(average[-1])
        if self._age < reach:
            average[:near] /= 1 - weight**self._age * decay
        self._age += len(known)
        return average


def smooth(values: Floats, weight: float) -> Floats:
    return Smoother(weight).extend(values)


def _decaying_sum(values: Floats, weight: float) -> Floats:
    """Compute `y[t] = weight * y[t-1] + values[t]` without a loop over points: in blocks, then over their ends."""
    count = len(values)
    if count <= _BLOCK_POINTS:
        single: Floats = _decay_matrix(weight, count) @ values
        return single
    blocks = -(-count // _BLOCK_POINTS)
    padded = np.zeros(blocks * _BLOCK_POINTS)
    padded[:count] = values
    rows: Floats = padded.reshape(blocks, _BLOCK_POINTS) @ _decay_matrix(weight, _BLOCK_POINTS).T
    ends = _decaying_sum(rows[:-1, -1], weight**_BLOCK_POINTS)
    rows[1:] += ends[:, None] * np.power(weight, np.arange(1, _BLOCK_POINTS + 1))
    return rows.reshape(-1)[:count]


def _decay_matrix(weight: float, size: int) -> Floats:
    age = np.subtract.outer(np.arange(size), np.arange(size))
    powers: Floats = np.where(age >= 0, np.power(weight, np.maximum(age, 0)), 0.0)
    return powers


def resample(x: Floats, y: Floats, grid: Floats) -> Floats:
    """Return the mean of the points around each grid point, interpolated where there are none and NaN outside.

    `x` and `grid` ascend. Points that are not finite are skipped.
    """
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    result = np.full(len(grid), np.nan)
    if len(x) == 0:
        return result
    edges = (grid[1:] + grid[:-1]) / 2
    cell = np.searchsorted(edges, x)
    counts = np.bincount(cell, minlength=len(grid))
    sums = np.bincount(cell, weights=y, minlength=len(grid))
    filled = counts > 0
    result[filled] = sums[filled] / counts[filled]
    inside = (grid >= x[0]) & (grid <= x[-1]) & ~filled
    result[inside] = np.interp(grid[inside], grid[filled], result[filled])
    return result


def mean_with_band(samples: Floats) -> ConfidenceBand:
    """Return the mean over the rows (one per run) and Student's 95 % interval. NaN means that a run has no value.

        mean ± t(0.975, n - 1) * sqrt(sum((x - mean)**2) / (n - 1) / n)

    A single run has a mean and no interval.
    """
    present = np.isfinite(samples)
    count = present.sum(axis=0)
    divisor = np.maximum(count, 1)
    values = np.where(present, samples, 0.0)
    mean = np.where(count > 0, values.sum(axis=0) / divisor, np.nan)
    squares = (np.where(present, samples - mean, 0.0) ** 2).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(squares / (count - 1) / divisor)
    half = np.where(count > 1, error * t_975(np.maximum(count - 1, 1)), np.nan)
    return ConfidenceBand(mean, mean - half, mean + half, count)


def score_with_interval(values: Floats) -> ConfidenceInterval:
    """Return the mean of episodes and its 95 % interval: Wilson's of a rate where each is 0 or 1, else Student's."""
    count = len(values)
    if count < 2 or not np.isin(values, (0.0, 1.0)).all():
        return mean_with_interval(values)
    mean, z2 = float(values.mean()), _Z_975**2
    center = (mean + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z_975 / (1 + z2 / count) * math.sqrt(mean * (1 - mean) / count + z2 / (4 * count**2))
    low, high = (round(value, 12) for value in (center - half, center + half))  # of 0 or n of n, exactly 0 or 1
    return ConfidenceInterval(mean, max(0.0, low), min(1.0, high))


def mean_with_interval(values: Floats) -> ConfidenceInterval:
    """Return the mean with Student's 95 % interval; NaN if a value is not finite. A single value has no interval."""
    if not len(values) or not np.isfinite(values).all():
        return ConfidenceInterval(float("nan"), float("nan"), float("nan"))
    band = mean_with_band(values[:, None])
    return ConfidenceInterval(float(band.mean[0]), float(band.low[0]), float(band.high[0]))


def t_975(degrees_of_freedom: npt.NDArray[np.int64]) -> Floats:
    """Return Student's t(0.975): the half width of a 95 % interval of a mean in standard errors."""
    n, z = degrees_of_freedom.astype(np.float64), _Z_975
    tail = (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
    table = np.array(_T_975)
    return np.where(degrees_of_freedom <= len(table), table[np.minimum(degrees_of_freedom, len(table)) - 1], tail)
