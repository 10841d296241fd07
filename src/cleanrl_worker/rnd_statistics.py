"""Running statistics of random network distillation: of frames, and of intrinsic rewards.

Needs only numpy. Both are running moments that start at mean 0 and variance 1 with a very small weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]
INITIAL_COUNT = 1e-4
"""The weight of the initial mean 0 and variance 1."""
MAX_EXACT_ROWS = 256
"""Frames whose squares can be added in single precision without rounding: 256 × 255² is below 2²⁴."""


class RunningMoments:
    """A running mean and variance of equal shape, updated by batches (Chan's formula)."""

    def __init__(self, *shape: int) -> None:
        self.mean: Doubles = np.zeros(shape)
        self.variance: Doubles = np.ones(shape)
        self.count = INITIAL_COUNT

    def add(self, mean: Any, variance: Any, count: int) -> None:
        """Add a batch of `count` values with this mean and variance."""
        total = self.count + count
        delta = mean - self.mean
        squares = self.variance * self.count + variance * count + delta**2 * (self.count * count / total)
        self.mean = np.asarray(self.mean + delta * (count / total))
        self.variance = np.asarray(squares / total)
        self.count = total

    def arrays(self, name: str) -> dict[str, Array]:
        return {f"{name}.mean": self.mean, f"{name}.variance": self.variance}

    def restore(self, name: str, arrays: Mapping[str, Array], count: float) -> None:
        self.mean, self.variance = np.array(arrays[f"{name}.mean"]), np.array(arrays[f"{name}.variance"])
        self.count = count


class FrameMoments(RunningMoments):
    """Moments of each pixel."""

    def add_frames(self, frames: Array) -> None:
        """Add frames as bytes [rows, height, width]."""
        sums, squares = np.zeros(self.mean.shape), np.zeros(self.mean.shape)
        for first in range(0, len(frames), MAX_EXACT_ROWS):
            part = frames[first : first + MAX_EXACT_ROWS].astype(np.float32)
            sums += part.sum(0)
            np.square(part, out=part)
            squares += part.sum(0)
        mean = sums / len(frames)
        self.add(mean, np.maximum(squares / len(frames) - mean**2, 0), len(frames))


class IntrinsicRewardScaler:
    """Scales intrinsic rewards: divides by the standard deviation of their discounted sum over time."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma = gamma
        self.moments = RunningMoments()
        self.discounted_sums: Doubles = np.zeros(num_envs)
        """The discounted sum of each environment. The end of an episode does not reset it."""

    def __call__(self, rewards: Array) -> Doubles:
        """Add rewards [steps, environments] to the statistics and return them scaled."""
        filtered = np.empty(rewards.shape)
        for step, step_rewards in enumerate(rewards):
            self.discounted_sums = self.discounted_sums * self._gamma + step_rewards
            filtered[step] = self.discounted_sums
        self.moments.add(filtered.mean(), filtered.var(), filtered.size)
        return np.asarray(rewards / np.sqrt(self.moments.variance), np.float64)

    def arrays(self) -> dict[str, Array]:
        return {**self.moments.arrays("surprise"), "surprise.sums": self.discounted_sums}

    def restore(self, arrays: Mapping[str, Array], count: float) -> None:
        self.moments.restore("surprise", arrays, count)
        self.discounted_sums = np.array(arrays["surprise.sums"])
