"""Evaluates a policy, one episode per seed: several environments at once, in more processes where that is faster.

A seed's row in the policy's batch depends on the seed alone, the batch always has the same number of rows, and a policy
that samples uses a generator of the episode. So an episode is the same, bit for bit, whatever is played with it and in
whichever process.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import connection, get_context
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from mosaic.base.curves import score_with_interval
from mosaic.base.scores import iqm

if TYPE_CHECKING:
    import gymnasium

BATCH_SIZE = 8
"""Rows of the policy's batch, and so the number of environments of one process."""
PROBE_S = 0.1
"""Time to play before deciding whether helper processes are worthwhile."""
MIN_PARALLEL_WORK_S = 0.3
"""Starting helpers takes some 0.05 s, and they create their own environments: less work than this is not shared."""
MAX_EPISODE_STEPS = 100_000
"""Steps after which an episode is truncated, for environments without a limit of their own."""
NICENESS = 5
"""An evaluation yields to a training run."""
HEARTBEAT_TIMEOUT_S = 1.0
"""A main process without a heartbeat for this long is paused."""
POLL_S = 0.02
EXIT_TIMEOUT_S = 0.3
"""Time for the helpers to exit before they are killed."""


class EvaluablePolicy(Protocol):
    def act(self, observations: np.ndarray, deterministic: bool, rng: np.random.Generator) -> np.ndarray:
        """Return one action per row of observations, which are flattened if the environment's are not arrays.

        A policy that has a method `to_array` converts each observation itself.
        """
        ...


@runtime_checkable
class RecurrentPolicy(EvaluablePolicy, Protocol):
    """A policy with a state per row: it is always called with all rows."""

    def reset_state(self, row: int) -> None:
        """Reset the state of a row in which an episode starts."""
        ...

    def sample(self, observations: np.ndarray, rngs: Sequence[np.random.Generator]) -> np.ndarray:
        """Sample actions, each row's with its own generator."""
        ...


@dataclass(frozen=True)
class EpisodeSteps:
    """What simulates an episode again from its seed, and its rewards to compare: the environment's own."""

    actions: np.ndarray
    rewards: np.ndarray
    is_terminated: bool
    hashes: tuple[tuple[int, int], ...] = ()
    """Of observations, by step."""


@dataclass(frozen=True)
class Episode:
    index: int
    """Index of its seed in the given list."""
    seed: int
    episodic_return: float
    length: int
    steps: EpisodeSteps | None = field(default=None, compare=False, repr=False)
    """Where they are recorded."""


EnvFactory = Callable[[], "gymnasium.Env[Any, Any]"]
RecordFrame = Callable[[int, Any], None]
PlayEpisodes = Callable[[Callable[[Episode], None], Callable[[], bool]], None]
"""Plays episodes: calls the first function with each, and the second after each step to ask whether to continue."""


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
    records_steps: bool = False,
) -> list[Episode]:
    """Play the episodes and return them in the order of their seeds; the same seeds give the same episodes.

    `record(index, env)` is called after each reset and step of the episodes played in this process, and may render.
    `on_step(steps)` is called with the steps taken so far, and ends the evaluation by returning False; unfinished
    episodes are then left out. With more than one process, `make_helper_env` creates the helpers' environments.
    With `records_steps`, `on_episode` gets the steps of an episode; those that are returned are without.
    """
    if not seeds:
        return []
    integers = [int(seed) for seed in seeds]
    evaluation = _Evaluation(policy, make_env, integers, deterministic, on_episode, record, on_step, records_steps)
    return evaluation.run(processes, make_helper_env or make_env)


