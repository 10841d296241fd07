"""Plays a policy, one episode a seed, several environments at a time in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import gymnasium

AT_ONCE = 8
"""Environments that share one call of the policy."""


class Policy(Protocol):
    def act(self, observations: np.ndarray, deterministic: bool, rng: np.random.Generator) -> np.ndarray:
        """One action for each row of observations: as the environment gave them, flattened where they are no arrays."""
        ...


@dataclass(frozen=True)
class Episode:
    index: int
    """Place of its seed in the list that was given."""
    seed: int
    episodic_return: float
    length: int


def evaluate(
    policy: Policy,
    make_env: Callable[[], gymnasium.Env[Any, Any]],
    seeds: Sequence[int],
    deterministic: bool = True,
    on_episode: Callable[[Episode], None] | None = None,
    record: Callable[[int, Any], None] | None = None,
    on_step: Callable[[int], bool] | None = None,
) -> list[Episode]:
    """The episodes in the order of their seeds; the same for the same seeds every time.

    `record(index, env)` is called after each reset and step, and may draw. `on_step(steps)` is called with the steps
    taken so far, and ends the evaluation by giving False; episodes that have not ended then are left out.
    """
    if not seeds:
        return []
    envs = [make_env() for _ in range(min(AT_ONCE, len(seeds)))]
    try:
        finished = _play(policy, envs, seeds, deterministic, on_episode, record, on_step)
    finally:
        for env in envs:
            env.close()
    return sorted(finished, key=lambda episode: episode.index)


def _play(
    policy: Policy,
    envs: Sequence[gymnasium.Env[Any, Any]],
    seeds: Sequence[int],
    deterministic: bool,
    on_episode: Callable[[Episode], None] | None,
    record: Callable[[int, Any], None] | None,
    on_step: Callable[[int], bool] | None,
) -> list[Episode]:
    rng = np.random.default_rng(list(seeds))
    clip = _clipper(envs[0].action_space)
    as_array = array_maker(envs[0].observation_space)
    observations = np.stack([as_array(env.reset(seed=int(seed))[0]) for env, seed in zip(envs, seeds, strict=False)])
    playing = list(range(len(envs)))  # the episode that each environment plays; -1 when it has no more to do
    returns = [0.0] * len(envs)
    lengths = [0] * len(envs)
    upcoming = len(envs)
    steps = 0
    finished: list[Episode] = []
    if record is not None:
        for slot, env in enumerate(envs):
            record(playing[slot], env)
    while any(index >= 0 for index in playing):
        # Idle rows stay in the batch: its shape, and thereby every rounding, is the same to the end.
        actions = clip(policy.act(observations, deterministic, rng))
        for slot, env in enumerate(envs):
            index = playing[slot]
            if index < 0:
                continue
            observation, reward, is_terminated, is_truncated, _ = env.step(actions[slot])
            returns[slot] += float(reward)
            lengths[slot] += 1
            steps += 1
            if record is not None:
                record(index, env)
            if is_terminated or is_truncated:
                episode = Episode(index, int(seeds[index]), returns[slot], lengths[slot])
                finished.append(episode)
                if on_episode is not None:
                    on_episode(episode)
                returns[slot], lengths[slot] = 0.0, 0
                playing[slot] = upcoming if upcoming < len(seeds) else -1
                if playing[slot] >= 0:
                    observation, _ = env.reset(seed=int(seeds[upcoming]))
                    upcoming += 1
                    if record is not None:
                        record(playing[slot], env)
            observations[slot] = as_array(observation)
        if on_step is not None and not on_step(steps):
            break
    return finished


def array_maker(space: Any) -> Callable[[Any], np.ndarray]:
    """What makes an array of one observation: pairs, dictionaries and the like are flattened."""
    if space.shape is not None:
        return np.asarray
    from gymnasium.spaces import flatten

    return lambda observation: np.asarray(flatten(space, observation))


def _clipper(space: Any) -> Callable[[np.ndarray], np.ndarray]:
    """What lies outside a box is no action of it; a Gaussian policy gives such numbers all the time."""
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None:
        return lambda actions: actions
    return lambda actions: np.clip(actions, low, high).astype(space.dtype, copy=False)
