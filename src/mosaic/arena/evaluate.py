"""Plays a policy, one episode a seed: several environments at a time, in further processes where that pays.

A seed's row in the policy's batch follows from the seed alone, the batch always has the same number of rows, and a
policy that draws does so from a generator of its episode. So an episode comes out the same, bit for bit, whatever is
played beside it and in whichever process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from mosaic.arena.evaluation_processes import EvaluationProcesses
from mosaic.arena.work_queue import SharedWorkQueue

if TYPE_CHECKING:
    import gymnasium

BATCH_SIZE = 8
"""Rows of the batch with which the policy is asked, and thereby environments of one process."""
PROBE_S = 0.1
"""How long to play before it is decided whether helpers pay."""
MIN_PARALLEL_WORK_S = 0.3
"""Helpers cost a few hundredths of a second, and make their own environments: less work than this is not shared."""
MAX_EPISODE_STEPS = 100_000
"""Steps after which an episode is cut: where its environment sets no limit, a policy that is stuck plays forever."""


class EvaluablePolicy(Protocol):
    def act(self, observations: np.ndarray, deterministic: bool, rng: np.random.Generator) -> np.ndarray:
        """One action for each row of observations: as the environment gave them, flattened where they are no arrays."""
        ...


@runtime_checkable
class RecurrentPolicy(EvaluablePolicy, Protocol):
    """One that keeps in mind what each row has seen: it is always asked for all rows."""

    def reset_state(self, row: int) -> None:
        """An episode begins in that row: nothing of an earlier one is to be remembered."""
        ...

    def sample(self, observations: np.ndarray, rngs: Sequence[np.random.Generator]) -> np.ndarray:
        """Drawn actions, each row's by its own generator."""
        ...


@dataclass(frozen=True)
class Episode:
    index: int
    """Place of its seed in the list that was given."""
    seed: int
    episodic_return: float
    length: int


EnvFactory = Callable[[], "gymnasium.Env[Any, Any]"]
RecordFrame = Callable[[int, Any], None]


def evaluate(
    policy: EvaluablePolicy,
    make_env: EnvFactory,
    seeds: Sequence[int],
    deterministic: bool = True,
    on_episode: Callable[[Episode], None] | None = None,
    record: RecordFrame | None = None,
    on_step: Callable[[int], bool] | None = None,
    processes: int = 1,
    make_helper_env: EnvFactory | None = None,
) -> list[Episode]:
    """The episodes in the order of their seeds; the same for the same seeds every time.

    `record(index, env)` is called after each reset and step of the first AT_ONCE episodes, and may draw.
    `on_step(steps)` is called with the steps taken so far, and ends the evaluation by giving False; episodes that have
    not ended then are left out. Beyond one process, `make_plain` makes the helpers' environments.
    """
    if not seeds:
        return []
    made = _Evaluation(policy, make_env, [int(seed) for seed in seeds], deterministic, on_episode, record, on_step)
    return made.run(processes, make_helper_env or make_env)


class _Evaluation:
    def __init__(
        self,
        policy: EvaluablePolicy,
        make_env: EnvFactory,
        seeds: Sequence[int],
        deterministic: bool,
        on_episode: Callable[[Episode], None] | None,
        record: RecordFrame | None,
        on_step: Callable[[int], bool] | None,
    ) -> None:
        self._policy, self._make_env, self._seeds, self._deterministic = policy, make_env, seeds, deterministic
        self._on_episode, self._record, self._on_step = on_episode, record, on_step
        self._finished: dict[int, Episode] = {}
        self._steps = 0
        self._should_continue = True

    def run(self, processes: int, make_helper_env: EnvFactory) -> list[Episode]:
        claims = SharedWorkQueue(assign_rows(self._seeds), is_shared=processes > 1)
        helpers = EvaluationProcesses(claims)
        started = time.monotonic()
        is_decided = processes < 2
        player = EpisodeRunner(self._policy, self._make_env, self._seeds, self._deterministic, claims, self._record)

        def help_out(bring: Callable[[Episode], None], goes_on: Callable[[], bool]) -> None:
            other = EpisodeRunner(self._policy, make_helper_env, self._seeds, self._deterministic, claims)
            other.start_episodes(BATCH_SIZE)
            other.play(bring, goes_on)

        def on_step() -> bool:
            nonlocal is_decided
            now = time.monotonic()
            claims.heartbeat(now)
            if not is_decided and now - started >= PROBE_S:
                is_decided = True
                waiting = claims.count_waiting()
                # Those in play are counted as done: the estimate errs on the side of no helpers.
                if (now - started) * waiting / (len(self._seeds) - waiting) >= MIN_PARALLEL_WORK_S:
                    helpers.start(help_out, min(processes - 1, waiting))
                else:
                    player.start_episodes(BATCH_SIZE)
            if helpers:
                for index, episodic_return, length in helpers.read_episodes():
                    self._steps += length
                    self._finish_episode(Episode(index, self._seeds[index], episodic_return, length))
            return self._report_step()

        def on_own_step() -> bool:
            self._steps += 1
            return on_step()

        try:
            # While it is open whether others will help, no more is begun than would be one's share.
            share = BATCH_SIZE if is_decided or self._record else math.ceil(len(self._seeds) / processes)
            player.start_episodes(share)
            player.play(self._finish_episode, on_own_step)
            while helpers and self._should_continue and helpers.wait():
                on_step()
        finally:
            helpers.stop()
            claims.close()
            player.close()
        self._play_missing()
        return [self._finished[index] for index in sorted(self._finished)]

    def _play_missing(self) -> None:
        """Whatever a helper did not bring, because it died, is played here."""
        missing = [index for index in range(len(self._seeds)) if index not in self._finished]
        if not missing or not self._should_continue:
            return

        def on_own_step() -> bool:
            self._steps += 1
            return self._report_step()

        rows = assign_rows(self._seeds)
        claims = SharedWorkQueue([[index for index in row if index in missing] for row in rows])
        player = EpisodeRunner(self._policy, self._make_env, self._seeds, self._deterministic, claims)
        try:
            player.start_episodes(BATCH_SIZE)
            player.play(self._finish_episode, on_own_step)
        finally:
            player.close()

    def _finish_episode(self, episode: Episode) -> None:
        self._finished[episode.index] = episode
        if self._on_episode is not None:
            self._on_episode(episode)

    def _report_step(self) -> bool:
        if self._on_step is not None and not self._on_step(self._steps):
            self._should_continue = False
        return self._should_continue