@dataclass
class _Evaluation:
    policy: EvaluablePolicy
    make_env: EnvFactory
    seeds: Sequence[int]
    deterministic: bool
    on_episode: Callable[[Episode], None] | None
    record: RecordFrame | None
    on_step: Callable[[int], bool] | None
    records_steps: bool = False
    finished: dict[int, Episode] = field(default_factory=dict)
    steps: int = 0
    should_continue: bool = True

    def run(self, processes: int, make_helper_env: EnvFactory) -> list[Episode]:
        rows = assign_rows(self.seeds)
        work_queue = SharedWorkQueue(rows, is_shared=processes > 1)
        helpers = EvaluationProcesses(work_queue)
        started = time.monotonic()
        is_decided = processes < 2
        runner = self._make_runner(work_queue, self.make_env, self.record)

        def run_helper(send: Callable[[Episode], None], should_continue: Callable[[], bool]) -> None:
            helper = self._make_runner(work_queue, make_helper_env)
            helper.start_episodes(BATCH_SIZE)
            helper.play(send, should_continue)

        def poll_helpers() -> bool:
            nonlocal is_decided
            now = time.monotonic()
            work_queue.heartbeat(now)
            if not is_decided and now - started >= PROBE_S:
                is_decided = True
                waiting = work_queue.count_waiting()
                # Episodes in play count as done: the estimate errs on the side of no helpers.
                if (now - started) * waiting / (len(self.seeds) - waiting) >= MIN_PARALLEL_WORK_S:
                    helpers.start(run_helper, min(processes - 1, waiting))
                else:
                    runner.start_episodes(BATCH_SIZE)
            if helpers:
                for episode in helpers.read_episodes():
                    self.steps += episode.length
                    self._finish_episode(episode)
            return self._report_step()

        def on_own_step() -> bool:
            self.steps += 1
            return poll_helpers()

        try:
            # Until helpers are decided on, start no more than this process's share.
            share = BATCH_SIZE if is_decided or self.record else math.ceil(len(self.seeds) / processes)
            runner.start_episodes(share)
            runner.play(self._finish_episode, on_own_step)
            while helpers and self.should_continue and helpers.wait():
                poll_helpers()
        finally:
            helpers.stop()
            work_queue.close()
            runner.close()
        if self.should_continue and len(self.finished) < len(self.seeds):
            self._play_missing(rows)
        return [self.finished[index] for index in sorted(self.finished)]

    def _play_missing(self, rows: Sequence[Sequence[int]]) -> None:
        """Play the episodes that a helper did not return because it died."""

        def on_own_step() -> bool:
            self.steps += 1
            return self._report_step()

        work_queue = SharedWorkQueue([[index for index in row if index not in self.finished] for row in rows])
        with closing(self._make_runner(work_queue, self.make_env)) as runner:
            runner.start_episodes(BATCH_SIZE)
            runner.play(self._finish_episode, on_own_step)

    def _make_runner(
        self, work_queue: SharedWorkQueue, make_env: EnvFactory, record: RecordFrame | None = None
    ) -> EpisodeRunner:
        return EpisodeRunner(
            self.policy, make_env, self.seeds, self.deterministic, work_queue, record, self.records_steps
        )

    def _finish_episode(self, episode: Episode) -> None:
        self.finished[episode.index] = replace(episode, steps=None)
        if self.on_episode is not None:
            self.on_episode(episode)

    def _report_step(self) -> bool:
        if self.on_step is not None and not self.on_step(self.steps):
            self.should_continue = False
        return self.should_continue


def assign_rows(seeds: Sequence[int]) -> list[list[int]]:
    """Return for each row of the batch the indices of the seeds played in it."""
    rows: list[list[int]] = [[] for _ in range(BATCH_SIZE)]
    for index, seed in enumerate(seeds):
        rows[seed % BATCH_SIZE].append(index)
    return rows


