"""Hindsight experience replay: a replay buffer for goal environments that learns from goals which were reached.

A sampled transition gets, with some probability, another goal: one that was reached later in its episode (the strategy
"future"). The environment's `compute_reward` gives the reward for it. Failed episodes thus show how to reach a goal.

Paper: Andrychowicz et al., "Hindsight Experience Replay", arXiv:1707.01495 (2017).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.replay.buffers import PackedBatch, Replay
from mosaic.contracts.errors import BadInput
from mosaic.worker.envs.spaces import describe_space, flat_size

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import CheckpointPart

Array = npt.NDArray[Any]


class Goals(NamedTuple):
    """Where the goals are in a flattened observation, and the reward that they determine."""

    achieved: slice
    desired: slice
    shape: tuple[int, ...]
    """The shape of one goal."""
    compute_reward: Callable[[Array, Array, Any], Any]
    """The environment's function from achieved goals, desired goals [rows, …] and infos to rewards [rows]."""

    def rewards(self, achieved: Array, desired: Array) -> Array:
        shape = (len(achieved), *self.shape)
        return np.asarray(self.compute_reward(achieved.reshape(shape), desired.reshape(shape), {}), np.float32)


def find_goals(algorithm: str, env: gymnasium.Env[Any, Any]) -> Goals:
    """Return the goals of a goal environment; raise if it is not one."""
    space = env.observation_space
    parts = dict(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else {}
    ends = dict(zip(parts, np.cumsum([flat_size(part) for part in parts.values()]).tolist(), strict=True))
    achieved, desired = parts.get("achieved_goal"), parts.get("desired_goal")
    if (
        not isinstance(achieved, gymnasium.spaces.Box)
        or not isinstance(desired, gymnasium.spaces.Box)
        or achieved.shape != desired.shape
        or not env.has_wrapper_attr("compute_reward")
    ):
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        raise BadInput(
            f"her_goals needs an environment with goals: Dict observations with achieved_goal and desired_goal of the "
            f"same shape, and a method compute_reward; {name} has {describe_space(space)}. "
            f"Set her_goals to 0 to train {algorithm} without them."
        )
    size = flat_size(achieved)
    places = [slice(ends[name] - size, ends[name]) for name in ("achieved_goal", "desired_goal")]
    goals = Goals(places[0], places[1], achieved.shape, env.get_wrapper_attr("compute_reward"))
    examples = np.zeros((2, size), np.float32)
    if goals.rewards(examples, examples).shape != (2,):
        raise BadInput(
            "her_goals needs a method compute_reward that takes several goals at once [rows, …] and returns a reward "
            "for each [rows]. Change it, or set her_goals to 0."
        )
    return goals


class HindsightReplay(Replay):
    """A replay buffer whose samples have other goals for a fraction `relabeled` of the transitions."""

    relabels_samples = True

    def __init__(self, *args: Any, goals: Goals, relabeled: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._goals, self._relabeled = goals, relabeled
        self._last_rows = np.full((self.num_envs, self._allocated_rows), -1, np.intp)
        """The row in which the episode of each row ended; -1 if it has not ended."""
        self._lengths = np.zeros(self.num_envs, np.intp)
        """Stored steps of each current episode."""

    def start(self, observations: Array) -> None:
        super().start(observations)
        self._find_episodes()

    def add(self, actions: Array, rewards: Array, episode_ends: Sequence[EpisodeEnd], observations: Array) -> None:
        head = self._head
        self._last_rows[:, head] = -1
        super().add(actions, rewards, episode_ends, observations)
        self._lengths = np.minimum(self._lengths + 1, self._step_count)
        for end in episode_ends:
            self._last_rows[end.env, (head - np.arange(self._lengths[end.env])) % self._ring_rows] = head
            self._lengths[end.env] = 0
            # Other than for a bootstrap value, the final observation also matters if it is terminal: it has a goal.
            self._truncated_observations[end.env * self._allocated_rows + head] = end.observation

    def mark_truncated(self, observations: Array) -> None:
        super().mark_truncated(observations)
        self._find_episodes()

    def restore(
        self, arrays: Mapping[str, Array], facts: Mapping[str, Any], parts: Mapping[str, CheckpointPart] | None = None
    ) -> str | None:
        problem = super().restore(arrays, facts, parts)
        self._find_episodes()
        return problem

    def _find_episodes(self) -> None:
        """Set the last row of each episode from the stored rows."""
        rows = np.arange(self._head - self._step_count, self._head) % self._ring_rows
        self._last_rows[...] = -1
        self._lengths[...] = self._step_count
        for env in range(self.num_envs):
            ends = np.flatnonzero((self._terminals[env, rows] > 0) | (self._truncations[env, rows] > 0))
            if len(ends):
                ended = rows[: ends[-1] + 1]
                self._last_rows[env, ended] = rows[ends[np.searchsorted(ends, np.arange(len(ended)))]]
                self._lengths[env] = self._step_count - len(ended)

    def fill(self, batch: PackedBatch) -> None:
        super().fill(batch)
        goals = self._goals
        chosen = np.flatnonzero(self._rng.random(batch.rows) < self._relabeled)
        indices = batch.indices[chosen]
        envs, rows = np.divmod(indices, self._allocated_rows)
        last = self._last_rows[envs, rows]
        last = np.where(last < 0, (self._head - 1) % self._ring_rows, last)
        later = (rows + self._rng.integers((last - rows) % self._ring_rows + 1)) % self._ring_rows
        desired = self._next_observations(envs, later)[:, goals.achieved]
        following = self._next_observations(envs, rows)
        following[:, goals.desired] = desired
        batch.next_observations[chosen] = following
        observations = batch.observations[chosen]
        observations[:, goals.desired] = desired
        batch.observations[chosen] = observations
        batch.rewards[chosen] = goals.rewards(following[:, goals.achieved], desired)

    def _next_observations(self, envs: Array, rows: Array) -> Array:
        """Return copies of the observations after these transitions."""
        observations = np.array(self._observations[envs, rows + 1])
        is_last = (self._terminals[envs, rows] > 0) | (self._truncations[envs, rows] > 0)
        for number in np.flatnonzero(is_last):
            index = int(envs[number] * self._allocated_rows + rows[number])
            observations[number] = self._truncated_observations[index]
        return observations
