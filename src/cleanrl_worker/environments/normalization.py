"""Running statistics by which observations and rewards are normalized, and discounted sums.

`ObservationNormalizer` and `RewardNormalizer` are those of ppo_continuous_action. With one environment their values
equal those of Gymnasium's NormalizeObservation and NormalizeReward; with several, all share one set of statistics, so
that a policy has one normalization and not one per environment. The others are those of random network distillation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

EPSILON = 1e-8
INITIAL_COUNT = 1e-4
"""The weight of the initial mean 0 and variance 1."""
CLIP_LIMIT = 10.0
"""Normalized values are clipped to plus and minus this."""
MAX_EXACT_ROWS = 256
"""Frames whose squares can be added in single precision without rounding: 256 × 255² is below 2²⁴."""


def linear_recurrence(terms: npt.NDArray[Any], decays: npt.NDArray[Any], initial: Doubles) -> Doubles:
    """Return x [steps, columns] with x_t = terms_t + decays_t x_{t-1}, where x_{-1} is `initial`."""
    values = np.empty(terms.shape)
    for column, value in enumerate(initial.tolist()):
        # Plain floats: a few numpy calls for each step would take far longer.
        results = []
        for term, decay in zip(terms[:, column].tolist(), decays[:, column].tolist(), strict=True):
            value = term + decay * value
            results.append(value)
        values[:, column] = results
    return values


class ObservationNormalizer:
    """Keeps the running mean and variance of all observations and normalizes by them."""

    def __init__(self, size: int) -> None:
        self.mean: Doubles = np.zeros(size)
        self.squared_deviations: Doubles = np.full(size, INITIAL_COUNT)
        """The variance times the count: a sum is cheaper to update."""
        self.count = INITIAL_COUNT
        self._delta, self._centered, self._deviation = np.empty((3, size))

    def __call__(self, observations: npt.NDArray[Any], into: Array) -> None:
        """Add the rows to the statistics one after the other and write them, normalized, to `into`."""
        for row, out in zip(observations, into, strict=True):
            self.update_and_normalize(row, out)

    def update_and_normalize(self, row: npt.NDArray[Any], out: Array) -> None:
        delta, centered, deviation = self._delta, self._centered, self._deviation
        self.count += 1
        np.subtract(row, self.mean, out=delta)
        np.multiply(delta, 1 / self.count, out=deviation)
        np.add(self.mean, deviation, out=self.mean)
        np.subtract(row, self.mean, out=centered)
        np.multiply(delta, centered, out=delta)
        np.add(self.squared_deviations, delta, out=self.squared_deviations)
        np.multiply(self.squared_deviations, 1 / self.count, out=deviation)
        np.add(deviation, EPSILON, out=deviation)
        np.sqrt(deviation, out=deviation)
        np.divide(centered, deviation, out=centered)
        np.maximum(centered, -CLIP_LIMIT, out=centered)
        np.minimum(centered, CLIP_LIMIT, out=centered)
        out[...] = centered

    def arrays(self) -> dict[str, Doubles]:
        return {"observation.mean": self.mean.copy(), "observation.squares": self.squared_deviations.copy()}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], count: float) -> None:
        self.mean[...] = arrays["observation.mean"]
        self.squared_deviations[...] = arrays["observation.squares"]
        self.count = count

    def normalize_frozen(self, observations: npt.NDArray[Any]) -> Array:
        """Normalize without updating the statistics."""
        scaled = (observations - self.mean) / np.sqrt(self.squared_deviations / self.count + EPSILON)
        return np.clip(scaled, -CLIP_LIMIT, CLIP_LIMIT).astype(np.float32)


class RewardNormalizer:
    """Divides rewards by the running standard deviation of their discounted sum, one rollout at a time.

    Acting does not depend on rewards, so the statistics of all steps can be computed afterwards.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self.mean = 0.0
        self.squared_deviations = INITIAL_COUNT
        self.count = INITIAL_COUNT
        self.discounted_sums: Doubles = np.zeros(num_envs)
        """The discounted reward sum of each environment."""

    def __call__(self, rewards: Doubles, terminals: npt.NDArray[np.bool_]) -> Doubles:
        """Normalize rewards [steps, environments]. Only a terminal state restarts a sum, as in Gymnasium."""
        sums = linear_recurrence(rewards, self.gamma * (1.0 - terminals), self.discounted_sums)
        self.discounted_sums = sums[-1].copy()
        # Welford's running variance over all sums in the order of the steps, vectorized.
        flat = sums.ravel()
        counts = self.count + np.arange(1, flat.size + 1)
        means = (self.mean * self.count + np.cumsum(flat)) / counts
        previous_means = np.concatenate(([self.mean], means[:-1]))
        squares = self.squared_deviations + np.cumsum((flat - previous_means) * (flat - means))
        self.mean, self.squared_deviations, self.count = float(means[-1]), float(squares[-1]), float(counts[-1])
        scaled = rewards / np.sqrt(squares / counts + EPSILON).reshape(rewards.shape)
        clipped: Doubles = np.clip(scaled, -CLIP_LIMIT, CLIP_LIMIT)
        return clipped

    def facts(self) -> dict[str, Any]:
        return {
            "mean": self.mean,
            "squares": self.squared_deviations,
            "count": self.count,
            "sums": self.discounted_sums.tolist(),
        }

    def restore(self, facts: dict[str, Any]) -> None:
        self.mean, self.squared_deviations, self.count = facts["mean"], facts["squares"], facts["count"]
        self.discounted_sums = np.array(facts["sums"], np.float64)


# --- random network distillation


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

    def arrays(self, name: str) -> dict[str, Doubles]:
        return {f"{name}.mean": self.mean, f"{name}.variance": self.variance}

    def restore(self, name: str, arrays: Mapping[str, npt.NDArray[Any]], count: float) -> None:
        self.mean, self.variance = np.array(arrays[f"{name}.mean"]), np.array(arrays[f"{name}.variance"])
        self.count = count


class FrameMoments(RunningMoments):
    """Moments of each pixel."""

    def add_frames(self, frames: npt.NDArray[Any]) -> None:
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

    def __call__(self, rewards: npt.NDArray[Any]) -> Doubles:
        """Add rewards [steps, environments] to the statistics and return them scaled."""
        filtered = np.empty(rewards.shape)
        for step, step_rewards in enumerate(rewards):
            self.discounted_sums = self.discounted_sums * self._gamma + step_rewards
            filtered[step] = self.discounted_sums
        self.moments.add(filtered.mean(), filtered.var(), filtered.size)
        return np.asarray(rewards / np.sqrt(self.moments.variance), np.float64)

    def arrays(self) -> dict[str, Doubles]:
        return {**self.moments.arrays("surprise"), "surprise.sums": self.discounted_sums}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], count: float) -> None:
        self.moments.restore("surprise", arrays, count)
        self.discounted_sums = np.array(arrays["surprise.sums"])
