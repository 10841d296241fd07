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

from mosaic.arena.claims import Claims
from mosaic.arena.helpers import Helpers

if TYPE_CHECKING:
    import gymnasium

AT_ONCE = 8
"""Rows of the batch with which the policy is asked, and thereby environments of one process."""
DECIDE_S = 0.1
"""How long to play before it is decided whether helpers pay."""
PAYS_S = 0.3
"""Helpers cost a few hundredths of a second, and make their own environments: less work than this is not shared."""
LONGEST = 100_000
"""Steps after which an episode is cut: where its environment sets no limit, a policy that is stuck plays forever."""


class Policy(Protocol):
    def act(self, observations: np.ndarray, deterministic: bool, rng: np.random.Generator) -> np.ndarray:
        """One action for each row of observations: as the environment gave them, flattened where they are no arrays."""
        ...


@runtime_checkable
class RememberingPolicy(Policy, Protocol):
    """One that keeps in mind what each row has seen: it is always asked for all rows."""

    def begin(self, row: int) -> None:
        """An episode begins in that row: nothing of an earlier one is to be remembered."""
        ...

    def draw(self, observations: np.ndarray, rngs: Sequence[np.random.Generator]) -> np.ndarray:
        """Drawn actions, each row's by its own generator."""
        ...


@dataclass(frozen=True)
class Episode:
    index: int
    """Place of its seed in the list that was given."""
    seed: int
    episodic_return: float
    length: int


Maker = Callable[[], "gymnasium.Env[Any, Any]"]
Record = Callable[[int, Any], None]


def evaluate(
    policy: Policy,
    make_env: Maker,
    seeds: Sequence[int],
    deterministic: bool = True,
    on_episode: Callable[[Episode], None] | None = None,
    record: Record | None = None,
    on_step: Callable[[int], bool] | None = None,
    processes: int = 1,
    make_plain: Maker | None = None,
) -> list[Episode]:
    """The episodes in the order of their seeds; the same for the same seeds every time.

    `record(index, env)` is called after each reset and step of the first AT_ONCE episodes, and may draw.
    `on_step(steps)` is called with the steps taken so far, and ends the evaluation by giving False; episodes that have
    not ended then are left out. Beyond one process, `make_plain` makes the helpers' environments.
    """
    if not seeds:
        return []
    made = _Evaluation(policy, make_env, [int(seed) for seed in seeds], deterministic, on_episode, record, on_step)
    return made.played(processes, make_plain or make_env)


class _Evaluation:
    def __init__(
        self,
        policy: Policy,
        make_env: Maker,
        seeds: Sequence[int],
        deterministic: bool,
        on_episode: Callable[[Episode], None] | None,
        record: Record | None,
        on_step: Callable[[int], bool] | None,
    ) -> None:
        self._policy, self._make_env, self._seeds, self._deterministic = policy, make_env, seeds, deterministic
        self._on_episode, self._record, self._on_step = on_episode, record, on_step
        self._finished: dict[int, Episode] = {}
        self._steps = 0
        self._goes_on = True

    def played(self, processes: int, make_plain: Maker) -> list[Episode]:
        claims = Claims(rows_of(self._seeds), is_shared=processes > 1)
        helpers = Helpers(claims)
        started = time.monotonic()
        is_decided = processes < 2
        player = Player(self._policy, self._make_env, self._seeds, self._deterministic, claims, self._record)

        def help_out(bring: Callable[[Episode], None], goes_on: Callable[[], bool]) -> None:
            other = Player(self._policy, make_plain, self._seeds, self._deterministic, claims)
            other.begin(AT_ONCE)
            other.play(bring, goes_on)

        def on_step() -> bool:
            nonlocal is_decided
            now = time.monotonic()
            claims.beat(now)
            if not is_decided and now - started >= DECIDE_S:
                is_decided = True
                waiting = claims.waiting()
                # Those in play are counted as done: the estimate errs on the side of no helpers.
                if (now - started) * waiting / (len(self._seeds) - waiting) >= PAYS_S:
                    helpers.start(help_out, min(processes - 1, waiting))
                else:
                    player.begin(AT_ONCE)
            if helpers:
                for index, episodic_return, length in helpers.taken():
                    self._steps += length
                    self._end(Episode(index, self._seeds[index], episodic_return, length))
            return self._told()

        def on_own_step() -> bool:
            self._steps += 1
            return on_step()

        try:
            # While it is open whether others will help, no more is begun than would be one's share.
            share = AT_ONCE if is_decided or self._record else math.ceil(len(self._seeds) / processes)
            player.begin(share)
            player.play(self._end, on_own_step)
            while helpers and self._goes_on and helpers.wait():
                on_step()
        finally:
            helpers.end()
            claims.close()
            player.close()
        self._make_up()
        return [self._finished[index] for index in sorted(self._finished)]

    def _make_up(self) -> None:
        """Whatever a helper did not bring, because it died, is played here."""
        missing = [index for index in range(len(self._seeds)) if index not in self._finished]
        if not missing or not self._goes_on:
            return

        def on_own_step() -> bool:
            self._steps += 1
            return self._told()

        rows = rows_of(self._seeds)
        claims = Claims([[index for index in row if index in missing] for row in rows])
        player = Player(self._policy, self._make_env, self._seeds, self._deterministic, claims)
        try:
            player.begin(AT_ONCE)
            player.play(self._end, on_own_step)
        finally:
            player.close()

    def _end(self, episode: Episode) -> None:
        self._finished[episode.index] = episode
        if self._on_episode is not None:
            self._on_episode(episode)

    def _told(self) -> bool:
        if self._on_step is not None and not self._on_step(self._steps):
            self._goes_on = False
        return self._goes_on


