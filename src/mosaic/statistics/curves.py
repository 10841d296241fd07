"""Curves of several runs made one: smoothing, a common grid, and the mean with its 95 % interval."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_BLOCK_POINTS = 32
"""Points that one row of the matrix product in `_decayed` covers: larger costs arithmetic, smaller costs passes."""
_CHUNK_POINTS = 1 << 18
"""Points that are averaged at once: what is made on the way then stays in the processor's cache, twice as fast."""
_T_975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""Student's t for 95 %, by degrees of freedom from 1; beyond the table its expansion is exact to four digits."""
_Z_975 = 1.959964


class ConfidenceBand(NamedTuple):
    """A value for each point of a grid, and how sure it is. NaN where nothing, or nothing about that, is known."""

    mean: Floats
    low: Floats
    high: Floats
    runs: npt.NDArray[np.int64]
    """How many have a value there."""


class ConfidenceInterval(NamedTuple):
    point: float
    low: float
    high: float


class Smoother:
    """The exponential moving average that TensorBoard draws: `weight` of the past, corrected for its short beginning.

    It goes on where it stopped, so that a curve that grows is not averaged again. What is not finite is passed over
    and stays a gap.
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
        reach = int(-40 / np.log(weight)) + 1  # beyond it the past is below what a float can tell
        near = min(len(known), reach)
        fading = np.power(weight, np.arange(1, near + 1))
        average[:near] += self._level * fading
        self._level = float(average[-1])
        if self._age < reach:
            average[:near] /= 1 - weight**self._age * fading
        self._age += len(known)
        return average


def smooth(values: Floats, weight: float) -> Floats:
    return Smoother(weight).extend(values)


def _decaying_sum(values: Floats, weight: float) -> Floats:
    """`y[t] = weight * y[t-1] + values[t]` without a loop over the points: in blocks, then over the blocks' ends."""
    count = len(values)
    if count <= _BLOCK_POINTS:
        few: Floats = _decay_matrix(weight, count) @ values
        return few
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
    """The mean of the points about each grid point; between points a straight line, outside of them NaN.

    `x` and `grid` ascend. Points that are not finite are passed over.
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
    """Over the rows (one a run), column by column: the mean and Student's 95 % interval. NaN: that run has no value.

    One run alone has a mean and no interval.
    """
    present = np.isfinite(samples)
    count = present.sum(axis=0)
    some = np.maximum(count, 1)
    held = np.where(present, samples, 0.0)
    mean = np.where(count > 0, held.sum(axis=0) / some, np.nan)
    squares = (np.where(present, samples - mean, 0.0) ** 2).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(squares / (count - 1) / some)
    half = np.where(count > 1, error * t_975(np.maximum(count - 1, 1)), np.nan)
    return ConfidenceBand(mean, mean - half, mean + half, count)


def mean_with_interval(values: Floats) -> ConfidenceInterval:
    """The mean of some numbers with Student's 95 % interval: unknown where one of them is, and for one alone."""
    if not len(values) or not np.isfinite(values).all():
        return ConfidenceInterval(float("nan"), float("nan"), float("nan"))
    spread = mean_with_band(values[:, None])
    return ConfidenceInterval(float(spread.mean[0]), float(spread.low[0]), float(spread.high[0]))


def t_975(degrees_of_freedom: npt.NDArray[np.int64]) -> Floats:
    """How many standard errors a 95 % interval of a mean reaches to either side."""
    n, z = degrees_of_freedom.astype(np.float64), _Z_975
    tail = (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
    table = np.array(_T_975)
    return np.where(degrees_of_freedom <= len(table), table[np.minimum(degrees_of_freedom, len(table)) - 1], tail)
