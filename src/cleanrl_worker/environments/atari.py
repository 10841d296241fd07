"""Several Atari games stepped one after the other, for training.

A lost life ends an episode for the learner, but the reported episode is the whole game, with its own score and its
length in frames. Games are restored from snapshots of the emulator, not by replaying their actions.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.environments.vector import EpisodeEnd, VectorEnvs
from cleanrl_worker.learners.flat_network import select_by_prefix
from mosaic.contracts.errors import BadInput
from mosaic.envs.atari import FRAME_SIZE_PX, FRAME_STACK, AtariEnv
from mosaic.envs.factory import family_of
from mosaic.envs.reproducible import random_state, restore_random_state
from mosaic.run.live_frames import LiveFrames

Array = npt.NDArray[Any]
ATARI_FAMILY = "atari"


def make_evaluation_env(env_id: str, render_mode: str | None = None, **settings: Any) -> AtariEnv:
    """Make a game for evaluation: an episode is a whole game, rewards are not clipped."""
    return AtariEnv(env_id, terminal_on_life_loss=False, clip_rewards=False, render_mode=render_mode, settings=settings)


def make_training_env(env_id: str, render_mode: str | None = None, **settings: Any) -> AtariEnv:
    """Make a game for training: an episode is a life, rewards are clipped to their sign."""
    return AtariEnv(env_id, terminal_on_life_loss=True, clip_rewards=True, render_mode=render_mode, settings=settings)


def check_atari_env(algorithm: str, env: gymnasium.Env[Any, Any]) -> int:
    """Raise unless this is an Atari game that this machine can play; return the number of actions."""
    if family_of(env) != ATARI_FAMILY:
        raise BadInput(
            f"{algorithm} needs an Atari game; {base.env_name(env)} is not one. {base.suggest_algorithms(env)}"
        )
    assert env.spec is not None
    make_evaluation_env(env.spec.id).close()
    actions: Any = env.action_space
    return int(actions.n)


class AtariEnvs(VectorEnvs):
    """`num_envs` games. An observation holds the latest `stack` frames, oldest first: bytes [stack, 84, 84]."""

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        seed: int,
        frames: LiveFrames | None = None,
        stack: int = FRAME_STACK,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        make_env = functools.partial(make_training_env, env_id, "rgb_array", **(settings or {}))
        super().__init__(make_env, num_envs, seed, frames)
        self.shape = (stack, FRAME_SIZE_PX, FRAME_SIZE_PX)
        self._flatten = None if stack == FRAME_STACK else lambda stacked_frames: stacked_frames[-stack:]

    def _end_episode(self, index: int, observation: Any, is_terminal: bool) -> EpisodeEnd:
        game: AtariEnv = self._unwrapped_envs[index]
        final_observation = np.array(self._flatten_observation(observation))
        episode_end = EpisodeEnd(index, final_observation, is_terminal, game.score, game.frame_count, game.is_game_over)
        if game.is_game_over:
            self._mark_episode_end(index, is_terminal)
        self._reset(index)
        return episode_end

    def _reset(self, index: int, seed: int | None = None) -> None:
        is_next_life = seed is None and not self._unwrapped_envs[index].is_game_over
        start = self._seeds[index], self._random_states_before_reset[index]
        super()._reset(index, seed)
        if is_next_life:
            self._episode_numbers[index] -= 1
            self._seeds[index], self._random_states_before_reset[index] = start

    def _episode_progress(self, index: int) -> tuple[int, float]:
        return self._unwrapped_envs[index].frame_count, self._unwrapped_envs[index].score

    # --- resuming

    def checkpoint_state(self) -> tuple[dict[str, Array], list[dict[str, Any]]]:
        self._flush_action_chunk()
        arrays: dict[str, Array] = {}
        facts = []
        for index, game in enumerate(self._unwrapped_envs):
            parts, game_facts = game.snapshot()
            arrays |= {f"env.{index}.{name}": np.array(part) for name, part in parts.items()}
            facts.append({**game_facts, "now": random_state(game), "episode": self._episode_numbers[index]})
        return arrays, facts

    def restore(self, arrays: Mapping[str, Array], facts: Sequence[Mapping[str, Any]]) -> list[str]:
        problems = []
        for index, fact in enumerate(facts):
            game: AtariEnv = self._unwrapped_envs[index]
            self._reset(index, self.seed + index)
            try:
                game.restore(select_by_prefix(f"env.{index}.", arrays), dict(fact))
            except (RuntimeError, SystemError) as error:  # The emulator refuses a snapshot of another version.
                problems.append(f"environment {index}: the emulator cannot read its snapshot ({error})")
                self._reset(index, self.seed + index)
                continue
            restore_random_state(game, fact["now"])
            self._episode_parts[index] = None  # the snapshot has no actions
            self._latest_observations[index] = arrays[f"env.{index}.pictures"]
            self._episode_numbers[index] = fact["episode"]
        return problems
