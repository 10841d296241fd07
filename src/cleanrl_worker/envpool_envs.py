"""Atari games played by envpool: all of them by one call, in threads outside of Python.

envpool resets a game in the step after its end and takes no notice of that step's action, which would be a step that
nothing can be learned from. So that step is made here at once, for the games that have ended and for them alone: what
was seen last is kept, and every step of the others counts. A lost life is an end for the agent and none for people.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.atari_envs import ATARI_FAMILY
from cleanrl_worker.vector_envs import EpisodeEnd, VectorEnvs
from mosaic.contracts.errors import BadInput, MissingExtra, UnknownName, unknown_name_error
from mosaic.envs import make
from mosaic.envs.atari import FRAME_SIZE_PX, FRAME_STACK
from mosaic.envs.catalogue import DISTRIBUTION, FAMILIES
from mosaic.envs.factory import family_of
from mosaic.run.live_frames import LiveFrames

Array = npt.NDArray[Any]
ENVPOOL_EXTRA = "envpool"
STICKY_ACTION_PROBABILITY = 0.25
"""How often a game of the newer kind (`ALE/…-v5`) holds on to the action before."""
MAX_GAME_STEPS = 27_000
"""After which a game is cut short: half an hour of playing."""
_ID_PATTERNS = (
    (re.compile(r"ALE/(\w+)-v5"), STICKY_ACTION_PROBABILITY),
    (re.compile(r"(\w+)NoFrameskip-v4"), 0.0),
    (re.compile(r"(\w+)-v5"), None),
)
"""Gymnasium's ids say whether actions stick; envpool's own leave that to the algorithm."""


class EnvpoolTask(NamedTuple):
    """A game as envpool knows it."""

    name: str
    repeat_action_probability: float
    """The probability that the action before is held on to."""

    @property
    def action_space(self) -> gymnasium.spaces.Discrete:
        return gymnasium.spaces.Discrete(int(_import_envpool().make_spec(self.name).action_space.n))

    def make_pool(self, seeds: Sequence[int], threads: int) -> Any:
        """A pool with a game for each seed: an episode is a life, and of a reward only the sign counts."""
        return _import_envpool().make(
            self.name,
            env_type="gymnasium",
            num_envs=len(seeds),
            num_threads=min(threads, len(seeds)),
            env_seed=[seed % 2**31 for seed in seeds],
            max_episode_steps=MAX_GAME_STEPS,
            episodic_life=True,
            reward_clip=True,
            repeat_action_probability=self.repeat_action_probability,
            # Costs nothing until a picture is asked for.
            render_mode="rgb_array",
        )


def find_task(env_id: str, repeat_action_probability: float) -> EnvpoolTask:
    """What an id means: one of envpool's (`Breakout-v5`), or the same game by one of Gymnasium's ids."""
    games = {known.removeprefix("ALE/") for known in FAMILIES[ATARI_FAMILY].known_ids}
    for form, own in _ID_PATTERNS:
        found = form.fullmatch(env_id)
        if found is not None and f"{found[1]}-v5" in games:
            games &= set(_import_envpool().list_all_envs())
            if f"{found[1]}-v5" in games:
                return EnvpoolTask(f"{found[1]}-v5", repeat_action_probability if own is None else own)
    raise unknown_name_error("game", env_id, games, "envpool")


def _import_envpool() -> Any:
    try:
        import envpool
    except ImportError as error:
        # One that is there but broken has more to say than its name.
        why = "" if isinstance(error, ModuleNotFoundError) and error.name == ENVPOOL_EXTRA else f" ({error})"
        raise MissingExtra(
            f"This algorithm plays its games in envpool, which is missing{why}: "
            f"pip install '{DISTRIBUTION}[{ENVPOOL_EXTRA}]'."
        ) from None
    return envpool


# --- one game


class EnvpoolGame(gymnasium.Env[Array, Any]):
    """A game as people count it, all lives and all points, begun and seen as in training. Evaluations play these."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, env_id: str, repeat_action_probability: float = 0.0, render_mode: str | None = None) -> None:
        self._task = find_task(env_id, repeat_action_probability)
        self._pool: Any = None
        self.spec = gymnasium.envs.registration.EnvSpec(env_id, "envpool:make", max_episode_steps=MAX_GAME_STEPS)
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX), np.uint8)
        self.action_space = self._task.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        if seed is not None or self._pool is None:
            # envpool takes a seed when it makes a game, and never again.
            self._pool = self._task.make_pool([seed or 0], 1)
        observations, _ = self._pool.reset()
        return observations[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        observations, _, ends, cuts, info = self._pool.step(np.array([action]))
        is_over, is_truncated = bool(info["terminated"][0]), bool(cuts[0])
        if ends[0] and not is_over and not is_truncated:
            observations, _, _, _, after = self._pool.step(np.zeros(1, np.int32))  # begins the next life
            is_over = bool(after["lives"][0] > info["lives"][0])
        return observations[0], float(info["reward"][0]), is_over, is_truncated and not is_over, {}

    def render(self) -> Any:
        return np.zeros((210, 160, 3), np.uint8) if self._pool is None else self._pool.render()[0]

    def close(self) -> None:
        self._pool = None


def make_envpool_env(
    env_id: str, repeat_action_probability: float = 0.0, render_mode: str | None = None
) -> gymnasium.Env[Any, Any]:
    """One game; or, where the id is of another kind of environment, that: `check_pool` says then what fits it."""
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
    """Refuses what is no game of envpool's; the number of actions."""
    if not isinstance(env, EnvpoolGame):
        raise BadInput(f"{algorithm} needs an Atari game; {base.env_name(env)} is none. {base.suggest_algorithms(env)}")
    actions: Any = env.action_space
    return int(actions.n)


# --- several


class _PoolMember(gymnasium.Env[Array, Any]):
    """One game of a pool, for whoever watches it."""

    metadata = EnvpoolGame.metadata
    render_mode = "rgb_array"

    def __init__(self, render_frame: Callable[[], Any], action_space: gymnasium.Space[Any]) -> None:
        self._render_frame = render_frame
        self.observation_space = gymnasium.spaces.Box(0, 255, (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX), np.uint8)
        self.action_space = action_space

    def render(self) -> Any:
        return self._render_frame()


class EnvpoolEnvs(VectorEnvs):
    """`count` games of a task. Observations are the newest four pictures, oldest first: bytes [4, 84, 84]."""

    shape = (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX)

    def __init__(
        self, task: EnvpoolTask, num_envs: int, seed: int, threads: int, frames: LiveFrames | None = None
    ) -> None:
        self._task, self._threads = task, threads
        self._pool: Any = None
        actions = task.action_space
        seats = iter([_PoolMember(functools.partial(self._render_frame, index), actions) for index in range(num_envs)])
        super().__init__(lambda: next(seats), num_envs, seed, frames)
        self._flatten = None
        self._scores = np.zeros(num_envs)
        """Of the present games: not clipped, over all lives."""

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
        self._start_video()

    def _begin_game(self, index: int) -> None:
        self._scores[index] = 0.0
        self._episode_numbers[index] += 1
        self._episode_starts[index] = self._step_count

    def step(self, actions: Iterable[Any], into: Array) -> Sequence[EpisodeEnd]:
        clock = self._step_count = self._step_count + 1
        seen, rewards, ends, cuts, info = self._pool.step(np.asarray(actions))
        for kept, reward in zip(self._rewards, rewards.tolist(), strict=True):
            kept.append(reward)
        self._scores += info["reward"]
        ended = np.flatnonzero(ends | cuts)
        endings = self._restart_ended(seen, ended, info, cuts) if ended.size else ()
        self._latest_observations = seen
        into[...] = seen
        if clock >= self._next_frame_check_step:
            self._publish_frames(clock)
        return endings

    def _restart_ended(
        self, observations: Array, ended_indices: Array, info: Mapping[str, Array], truncations: Array
    ) -> Sequence[EpisodeEnd]:
        """What ended, after each has begun its next life or game: the first pictures of that go into what is `seen`."""
        is_over, is_cut = info["terminated"][ended_indices].astype(bool), truncations[ended_indices]
        last = observations[ended_indices]
        if ended_indices[0] == 0 and (is_over[0] or is_cut[0]):
            self._finish_video(self._make_episode_end(0, last[0], is_over[0], is_cut[0]))
        observations[ended_indices], _, _, _, after = self._pool.step(
            np.zeros(len(ended_indices), np.int32), ended_indices.astype(np.int32)
        )
        # The idle frames with which a life begins may be its last ones; then the game has begun anew.
        is_over |= after["lives"] > info["lives"][ended_indices]
        endings = [
            self._make_episode_end(*facts) for facts in zip(ended_indices.tolist(), last, is_over, is_cut, strict=True)
        ]
        for index in (ending.env for ending in endings if ending.is_full_episode):
            self._begin_game(index)
            if index == 0:
                self._start_video()
        return endings

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
        """envpool has no way to put a game back: all begin anew, with seeds that follow from the step."""
        self._step_count = int(facts[0]["clock"])
        self._episode_numbers = [int(fact["episode"]) for fact in facts]
        seeds = np.random.SeedSequence([self.seed, self._step_count]).generate_state(len(self))
        self._open_pool(seeds.tolist())
        return [f"envpool cannot put games back, so all {len(self)} of them began anew, with seeds of their own"]
