"""The actions of environments that are stepped together, from which a resumed run replays their current episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MAX_RECORDED_STEPS = 100_000
"""Recorded actions per episode; a longer episode cannot be resumed exactly."""
CHUNK_STEPS = 256
"""Steps whose actions are collected before they are recorded."""


class ActionRecord:
    """The actions of each environment's current episode since its reset."""

    def __init__(self, num_envs: int) -> None:
        self._actions: list[list[Array] | None] = [[] for _ in range(num_envs)]
        """None if there are too many."""
        self._began_in_rollout = [True] * num_envs
        """Whether the current episode started in this rollout."""

    def start(self, index: int) -> None:
        """Begin an episode with the next action of this rollout."""
        self._began_in_rollout[index] = True

    def restore(self, index: int, actions: Array | None) -> None:
        self._actions[index] = [] if actions is None else [actions]
        self._began_in_rollout[index] = False

    def add_rollout(self, index: int, actions: Array, length: int) -> None:
        """Record the actions of a rollout that are of the current episode, which has this length after them."""
        if self._began_in_rollout[index]:
            self._actions[index] = []
        recorded = self._actions[index]
        if recorded is not None:
            recorded.append(actions.copy())
            if length > MAX_RECORDED_STEPS:
                self._actions[index] = None
        self._began_in_rollout[index] = False

    def actions_of(self, index: int) -> Array | None:
        """Return the recorded actions, None if there are none or too many."""
        recorded = self._actions[index]
        return np.concatenate(recorded) if recorded else None


class ActionChunk:
    """Collects the actions of single steps."""

    def __init__(self) -> None:
        self._steps: Array | None = None
        """[CHUNK_STEPS, environments, …]"""
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._size == CHUNK_STEPS

    def add(self, actions: Array) -> Array:
        """Copy the actions of a step; return the copy."""
        if self._steps is None:
            self._steps = np.zeros((CHUNK_STEPS, *actions.shape), actions.dtype)
        step_actions: Array = self._steps[self._size]
        step_actions[...] = actions
        self._size += 1
        return step_actions

    def take(self) -> Array | None:
        """Return the collected actions [steps, environments, …], if there are any, and begin again."""
        size, self._size = self._size, 0
        return self._steps[:size] if self._steps is not None and size else None
