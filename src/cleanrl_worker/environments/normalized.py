"""Environments whose observations are normalized by running statistics, in training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.normalization import ObservationNormalizer
from cleanrl_worker.environments.parallel import ParallelEnvs
from cleanrl_worker.environments.vector import EpisodeEnd

Array = npt.NDArray[Any]


class NormalizedEnvs(ParallelEnvs):
    """Adds each observation to the statistics before it is returned, the final ones of episodes too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.normalize = ObservationNormalizer(self.observation_size)
        self._raw = np.zeros((len(self), self.observation_size))
        self.inputs: Array = np.zeros(self._raw.shape, np.float32)
        """The latest observations, normalized. A checkpoint contains them: their statistics have changed since."""

    def start(self) -> None:
        super().start()
        super().observe(self._raw)
        self.normalize(self._raw, self.inputs)

    def observe(self, into: Array) -> None:
        into[...] = self.inputs

    def step(self, actions: Iterable[Any], into: Array) -> Sequence[EpisodeEnd]:
        episode_ends = super().step(actions, self._raw)
        if episode_ends:
            episode_ends = [end._replace(observation=self._normalize_row(end.observation)) for end in episode_ends]
        self.normalize(self._raw, into)
        self.inputs = into
        return episode_ends

    def _normalize_row(self, observation: Array) -> Array:
        normalized: Array = np.empty(observation.shape, np.float32)
        self.normalize.update_and_normalize(observation, normalized)
        return normalized

    def restore(self, arrays: Mapping[str, Array], facts: Sequence[Mapping[str, Any]]) -> list[str]:
        """Restore the environments, after the statistics."""
        problems = super().restore(arrays, facts)
        super().observe(self._raw)
        self.inputs = self.normalize.normalize_frozen(self._raw) if problems else np.array(arrays["inputs"])
        return problems