class EpisodeRunner:
    """Plays the episodes of one process: up to BATCH_SIZE environments, each in its row of the batch."""

    def __init__(
        self,
        policy: EvaluablePolicy,
        make_env: EnvFactory,
        seeds: Sequence[int],
        deterministic: bool,
        work_queue: SharedWorkQueue,
        record: RecordFrame | None = None,
        records_steps: bool = False,
    ) -> None:
        self._policy, self._make_env, self._seeds, self._deterministic = policy, make_env, seeds, deterministic
        self._work_queue = work_queue
        self._record = record
        self._records_steps = records_steps
        self._actions: list[list[Any]] = [[] for _ in range(BATCH_SIZE)]
        self._rewards: list[list[float]] = [[] for _ in range(BATCH_SIZE)]
        self._hashes: list[list[tuple[int, int]]] = [[] for _ in range(BATCH_SIZE)]
        self._envs: dict[int, gymnasium.Env[Any, Any]] = {}
        self._active_episodes: dict[int, int] = {}
        """By row: the index of its episode."""
        self._returns = [0.0] * BATCH_SIZE
        self._lengths = [0] * BATCH_SIZE
        self._unused_rng = np.random.default_rng(0)
        self._rngs: dict[int, np.random.Generator] = {}
        self._observations: np.ndarray = np.empty(0)

    def start_episodes(self, max_active: int) -> None:
        """Start episodes in free rows until `max_active` are in play."""
        while len(self._active_episodes) < max_active and self._start_in(self._work_queue.row_order):
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
        if self._records_steps:
            self._hashes[row] = []
            self._add_hash(row, observation)
        if not self._deterministic:
            self._rngs[row] = np.random.default_rng(seed)
        array = self._as_array(observation)
        if not self._observations.size:
            # Idle rows hold a valid observation too.
            self._observations = np.stack([array] * BATCH_SIZE)
        self._observations[row] = array
        self._active_episodes[row] = index
        if self._record is not None:
            self._record(index, self._envs[row])

    def _add_env(self, row: int) -> None:
        env = self._envs[row] = self._make_env()
        if len(self._envs) == 1:
            self._as_array = getattr(self._policy, "to_array", None) or make_array_converter(env.observation_space)
            self._clip = make_action_clipper(env.action_space)

    def play(self, on_episode: Callable[[Episode], None], on_step: Callable[[], bool]) -> None:
        """Play until no episode is left, or until `on_step` returns False."""
        while self._active_episodes:
            actions = self._select_actions()
            for row, index in list(self._active_episodes.items()):
                env = self._envs[row]
                observation, reward, is_terminated, is_truncated, _ = env.step(actions[row])
                self._returns[row] += float(reward)
                self._lengths[row] += 1
                if self._records_steps:
                    self._actions[row].append(np.array(actions[row]))
                    self._rewards[row].append(float(reward))
                if self._record is not None:
                    self._record(index, env)
                self._observations[row] = self._as_array(observation)
                is_over = is_terminated or is_truncated or self._lengths[row] >= MAX_EPISODE_STEPS
                if self._records_steps:
                    self._add_hash(row, observation, is_over)
                if is_over:
                    del self._active_episodes[row]
                    steps = self._take_steps(row, bool(is_terminated)) if self._records_steps else None
                    on_episode(Episode(index, self._seeds[index], self._returns[row], self._lengths[row], steps))
                    self._start_in([row, *self._work_queue.row_order])
                if not on_step():
                    return

    def _add_hash(self, row: int, observation: Any, is_over: bool = False) -> None:
        from mosaic.worker.envs.reproducible import HASH_INTERVAL, hash_observation
        from mosaic.worker.envs.wrappers import WrappedEnv

        if self._lengths[row] % HASH_INTERVAL and not is_over:
            return
        env: Any = self._envs[row]
        while not isinstance(env, WrappedEnv) and env is not env.unwrapped:
            env = env.env
        observed = env.hashed_part(observation) if isinstance(env, WrappedEnv) else observation
        self._hashes[row].append((self._lengths[row], hash_observation(observed)))

    def _take_steps(self, row: int, is_terminated: bool) -> EpisodeSteps:
        actions, rewards = np.stack(self._actions[row]), np.array(self._rewards[row], np.float64)
        steps = EpisodeSteps(actions, rewards, is_terminated, tuple(self._hashes[row]))
        self._actions[row], self._rewards[row] = [], []
        return steps

    def _select_actions(self) -> Any:
        if self._deterministic:
            return self._clip(self._policy.act(self._observations, True, self._unused_rng))
        if isinstance(self._policy, RecurrentPolicy):
            rngs = [self._rngs.get(row, self._unused_rng) for row in range(BATCH_SIZE)]
            return self._clip(self._policy.sample(self._observations, rngs))
        # One by one: what an episode samples must not depend on how many others are in play.
        return {
            row: self._clip(self._policy.act(self._observations[row : row + 1], False, self._rngs[row]))[0]
            for row in self._active_episodes
        }

    def close(self) -> None:
        for env in self._envs.values():
            env.close()


def make_array_converter(space: Any) -> Callable[[Any], np.ndarray]:
    """Return a function that converts an observation to an array, flattening spaces that are not arrays or numbers."""
    from gymnasium.spaces import Box, Discrete, MultiBinary

    from mosaic.worker.envs.spaces import make_flattener

    return np.asarray if isinstance(space, (Box, Discrete, MultiBinary)) else make_flattener(space) or np.asarray


