"""What random network distillation keeps count of: how pictures look on the whole, and how large surprises are.

Numpy alone. Both are running moments that begin at mean 0 and variance 1 with hardly any weight.
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
"""Pictures whose squares can be added up in single precision without a rounding: 256 × 255² is below 2²⁴."""


class RunningMoments:
    """A running mean and variance of equal shape, a batch at a time (Chan's formula)."""

    def __init__(self, *shape: int) -> None:
        self.mean: Doubles = np.zeros(shape)
        self.variance: Doubles = np.ones(shape)
        self.count = INITIAL_COUNT

    def add(self, mean: Any, variance: Any, count: int) -> None:
        """Takes in a batch of so many, of which the moments are these."""
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
    """Of every pixel by itself."""

    def add_frames(self, frames: Array) -> None:
        """Takes in bytes [rows, height, width]."""
        sums, squares = np.zeros(self.mean.shape), np.zeros(self.mean.shape)
        for first in range(0, len(frames), MAX_EXACT_ROWS):
            part = frames[first : first + MAX_EXACT_ROWS].astype(np.float32)
            sums += part.sum(0)
            np.square(part, out=part)
            squares += part.sum(0)
        mean = sums / len(frames)
        self.add(mean, np.maximum(squares / len(frames) - mean**2, 0), len(frames))


class IntrinsicRewardScaler:
    """Brings intrinsic rewards to about one size: divides by the deviation of their discounted sum over time."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma = gamma
        self.moments = RunningMoments()
        self.discounted_sums: Doubles = np.zeros(num_envs)
        """The discounted sum of each environment. An episode's end is none for curiosity."""

    def __call__(self, rewards: Array) -> Doubles:
        """Takes in rewards [steps, environments], and gives them scaled."""
        filtered = np.empty(rewards.shape)
        for step, found in enumerate(rewards):
            self.discounted_sums = self.discounted_sums * self._gamma + found
            filtered[step] = self.discounted_sums
        self.moments.add(filtered.mean(), filtered.var(), filtered.size)
        return np.asarray(rewards / np.sqrt(self.moments.variance), np.float64)

    def arrays(self) -> dict[str, Array]:
        return {**self.moments.arrays("surprise"), "surprise.sums": self.discounted_sums}

    def restore(self, arrays: Mapping[str, Array], count: float) -> None:
        self.moments.restore("surprise", arrays, count)
        self.discounted_sums = np.array(arrays["surprise.sums"])
