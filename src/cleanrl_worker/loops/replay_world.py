"""The environments of a training from a replay buffer, their latest observations, and the buffer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.environments.atari import AtariEnvs, check_atari_env
from cleanrl_worker.environments.parallel import ParallelEnvs
from cleanrl_worker.environments.vector import EpisodeEnd, VectorEnvs
from cleanrl_worker.learners import devices
from cleanrl_worker.replay.buffers import FrameReplay, Replay, check_memory, restore_replay
from mosaic.worker import envs
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
FRAME_SHAPE = (FRAME_SIZE_PX, FRAME_SIZE_PX)


@dataclass
class ReplayWorld:
    environments: VectorEnvs
    replay: Replay | FrameReplay
    observations: Array
    """The latest observation of each environment."""
    stored_observations: Array
    """The part of them that the buffer stores."""
    shape: dict[str, Any]
    """A checkpoint can be resumed by a run of the same shape."""
    facts: dict[str, Any]
    """What is saved in checkpoints besides the states of environments and buffer."""

    def __post_init__(self) -> None:
        self.observation_size = self.environments.observation_size
        self.action_space: Any = self.environments.action_space
        self._advance, self._add = self.environments.advance, self.replay.add
        self.stored_action_shape = (self.replay.num_envs, *self.replay.action_shape)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.environments.close()

    def start(self) -> None:
        """Reset the environments and clear the buffer."""
        self.environments.start()
        self.environments.observe(self.observations)
        self.replay.start(self.stored_observations)

    def restore(self, run: Run, resume: Checkpoint) -> bool:
        """Restore environments and buffer; warn where that is not exact, return False if the buffer is empty."""
        is_exact = base.restore_environments(run, self.environments, resume)
        self.environments.observe(self.observations)
        if not restore_replay(run, self.replay, resume):
            self.replay.start(self.stored_observations)
            return False
        if not is_exact:
            self.replay.mark_truncated(self.stored_observations)
        return True

    def step(self, actions: Array, stored_actions: Array, rewards: Array) -> Sequence[EpisodeEnd]:
        """Step each environment and store the transition."""
        episode_ends = self._advance(actions, self.observations, rewards)
        self._add(stored_actions, rewards, episode_ends, self.stored_observations)
        return episode_ends

    def checkpoint_state(self, limit_mb: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the arrays and facts of environments and buffer."""
        arrays, environment_facts = self.environments.checkpoint_state()
        replay_arrays, replay_facts = self.replay.checkpoint_state(limit_mb)
        facts = {"shape": self.shape, **self.facts, "replay": replay_facts, "environments": environment_facts}
        return {**arrays, **replay_arrays}, facts


# --- vector observations


def vector_world(config: Any, run: Run, capacity: int, make_replay: Callable[..., Replay] = Replay) -> ReplayWorld:
    make_env = functools.partial(envs.make, config.env_id, **config.env_settings)
    environments = ParallelEnvs(make_env, config.num_envs, config.seed, run.frames, config.env_processes or 1)
    space = environments.observation_space
    replay = make_replay(capacity, config.num_envs, *_row_layout(space, environments.action_space), seed=config.seed)
    replay.enable_block_files(run, config.checkpoint_replay_mb)
    observations = np.zeros((config.num_envs, environments.observation_size), base.replay_dtype(space))
    shape = {"env_id": config.env_id, "observation_size": environments.observation_size, "num_envs": config.num_envs}
    facts = {"inputs": base.ObservationEncoder.describe(space)}
    return ReplayWorld(environments, replay, observations, observations, shape, facts)


def check_vectors(name: str, capacity: int, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the observations or the buffer do not fit; otherwise return their sizes."""
    base.check_observations(name, env)
    space: Any = env.observation_space
    size_bytes = Replay.size_bytes(capacity, *_row_layout(space, env.action_space))
    check_memory(name, capacity, size_bytes)
    return {
        "observations": list(space.shape or (base.ObservationEncoder.describe(space)["size"],)),
        "replay_bytes": size_bytes,
    }


def _row_layout(observations: gymnasium.Space[Any], actions: Any) -> tuple[tuple[int, Any], tuple[int, Any]]:
    """Return size and type of an observation and of an action in the buffer."""
    seen = base.ObservationEncoder.describe(observations)["size"], base.replay_dtype(observations)
    is_discrete = isinstance(actions, gymnasium.spaces.Discrete)
    return seen, ((1, np.int64) if is_discrete else (int(np.prod(actions.shape)), np.float32))


# --- Atari games


AnyWorld = TypeVar("AnyWorld", bound=ReplayWorld)


def atari_world(config: Any, run: Run, make_replay: Any = FrameReplay, **shape: Any) -> ReplayWorld:
    """Make the games and their buffer; `shape` is what else must not change when a run is resumed."""
    return atari_world_of(ReplayWorld, config, run, make_replay, **shape)


def atari_world_of(
    kind: type[AnyWorld], config: Any, run: Run, make_replay: Any = FrameReplay, **shape: Any
) -> AnyWorld:
    """Do the same for an algorithm with a kind of world of its own."""
    games = AtariEnvs.from_config(config, run.frames)
    replay = make_replay(config.buffer_capacity, config.num_envs, FRAME_SHAPE, FRAME_STACK, config.seed)
    replay.enable_block_files(run, config.checkpoint_replay_mb)
    observations = np.zeros((config.num_envs, *games.shape), np.uint8)
    shape = {"env_id": config.env_id, **shape}
    facts = {"backend": "torch", "threads": devices.thread_count()}
    return kind(games, replay, observations, observations[:, -1], shape, facts)


def check_atari(
    name: str, config: Any, env: gymnasium.Env[Any, Any], replay: type[FrameReplay] = FrameReplay
) -> dict[str, Any]:
    """Raise if this is not a playable game or the buffer does not fit; otherwise return the sizes of the run."""
    actions = check_atari_env(name, env)
    size_bytes = replay.size_bytes(config.buffer_capacity, FRAME_SHAPE)
    check_memory(name, config.buffer_capacity, size_bytes)
    return {
        "observations": [FRAME_STACK, *FRAME_SHAPE],
        "actions": actions,
        "replay_bytes": size_bytes,
        "backend": "torch",
    }
