"""Atari games run by envpool: one call steps all of them, in threads outside of Python.

envpool resets a game in the step after its end and ignores the action of that step, so nothing can be learned from it.
That step is therefore done here immediately, and only for the games that have ended: their final observation is kept
for bootstrapping, and no step of the other games is lost. A lost life ends the learner's episode, not the game.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.environments.atari import ATARI_FAMILY
from cleanrl_worker.environments.vector import EpisodeEnd, VectorEnvs
from cleanrl_worker.learners import devices
from mosaic.contracts.errors import BadInput, MissingExtra, UnknownName, unknown_name_error
from mosaic.worker.envs import make
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK
from mosaic.worker.envs.factory import family_of
from mosaic.worker.envs.families import DISTRIBUTION, FAMILIES
from mosaic.worker.live_frames import LiveFrames

Array = npt.NDArray[Any]
ENVPOOL_EXTRA = "envpool"
STICKY_ACTION_PROBABILITY = 0.25
"""The probability with which a game of Gymnasium's `ALE/…-v5` repeats the previous action."""
MAX_GAME_STEPS = 27_000
"""A game is truncated after this many steps: half an hour of play."""
_ID_PATTERNS = (
    (re.compile(r"ALE/(\w+)-v5"), STICKY_ACTION_PROBABILITY),
    (re.compile(r"(\w+)NoFrameskip-v4"), 0.0),
    (re.compile(r"(\w+)-v5"), None),
)
"""Gymnasium's ids determine whether actions are sticky; for envpool's own ids the algorithm decides."""


class Task(Protocol):
    """What a pool is made of."""

    @property
    def action_space(self) -> gymnasium.spaces.Discrete: ...

    def make_pool(self, seeds: Sequence[int], threads: int) -> Any:
        """Make a pool with one game per seed."""


class EnvpoolTask(NamedTuple):
    """The envpool id of an Atari game and its options."""

    name: str
    repeat_action_probability: float
    """The probability that the previous action is repeated."""

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(int(import_envpool().make_spec(self.name).action_space.n))

    def make_pool(self, seeds: Sequence[int], threads: int) -> Any:
        """Make a pool with one game per seed: an episode is a life, rewards are clipped to their sign."""
        return make_pool(
            import_envpool(),
            self.name,
            seeds,
            threads,
            max_episode_steps=MAX_GAME_STEPS,
            episodic_life=True,
            reward_clip=True,
            repeat_action_probability=self.repeat_action_probability,
        )


def find_task(env_id: str, repeat_action_probability: float) -> EnvpoolTask:
    """Return the task of an envpool id (`Breakout-v5`) or of a Gymnasium id of the same game."""
    games = {env_name.removeprefix("ALE/") for env_name in FAMILIES[ATARI_FAMILY].known_ids}
    for pattern, probability in _ID_PATTERNS:
        match = pattern.fullmatch(env_id)
        if match is not None and f"{match[1]}-v5" in games:
            games &= set(import_envpool().list_all_envs())
            if f"{match[1]}-v5" in games:
                return EnvpoolTask(f"{match[1]}-v5", repeat_action_probability if probability is None else probability)
    raise unknown_name_error("game", env_id, games, "envpool")


def make_pool(envpool: Any, name: str, seeds: Sequence[int], threads: int, **options: Any) -> Any:
    """Make a pool with one game per seed, with these options of the games."""
    return envpool.make(
        name,
        env_type="gymnasium",
        num_envs=len(seeds),
        num_threads=min(threads, len(seeds)),
        env_seed=[seed % 2**31 for seed in seeds],
        # Costs nothing until a frame is rendered.
        render_mode="rgb_array",
        **options,
    )


def import_envpool(extra: str = ENVPOOL_EXTRA) -> Any:
    """Import envpool; raise with the extra to install if that fails."""
    try:
        import envpool
    except ImportError as error:
        # An installed but broken envpool fails for another reason: show it.
        reason = "" if isinstance(error, ModuleNotFoundError) and error.name == ENVPOOL_EXTRA else f" ({error})"
        raise MissingExtra(
            f"This algorithm runs its games in envpool, which is missing{reason}: "
            f"pip install '{DISTRIBUTION}[{extra}]'."
        ) from None
    return envpool