def assign_rows(seeds: Sequence[int]) -> list[list[int]]:
    """For each row of the batch the places of the seeds that are played in it."""
    rows: list[list[int]] = [[] for _ in range(BATCH_SIZE)]
    for index, seed in enumerate(seeds):
        rows[seed % BATCH_SIZE].append(index)
    return rows


class EpisodeRunner:
    """What one process plays: up to AT_ONCE environments, each in its row of the batch."""

    def __init__(
        self,
        policy: EvaluablePolicy,
        make_env: EnvFactory,
        seeds: Sequence[int],
        deterministic: bool,
        work_queue: SharedWorkQueue,
        record: RecordFrame | None = None,
    ) -> None:
        self._policy, self._make_env, self._seeds, self._deterministic = policy, make_env, seeds, deterministic
        self._work_queue = work_queue
        self._record = record
        self._envs: dict[int, gymnasium.Env[Any, Any]] = {}
        self._active_episodes: dict[int, int] = {}
        """By row: which episode it plays."""
        self._returns = [0.0] * BATCH_SIZE
        self._lengths = [0] * BATCH_SIZE
        self._unused_rng = np.random.default_rng(0)
        self._rngs: dict[int, np.random.Generator] = {}
        self._observations: np.ndarray = np.empty(0)

    def start_episodes(self, max_active: int) -> None:
        """Takes up episodes until so many are in play, each in a row that is free."""
        while len(self._active_episodes) < max_active and self._start_in(self._work_queue.row_order()):
            pass

    def _start_in(self, rows: Sequence[int]) -> bool:
        for row in rows:
            if row not in self._active_episodes:
                index = self._work_queue.take(row)
                if index is not None:
                    self._reset_row(row, index)
                    return True
        return False

    def _reset_row(self, row: int, index: int) -> None:
        if row not in self._envs:
            self._add_env(row)
        seed = self._seeds[index]
        observation, _ = self._envs[row].reset(seed=seed)
        if isinstance(self._policy, RecurrentPolicy):
            self._policy.reset_state(row)
        self._returns[row], self._lengths[row] = 0.0, 0
        if not self._deterministic:
            self._rngs[row] = np.random.default_rng(seed)
        shown = self._as_array(observation)
        if not self._observations.size:
            # Rows in which nothing is played hold something that the policy can digest.
            self._observations = np.stack([shown] * BATCH_SIZE)
        self._observations[row] = shown
        self._active_episodes[row] = index
        if self._record is not None:
            self._record(index, self._envs[row])

    def _add_env(self, row: int) -> None:
        env = self._envs[row] = self._make_env()
        if len(self._envs) == 1:
            self._as_array = make_array_converter(env.observation_space)
            self._clip = _make_action_clipper(env.action_space)

    def play(self, on_episode: Callable[[Episode], None], on_step: Callable[[], bool]) -> None:
        """Until nothing is left to take up, or until `on_step` gives False."""
        while self._active_episodes:
            actions = self._select_actions()
            for row, index in list(self._active_episodes.items()):
                env = self._envs[row]
                observation, reward, is_terminated, is_truncated, _ = env.step(actions[row])
                self._returns[row] += float(reward)
                self._lengths[row] += 1
                if self._record is not None:
                    self._record(index, env)
                self._observations[row] = self._as_array(observation)
                if is_terminated or is_truncated or self._lengths[row] >= MAX_EPISODE_STEPS:
                    del self._active_episodes[row]
                    on_episode(Episode(index, self._seeds[index], self._returns[row], self._lengths[row]))
                    self._start_in([row, *self._work_queue.row_order()])
                if not on_step():
                    return

    def _select_actions(self) -> Any:
        if self._deterministic:
            return self._clip(self._policy.act(self._observations, True, self._unused_rng))
        if isinstance(self._policy, RecurrentPolicy):
            draws = [self._rngs.get(row, self._unused_rng) for row in range(BATCH_SIZE)]
            return self._clip(self._policy.sample(self._observations, draws))
        # One by one: what an episode draws must not depend on how many others are in play.
        return {
            row: self._clip(self._policy.act(self._observations[row : row + 1], False, self._rngs[row]))[0]
            for row in self._active_episodes
        }

    def close(self) -> None:
        for env in self._envs.values():
            env.close()


def make_array_converter(space: Any) -> Callable[[Any], np.ndarray]:
    """What makes an array of one observation: what is no array, nor a single number, is flattened."""
    from gymnasium.spaces import Box, Discrete, MultiBinary

    from mosaic.envs.spaces import make_flattener

    return np.asarray if isinstance(space, (Box, Discrete, MultiBinary)) else make_flattener(space) or np.asarray


def _make_action_clipper(space: Any) -> Callable[[np.ndarray], np.ndarray]:
    """What lies outside a box is no action of it; a Gaussian policy gives such numbers all the time."""
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None:
        return lambda actions: actions
    return lambda actions: np.clip(actions, low, high).astype(space.dtype, copy=False)
