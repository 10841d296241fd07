"""Passes the episodes of environments that are stepped together on to the run's recorder, each as a whole."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mosaic.worker.envs.reproducible import hash_observation

Array = npt.NDArray[Any]


class EndedEpisode(NamedTuple):
    """An episode that ended in this rollout, with what it started from."""

    end: int
    """The number of steps of the rollout until its end."""
    seed: int | None
    random_state: dict[str, Any] | None
    is_terminal: bool


class EpisodePart(NamedTuple):
    """What an earlier rollout has of an episode."""

    actions: Array
    rewards: Array
    hashes: list[tuple[int, int]]
    """Of observations, by the step of the episode."""


class EpisodeLog:
    """Episodes of `num_envs` environments: rollouts of them, cut where episodes end. Without a recorder, nothing."""

    def __init__(self, recorder: Any, num_envs: int) -> None:
        self.recorder = recorder
        self._ended: list[list[tuple[EndedEpisode, int]]] = [[] for _ in range(num_envs)]
        """Those of each environment that ended in this rollout, with the hash of the last observation."""
        self._parts: list[list[EpisodePart] | None] = [[] for _ in range(num_envs)]
        """Of the current episode in earlier rollouts; None: unknown."""
        self._hashes: list[list[tuple[int, int]]] = [[] for _ in range(num_envs)]
        """Of observations of this rollout, by the number of its steps before."""

    def start(self, index: int) -> None:
        """Begin an episode; one that is under way is not recorded."""
        self._parts[index] = []
        self._hashes[index] = self._hashes[index][-1:]

    def resume(self, index: int, actions: Array | None, rewards: list[float]) -> None:
        """Continue an episode of which these are the actions and rewards so far."""
        self._ended[index].clear()
        if actions is not None:
            hashes = [(0, value) for _, value in self._hashes[index][-1:]]
            self._parts[index] = [EpisodePart(actions, np.array(rewards, np.float64), hashes)]
            self._hashes[index] = []
        else:
            self.start(index)

    def skip(self, index: int) -> None:
        """Do not record the current episode, whose first actions are unknown."""
        self._parts[index] = None

    def add_hash(self, index: int, step: int, observation: Any) -> None:
        """Add that of an observation after this many steps of the rollout."""
        if self.recorder is not None:
            self._hashes[index].append((step, hash_observation(observation)))

    def mark_end(self, index: int, ended: EndedEpisode, observation: Any) -> None:
        if self.recorder is not None:
            self._ended[index].append((ended, hash_observation(observation)))

    def add_rollout(self, index: int, actions: Array, rewards: npt.NDArray[np.float64]) -> None:
        """Pass on the episodes that ended in this rollout, and keep the part of the current one."""
        if self.recorder is None:
            return
        # Copies: an algorithm uses the array of actions again, and may change the rewards that it gets.
        actions, rewards = actions.copy(), rewards.copy()
        begin, parts, hashes = 0, self._parts[index], self._hashes[index]
        for (end, seed, state, is_terminal), final_hash in self._ended[index]:
            if parts is not None:
                length = sum(len(part.rewards) for part in parts) + end - begin
                own = [(length - end + step, value) for step, value in hashes if begin <= step < end]
                parts.append(EpisodePart(actions[begin:end], rewards[begin:end], [*own, (length, final_hash)]))
                own_actions, own_rewards, own_hashes = zip(*parts, strict=True)
                self.recorder.add(seed, state, own_actions, own_rewards, is_terminal, [*chain(*own_hashes)])
            parts, begin = [], end
        self._ended[index].clear()
        if parts is not None and begin < len(rewards):
            first = sum(len(part.rewards) for part in parts) - begin
            own = [(first + step, value) for step, value in hashes if step >= begin]
            parts.append(EpisodePart(actions[begin:], rewards[begin:], own))
            hashes = []
        self._parts[index], self._hashes[index] = parts, [(0, value) for _, value in hashes[-1:]]

    def flush(self) -> None:
        if self.recorder is not None:
            self.recorder.flush()