# --- a single game


class EnvpoolGame(gymnasium.Env[Array, Any]):
    """A game for evaluation: an episode is a whole game, rewards are not clipped, observations are as in training."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, env_id: str, repeat_action_probability: float = 0.0, render_mode: str | None = None) -> None:
        self._task: Task = find_task(env_id, repeat_action_probability)
        self._pool: Any = None
        self.spec = gymnasium.envs.registration.EnvSpec(env_id, "envpool:make", max_episode_steps=MAX_GAME_STEPS)
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX), np.uint8)
        self.action_space = self._task.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None or self._pool is None:
            # envpool accepts a seed only when it creates a game.
            self._pool = self._task.make_pool([seed or 0], 1)
        observations, _ = self._pool.reset()
        return observations[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        observations, _, terminations, truncations, info = self._pool.step(np.array([action]))
        is_over, is_truncated = bool(info["terminated"][0]), bool(truncations[0])
        if terminations[0] and not is_over and not is_truncated:
            observations, _, _, _, after = self._pool.step(np.zeros(1, np.int32))  # starts the next life
            is_over = bool(after["lives"][0] > info["lives"][0])
        return observations[0], float(info["reward"][0]), is_over, is_truncated and not is_over, {}

    def render(self) -> Any:
        return np.zeros((210, 160, 3), np.uint8) if self._pool is None else self._pool.render()[0]

    def close(self) -> None:
        self._pool = None


def make_envpool_env(
    env_id: str, repeat_action_probability: float = 0.0, render_mode: str | None = None
) -> gymnasium.Env[Any, Any]:
    """Make one game; an environment of another family is returned as it is, for `check_envpool_env` to refuse."""
    try:
        return EnvpoolGame(env_id, repeat_action_probability, render_mode)
    except UnknownName as error:
        try:
            env = make(env_id)
        except BadInput:
            raise error from None
        if family_of(env) == ATARI_FAMILY:
            env.close()
            raise
        return env


def check_envpool_env(algorithm: str, env: gymnasium.Env[Any, Any]) -> int:
    """Raise unless this is an envpool game; return the number of actions."""
    if not isinstance(env, EnvpoolGame):
        raise BadInput(
            f"{algorithm} needs an Atari game; {base.env_name(env)} is not one. {base.suggest_algorithms(env)}"
        )
    actions: Any = env.action_space
    return int(actions.n)


# --- several games


def open_games(config: Any, repeat_action_probability: float, frames: LiveFrames | None) -> EnvpoolEnvs:
    """Make the games of a training."""
    task = find_task(config.env_id, repeat_action_probability)
    return EnvpoolEnvs(task, config.num_envs, config.seed, devices.thread_count(), frames)


class _PoolMember(gymnasium.Env[Array, Any]):
    """One game of a pool, for rendering."""

    metadata = EnvpoolGame.metadata
    render_mode = "rgb_array"

    def __init__(
        self, render_frame: Callable[[], Any], shape: tuple[int, ...], action_space: gymnasium.Space[Any]
    ) -> None:
        self._render_frame = render_frame
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = action_space

    def render(self) -> Any:
        return self._render_frame()


class EnvpoolEnvs(VectorEnvs):
    """`num_envs` games of a task. An observation holds the latest four frames, oldest first: bytes [4, 84, 84]."""

    shape = (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX)

    def __init__(self, task: Task, num_envs: int, seed: int, threads: int, frames: LiveFrames | None = None) -> None:
        self._task, self._threads = task, threads
        self._pool: Any = None
        actions = task.action_space
        members = iter(
            [
                _PoolMember(functools.partial(self._render_frame, index), self.shape, actions)
                for index in range(num_envs)
            ]
        )
        super().__init__(lambda: next(members), num_envs, seed, frames)
        self._flatten = None
        self._scores = np.zeros(num_envs)
        """The scores of the current games: not clipped, over all lives."""

    def _render_frame(self, index: int) -> Any:
        return self._pool.render(env_ids=[index])[0]

    def close(self) -> None:
        super().close()
        self._pool = None

    def start(self) -> None:
        self._open_pool([self.seed + index for index in range(len(self))])

    def _open_pool(self, seeds: Sequence[int]) -> None:
        self._pool = self._task.make_pool(seeds, self._threads)
        self._latest_observations, _ = self._pool.reset()
        for index in range(len(self)):
            self._begin_game(index)
        self._pictures.start_video()

    def _begin_game(self, index: int) -> None:
        self._scores[index] = 0.0
        self._episode_numbers[index] += 1
        self._episode_starts[index] = self._step_count

    def step(self, actions: Iterable[Any], into: Array) -> Sequence[EpisodeEnd]:
        clock = self._step_count = self._step_count + 1
        observations, rewards, terminations, truncations, info = self._pool.step(np.asarray(actions))
        for env_rewards, reward in zip(self._rewards, rewards.tolist(), strict=True):
            env_rewards.append(reward)
        self._scores += self._game_rewards(rewards, info)
        ended = np.flatnonzero(terminations | truncations)
        endings = self._restart_ended(observations, ended, info, truncations) if ended.size else ()
        self._latest_observations = observations
        into[...] = observations
        if clock >= self._pictures.next_check_step:
            self._publish_frames(clock)
        return endings

    def _game_rewards(self, rewards: Array, info: Mapping[str, Array]) -> Array:
        """Return the rewards that a score consists of."""
        return info["reward"]

    def _restart_ended(
        self, observations: Array, ended_indices: Array, info: Mapping[str, Array], truncations: Array
    ) -> Sequence[EpisodeEnd]:
        """Return the episode ends; start the next life or game of each and write its first frames to `observations`."""
        is_over, is_truncated = info["terminated"][ended_indices].astype(bool), truncations[ended_indices]
        final_observations = observations[ended_indices]
        if ended_indices[0] == 0 and (is_over[0] or is_truncated[0]):
            self._finish_video()
        observations[ended_indices], _, _, _, after = self._pool.step(
            np.zeros(len(ended_indices), np.int32), ended_indices.astype(np.int32)
        )
        # The idle frames at the start of a life may end the game: then a new game has started.
        is_over |= after["lives"] > info["lives"][ended_indices]
        endings = [
            self._make_episode_end(*values)
            for values in zip(ended_indices.tolist(), final_observations, is_over, is_truncated, strict=True)
        ]
        for index in (ending.env for ending in endings if ending.is_full_episode):
            self._begin_game(index)
            if index == 0:
                self._pictures.start_video()
        return endings

    def _finish_video(self) -> None:
        length, score = self._episode_progress(0)
        self._pictures.finish_video(score, length)

    def _make_episode_end(
        self, index: int, final_observation: Array, is_game_over: bool, is_truncated: bool
    ) -> EpisodeEnd:
        length, score = self._episode_progress(index)
        is_terminal, is_episode = bool(is_game_over or not is_truncated), bool(is_game_over or is_truncated)
        return EpisodeEnd(index, final_observation, is_terminal, score, length, is_episode)

    def _episode_progress(self, index: int) -> tuple[int, float]:
        return self._step_count - self._episode_starts[index], float(self._scores[index])

    # --- resuming

    def checkpoint_state(self) -> tuple[dict[str, Array], list[dict[str, Any]]]:
        return {}, [{"clock": self._step_count, "episode": episode} for episode in self._episode_numbers]

    def restore(self, arrays: Mapping[str, Array], facts: Sequence[Mapping[str, Any]]) -> list[str]:
        """Start all games again, with seeds derived from the step: envpool cannot restore a game."""
        self._step_count = int(facts[0]["clock"])
        self._episode_numbers = [int(fact["episode"]) for fact in facts]
        seeds = np.random.SeedSequence([self.seed, self._step_count]).generate_state(len(self))
        self._open_pool(seeds.tolist())
        return [f"envpool cannot restore games, so all {len(self)} of them started again with new seeds"]
