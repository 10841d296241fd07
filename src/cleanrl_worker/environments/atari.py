"""Several Atari games for training, stepped one after the other or in several processes.

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
from cleanrl_worker.environments.parallel import ParallelEnvs
from cleanrl_worker.environments.vector import EpisodeEnd, ObservationLayout, VectorEnvs
from cleanrl_worker.learners.flat_network import select_by_prefix
from mosaic.contracts.errors import BadInput
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK, AtariEnv
from mosaic.worker.envs.factory import family_of
from mosaic.worker.envs.reproducible import random_state, restore_random_state
from mosaic.worker.live_frames import LiveFrames

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


class AtariShare(VectorEnvs):
    """Games of one process."""

    def __init__(self, *args: Any, stack: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shape = self.observation_layout(self.observation_space, stack=stack).shape
        self._flatten = None if stack == FRAME_STACK else lambda stacked_frames: stacked_frames[-stack:]

    @classmethod
    def observation_layout(cls, space: Any, **settings: Any) -> ObservationLayout:
        return ObservationLayout((settings["stack"], FRAME_SIZE_PX, FRAME_SIZE_PX), np.uint8)

    def _end_episode(self, index: int, observation: Any, is_terminal: bool) -> EpisodeEnd:
        game: AtariEnv = self._unwrapped_envs[index]
        final_observation = np.array(self._flatten_observation(observation))
        episode_end = EpisodeEnd(index, final_observation, is_terminal, game.score, game.frame_count, game.is_game_over)
        if game.is_game_over:
            self._mark_episode_end(index, observation, is_terminal)
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
            arrays |= {f"env.{self._first_index + index}.{name}": np.array(part) for name, part in parts.items()}
            facts.append({**game_facts, "now": random_state(game), "episode": self._episode_numbers[index]})
        return arrays, facts

    def restore(self, arrays: Mapping[str, Array], facts: Sequence[Mapping[str, Any]]) -> list[str]:
        problems = []
        for index, fact in enumerate(facts):
            number = self._first_index + index
            game: AtariEnv = self._unwrapped_envs[index]
            self._reset(index, self.seed + index)
            try:
                game.restore(select_by_prefix(f"env.{number}.", arrays), dict(fact))
            except (RuntimeError, SystemError) as error:  # The emulator refuses a snapshot of another version.
                problems.append(f"environment {number}: the emulator cannot read its snapshot ({error})")
                self._reset(index, self.seed + index)
                continue
            restore_random_state(game, fact["now"])
            self._episode_log.skip(index)  # the snapshot has no actions
            self._latest_observations[index] = arrays[f"env.{number}.pictures"]
            self._episode_numbers[index] = fact["episode"]
        return problems


class AtariEnvs(ParallelEnvs, AtariShare):
    """`num_envs` games. An observation holds the latest `stack` frames, oldest first: bytes [stack, 84, 84]."""

    share_kind = AtariShare

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        seed: int,
        frames: LiveFrames | None = None,
        stack: int = FRAME_STACK,
        settings: Mapping[str, Any] | None = None,
        processes: int = 1,
    ) -> None:
        make_env = functools.partial(make_training_env, env_id, "rgb_array", **(settings or {}))
        super().__init__(make_env, num_envs, seed, frames, processes, stack=stack)

    @classmethod
    def from_config(cls, config: Any, frames: LiveFrames | None, stack: int = FRAME_STACK) -> AtariEnvs:
        settings, processes = config.env_settings, config.env_processes or 1
        return cls(config.env_id, config.num_envs, config.seed, frames, stack, settings, processes)