def rows_of(seeds: Sequence[int]) -> list[list[int]]:
    """For each row of the batch the places of the seeds that are played in it."""
    rows: list[list[int]] = [[] for _ in range(AT_ONCE)]
    for index, seed in enumerate(seeds):
        rows[seed % AT_ONCE].append(index)
    return rows


class Player:
    """What one process plays: up to AT_ONCE environments, each in its row of the batch."""

    def __init__(
        self,
        policy: Policy,
        make_env: Maker,
        seeds: Sequence[int],
        deterministic: bool,
        claims: Claims,
        record: Record | None = None,
    ) -> None:
        self._policy, self._make_env, self._seeds, self._deterministic = policy, make_env, seeds, deterministic
        self._claims = claims
        self._record = record
        self._envs: dict[int, gymnasium.Env[Any, Any]] = {}
        self._playing: dict[int, int] = {}
        """By row: which episode it plays."""
        self._returns = [0.0] * AT_ONCE
        self._lengths = [0] * AT_ONCE
        self._unused = np.random.default_rng(0)
        self._draws: dict[int, np.random.Generator] = {}
        self._observations: np.ndarray = np.empty(0)

    def begin(self, most: int) -> None:
        """Takes up episodes until so many are in play, each in a row that is free."""
        while len(self._playing) < most and self._begin_in(self._claims.rows()):
            pass

    def _begin_in(self, rows: Sequence[int]) -> bool:
        for row in rows:
            if row not in self._playing:
                index = self._claims.take(row)
                if index is not None:
                    self._reset(row, index)
                    return True
        return False

    def _reset(self, row: int, index: int) -> None:
        if row not in self._envs:
            self._add(row)
        seed = self._seeds[index]
        observation, _ = self._envs[row].reset(seed=seed)
        if isinstance(self._policy, RememberingPolicy):
            self._policy.begin(row)
        self._returns[row], self._lengths[row] = 0.0, 0
        if not self._deterministic:
            self._draws[row] = np.random.default_rng(seed)
        shown = self._as_array(observation)
        if not self._observations.size:
            # Rows in which nothing is played hold something that the policy can digest.
            self._observations = np.stack([shown] * AT_ONCE)
        self._observations[row] = shown
        self._playing[row] = index
        if self._record is not None:
            self._record(index, self._envs[row])

    def _add(self, row: int) -> None:
        env = self._envs[row] = self._make_env()
        if len(self._envs) == 1:
            self._as_array = array_maker(env.observation_space)
            self._clip = _clipper(env.action_space)

    def play(self, on_episode: Callable[[Episode], None], on_step: Callable[[], bool]) -> None:
        """Until nothing is left to take up, or until `on_step` gives False."""
        while self._playing:
            actions = self._actions()
            for row, index in list(self._playing.items()):
                env = self._envs[row]
                observation, reward, is_terminated, is_truncated, _ = env.step(actions[row])
                self._returns[row] += float(reward)
                self._lengths[row] += 1
                if self._record is not None:
                    self._record(index, env)
                self._observations[row] = self._as_array(observation)
                if is_terminated or is_truncated or self._lengths[row] >= LONGEST:
                    del self._playing[row]
                    on_episode(Episode(index, self._seeds[index], self._returns[row], self._lengths[row]))
                    self._begin_in([row, *self._claims.rows()])
                if not on_step():
                    return

    def _actions(self) -> Any:
        if self._deterministic:
            return self._clip(self._policy.act(self._observations, True, self._unused))
        if isinstance(self._policy, RememberingPolicy):
            draws = [self._draws.get(row, self._unused) for row in range(AT_ONCE)]
            return self._clip(self._policy.draw(self._observations, draws))
        # One by one: what an episode draws must not depend on how many others are in play.
        return {
            row: self._clip(self._policy.act(self._observations[row : row + 1], False, self._draws[row]))[0]
            for row in self._playing
        }

    def close(self) -> None:
        for env in self._envs.values():
            env.close()


def array_maker(space: Any) -> Callable[[Any], np.ndarray]:
    """What makes an array of one observation: what is no array, nor a single number, is flattened."""
    from gymnasium.spaces import Box, Discrete, MultiBinary

    from mosaic.envs.spaces import flattener

    return np.asarray if isinstance(space, (Box, Discrete, MultiBinary)) else flattener(space) or np.asarray


def _clipper(space: Any) -> Callable[[np.ndarray], np.ndarray]:
    """What lies outside a box is no action of it; a Gaussian policy gives such numbers all the time."""
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None:
        return lambda actions: actions
    return lambda actions: np.clip(actions, low, high).astype(space.dtype, copy=False)
