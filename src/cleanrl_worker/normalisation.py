"""Running normalisation of observations and rewards, as ppo_continuous_action needs it.

With one environment the figures are those of Gymnasium's NormalizeObservation and NormalizeReward; with several, one
set of statistics is shared by all, so that a policy has one normalisation and not one for each environment.
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
"""Normalised values are cut to plus and minus this."""


class ObservationNormaliser:
    """Running mean and variance of every observation seen; normalises by them."""

    def __init__(self, size: int) -> None:
        self.mean: Doubles = np.zeros(size)
        self.squared_deviations: Doubles = np.full(size, INITIAL_COUNT)
        """The variance times the count: a sum is cheaper to keep up to date."""
        self.count = INITIAL_COUNT
        self._delta, self._centred, self._deviation = np.empty((3, size))

    def __call__(self, observations: npt.NDArray[Any], into: Array) -> None:
        """Takes the rows into the statistics, one after the other, and writes them normalised `into` another array."""
        for row, out in zip(observations, into, strict=True):
            self.update_and_normalise(row, out)

    def update_and_normalise(self, row: npt.NDArray[Any], out: Array) -> None:
        delta, centred, spread = self._delta, self._centred, self._deviation
        self.count += 1
        np.subtract(row, self.mean, out=delta)
        np.multiply(delta, 1 / self.count, out=spread)
        np.add(self.mean, spread, out=self.mean)
        np.subtract(row, self.mean, out=centred)
        np.multiply(delta, centred, out=delta)
        np.add(self.squared_deviations, delta, out=self.squared_deviations)
        np.multiply(self.squared_deviations, 1 / self.count, out=spread)
        np.add(spread, EPSILON, out=spread)
        np.sqrt(spread, out=spread)
        np.divide(centred, spread, out=centred)
        np.maximum(centred, -CLIP_LIMIT, out=centred)
        np.minimum(centred, CLIP_LIMIT, out=centred)
        out[...] = centred

    def arrays(self) -> dict[str, Doubles]:
        return {"observation.mean": self.mean.copy(), "observation.squares": self.squared_deviations.copy()}

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], count: float) -> None:
        self.mean[...] = arrays["observation.mean"]
        self.squared_deviations[...] = arrays["observation.squares"]
        self.count = count

    def normalise_frozen(self, observations: npt.NDArray[Any]) -> Array:
        """Normalises without learning from what it sees."""
        scaled = (observations - self.mean) / np.sqrt(self.squared_deviations / self.count + EPSILON)
        return np.clip(scaled, -CLIP_LIMIT, CLIP_LIMIT).astype(np.float32)


class RewardNormaliser:
    """Divides rewards by the running deviation of their discounted sum; a whole rollout at once.

    Acting does not look at rewards, so the statistics of every step can be found afterwards.
    """

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self.mean = 0.0
        self.squared_deviations = INITIAL_COUNT
        self.count = INITIAL_COUNT
        self.discounted_sums: Doubles = np.zeros(num_envs)
        """The discounted sum of each environment."""

    def __call__(self, rewards: Doubles, terminals: npt.NDArray[np.bool_]) -> Doubles:
        """Normalises rewards [steps, environments]. Only a terminal state restarts a sum, as in Gymnasium."""
        sums = np.empty_like(rewards)
        for env in range(rewards.shape[1]):
            last = float(self.discounted_sums[env])
            column = []
            decays = self.gamma * (1.0 - terminals[:, env])
            for reward, decay in zip(rewards[:, env].tolist(), decays.tolist(), strict=True):
                last = last * decay + reward
                column.append(last)
            sums[:, env] = column
        self.discounted_sums = sums[-1].copy()
        # Welford's running variance over all sums in the order of their steps, without a loop.
        flat = sums.ravel()
        counts = self.count + np.arange(1, flat.size + 1)
        means = (self.mean * self.count + np.cumsum(flat)) / counts
        before = np.concatenate(([self.mean], means[:-1]))
        squares = self.squared_deviations + np.cumsum((flat - before) * (flat - means))
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
