"""Passes the episodes of environments that are stepped together on to the run's recorder, each as a whole."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class EndedEpisode(NamedTuple):
    """An episode that ended in this rollout, with what it started from."""

    end: int
    """The number of steps of the rollout until its end."""
    seed: int | None
    random_state: dict[str, Any] | None
    is_terminal: bool


class EpisodeLog:
    """Episodes of `num_envs` environments: rollouts of them, cut where episodes end. Without a recorder, nothing."""

    def __init__(self, recorder: Any, num_envs: int) -> None:
        self.recorder = recorder
        self._ended: list[list[EndedEpisode]] = [[] for _ in range(num_envs)]
        """Those of each environment that ended in this rollout."""
        self._parts: list[list[tuple[Array, Array]] | None] = [[] for _ in range(num_envs)]
        """Actions and rewards of the current episode in earlier rollouts; None: unknown."""

    def start(self, index: int) -> None:
        """Begin an episode; one that is under way is not recorded."""
        self._parts[index] = []

    def resume(self, index: int, actions: Array | None, rewards: list[float]) -> None:
        """Continue an episode of which these are the actions and rewards so far."""
        self._ended[index].clear()
        self._parts[index] = [] if actions is None else [(actions, np.array(rewards, np.float64))]

    def skip(self, index: int) -> None:
        """Do not record the current episode, whose first actions are unknown."""
        self._parts[index] = None

    def mark_end(self, index: int, ended: EndedEpisode) -> None:
        if self.recorder is not None:
            self._ended[index].append(ended)

    def add_rollout(self, index: int, actions: Array, rewards: npt.NDArray[np.float64]) -> None:
        """Pass on the episodes that ended in this rollout, and keep the part of the current one."""
        if self.recorder is None:
            return
        # Copies: an algorithm uses the array of actions again, and may change the rewards that it gets.
        actions, rewards = actions.copy(), rewards.copy()
        begin, parts = 0, self._parts[index]
        for end, seed, state, is_terminal in self._ended[index]:
            if parts is not None:
                own_actions, own_rewards = zip(*parts, (actions[begin:end], rewards[begin:end]), strict=True)
                self.recorder.add(seed, state, own_actions, own_rewards, is_terminal)
            parts, begin = [], end
        self._ended[index].clear()
        if parts is not None and begin < len(rewards):
            parts.append((actions[begin:], rewards[begin:]))
        self._parts[index] = parts

    def flush(self) -> None:
        if self.recorder is not None:
            self.recorder.flush()