def make_action_clipper(space: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that clips actions to a Box: a Gaussian policy often exceeds it."""
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None:
        return lambda actions: actions
    return lambda actions: np.clip(actions, low, high).astype(space.dtype, copy=False)


# --- helper processes: forked, so they have the policy and all imports at once


class SharedWorkQueue:
    """A queue of episodes per row, from which every process takes the next. Create it before forking."""

    def __init__(self, rows: Sequence[Sequence[int]], is_shared: bool = False) -> None:
        self._rows = rows
        self.row_order = sorted((row for row in range(len(rows)) if rows[row]), key=lambda row: rows[row][0])
        """The rows that have episodes, in the order of their first one."""
        memory = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
        self._taken_counts = memory[: 8 * len(rows)].cast("q")
        """Number of episodes taken, by row."""
        self._words = memory[8 * len(rows) :].cast("d")
        """The time of the main process's last heartbeat, and whether it has asked the helpers to stop."""
        # A kernel lock: the kernel releases it when the process that holds it is killed.
        self._lock = os.memfd_create("claims") if is_shared else None

    def take(self, row: int) -> int | None:
        """Take and return the next episode of a row; None if all are taken."""
        if self._lock is not None:
            fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            taken = self._taken_counts[row]
            if taken >= len(self._rows[row]):
                return None
            self._taken_counts[row] = taken + 1
            return self._rows[row][taken]
        finally:
            if self._lock is not None:
                fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def count_waiting(self) -> int:
        """Return the number of episodes not taken yet."""
        return sum(map(len, self._rows)) - sum(self._taken_counts)

    def heartbeat(self, now: float) -> None:
        """Record that the main process is running; the helpers wait while it is paused."""
        self._words[0] = now

    @property
    def is_paused(self) -> bool:
        return time.monotonic() - self._words[0] > HEARTBEAT_TIMEOUT_S

    def stop(self) -> None:
        self._words[1] = 1.0

    @property
    def is_stopped(self) -> bool:
        return self._words[1] != 0.0

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class EvaluationProcesses:
    """The running helpers. Episodes of one that dies are missing."""

    def __init__(self, work_queue: SharedWorkQueue) -> None:
        self._work_queue = work_queue
        self._helpers: dict[connection.Connection, ForkProcess] = {}
        self._next_poll_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._helpers)

    def start(self, work: PlayEpisodes, count: int) -> None:
        """Fork `count` processes that call `work`."""
        self._work_queue.heartbeat(time.monotonic())
        context = get_context("fork")
        for _ in range(count):
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=_run_helper, args=(work, self._work_queue, writer, os.getpid()))
            process.start()
            writer.close()
            self._helpers[reader] = process

    def read_episodes(self) -> Iterator[Episode]:
        """Yield new episodes. Polls the pipes only at intervals, so it can be called at every step."""
        now = time.monotonic()
        if now >= self._next_poll_at:
            self._next_poll_at = now + POLL_S
            for reader in list(self._helpers):
                yield from self._read(reader)

    def _read(self, reader: connection.Connection) -> Iterator[Episode]:
        try:
            while reader.poll():
                yield reader.recv()
        except EOFError:
            reader.close()
            self._helpers.pop(reader).join()

    def wait(self) -> bool:
        """Wait briefly for episodes; return False when all helpers have exited."""
        connection.wait(list(self._helpers), POLL_S)
        self._next_poll_at = 0.0
        return bool(self._helpers)

    def stop(self) -> None:
        """Ask the helpers to stop, then kill them: an environment may be in a long step."""
        self._work_queue.stop()
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        for reader, process in self._helpers.items():
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()
            reader.close()
        self._helpers.clear()


def _run_helper(work: PlayEpisodes, work_queue: SharedWorkQueue, writer: connection.Connection, main_pid: int) -> None:
    """Run `work` in a helper and exit; never returns."""
    next_check_at = 0.0

    def should_continue() -> bool:
        nonlocal next_check_at
        if work_queue.is_stopped:
            return False
        if time.monotonic() < next_check_at:
            return True
        while work_queue.is_paused and os.getppid() == main_pid and not work_queue.is_stopped:
            time.sleep(POLL_S)
        next_check_at = time.monotonic() + POLL_S
        return os.getppid() == main_pid and not work_queue.is_stopped

    try:
        with suppress(OSError):
            os.nice(NICENESS)
        work(writer.send, should_continue)
    finally:
        # Errors are not reported: the main process plays the same episode and raises the same error.
        os._exit(0)


# --- Summarizes the episodes of an evaluation.


def summarize(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Return a summary as JSON. `iqm` is the interquartile mean, `ci95` the 95 % interval of the mean, Wilson's of a
    rate where each return is 0 or 1, else Student's.

    A single episode has no interval; values that are not finite are null.
    """
    return summarize_values(
        [episode.seed for episode in episodes],
        [episode.episodic_return for episode in episodes],
        [episode.length for episode in episodes],
    )


def pool_summaries(batches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summary over the episodes of several summaries."""
    seeds, returns, lengths = (
        [value for batch in batches for value in batch[key]] for key in ("seeds", "returns", "lengths")
    )
    return summarize_values(seeds, [math.nan if value is None else value for value in returns], lengths)


def summarize_values(seeds: Sequence[int], returns: Sequence[float], lengths: Sequence[int]) -> dict[str, Any]:
    if not returns:
        return {"episodes": 0, "seeds": [], "returns": [], "lengths": []}
    values = np.array(returns, np.float64)
    interval = list(score_with_interval(values)[1:])
    figures = {
        "avg_return": values.mean(),
        "median_return": np.median(values),
        "min_return": values.min(),
        "max_return": values.max(),
        "std_return": values.std(),
        "iqm": iqm(values),
    }
    return {
        "episodes": len(values),
        **{name: _finite_or_none(value) for name, value in figures.items()},
        "ci95": interval if all(map(math.isfinite, interval)) else None,
        "avg_length": float(np.mean(lengths)),
        "seeds": list(seeds),
        "returns": [_finite_or_none(value) for value in returns],
        "lengths": list(lengths),
    }


def _finite_or_none(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
