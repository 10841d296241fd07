"""Environments stepped by several processes, with results equal to those of one process in every bit.

Each process has the `VectorEnvs` of its share; the caller steps the first share itself, so that one process is today's
sequential stepping and two processes are one more.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.env_process import EnvProcess, Outbox, Reply, StepMemory
from cleanrl_worker.environments.vector import EpisodeEnd, GymEnv, VectorEnvs
from mosaic.worker.live_frames import LiveFrames

Array = npt.NDArray[Any]
MEASURED_STEPS = 50
LOAD_SAMPLES, LOAD_SAMPLE_INTERVAL_S = 11, 0.005
MIN_WORK_US = 30.0
"""Work per process and step from which another process pays: passing the turn takes 10 to 20 µs."""


def choose_processes(make_env: Callable[[], GymEnv], num_envs: int, cpus: int | None = None) -> int:
    """Choose by the time that a step takes and by this run's share of the cores, of which `cpus` may be used."""
    if num_envs == 1 or sys.platform != "linux":
        return 1
    # Equal shares: of eight runs that start together on 16 cores, each takes two.
    cores = len(os.sched_getaffinity(0)) // (_count_busy_tasks() + 1)
    limit = min(num_envs, cores, cpus or cores)
    return 1 if limit < 2 else max(1, min(limit, int(num_envs * _measure_step_us(make_env) / MIN_WORK_US)))


def limit_processes(processes: int) -> int:
    """Return the number that was chosen before a run was resumed, or that of the cores if this machine has fewer."""
    return min(processes, len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1


def _count_busy_tasks() -> int:
    """Count the other tasks of the machine that are running now. The load average would count those that just ended."""
    counts = []
    for _ in range(LOAD_SAMPLES):
        runnable = Path("/proc/loadavg").read_text(encoding="utf-8").split()[3]  # "2/310": runnable and existing tasks
        counts.append(int(runnable.partition("/")[0]))
        time.sleep(LOAD_SAMPLE_INTERVAL_S)
    return max(0, int(statistics.median(counts)) - 1)


def _measure_step_us(make_env: Callable[[], GymEnv]) -> float:
    """Return the median duration of a step of one environment; 0 for what one process must or should step."""
    environments = VectorEnvs(make_env, 1, 0)
    durations_us = []
    try:
        if environments.has_compiled_step or environments.has_statistics:
            return 0.0
        environments.start()
        environments.action_space.seed(0)
        into = np.zeros((1, environments.observation_size))
        for _ in range(MEASURED_STEPS):
            actions = [environments.action_space.sample()]
            started = time.perf_counter()
            environments.step(actions, into)
            durations_us.append((time.perf_counter() - started) * 1e6)
    finally:
        environments.close()
    return statistics.median(durations_us)


class ParallelEnvs(VectorEnvs):
    """`num_envs` environments in `processes` processes. As a `VectorEnvs`, it holds the caller's share.

    For environments of another kind, derive from this class, then from that kind, and name it in `share_kind`.
    """

    share_kind: type[VectorEnvs] = VectorEnvs

    def __init__(
        self,
        make_env: Callable[[], GymEnv],
        num_envs: int,
        seed: int,
        frames: LiveFrames | None = None,
        processes: int = 1,
        **settings: Any,
    ) -> None:
        processes = min(processes, num_envs)
        cuts = [num_envs * number // processes for number in range(processes + 1)]
        self._num_envs, self._own_count = num_envs, cuts[1]
        self._workers: list[EnvProcess] = []
        self._shared_frames: LiveFrames | None = None
        if processes == 1:
            super().__init__(make_env, num_envs, seed, frames, **settings)
            return

        frames = self._shared_frames = None if frames is None else frames.share(0, num_envs)
        # The spaces are needed before the processes are made, and lanes must be opened after that.
        made = [make_env()]
        spaces: Any = made[0].observation_space, made[0].action_space
        layout = self.share_kind.observation_layout(spaces[0], **settings)
        self._memory = StepMemory(num_envs, layout, spaces[1].shape, processes - 1)
        try:
            for number, (first, end) in enumerate(itertools.pairwise(cuts[1:])):

                def make_share(outbox: Outbox, first: int = first, end: int = end) -> VectorEnvs:
                    share_frames = None if frames is None else frames.share(first, num_envs)
                    if share_frames is not None:
                        share_frames.redirect(outbox.warnings.append, outbox)
                    return self.share_kind(make_env, end - first, seed + first, share_frames, first, **settings)

                self._workers.append(EnvProcess(number, slice(first, end), self._memory, make_share))
            super().__init__(lambda: made.pop() if made else make_env(), self._own_count, seed, frames, **settings)
            self._receive_replies()
        except BaseException:
            self._close_workers()
            raise

    def __len__(self) -> int:
        return self._num_envs

    def close(self) -> None:
        self._close_workers()
        super().close()

    def _close_workers(self) -> None:
        while self._workers:
            self._workers.pop().close()

    # --- stepping

    def start(self) -> None:
        self._flush_action_chunk()
        for worker in self._workers:
            worker.start_call("start")
        super().start()
        self._receive_replies()

    def observe(self, into: Array) -> None:
        super().observe(into)
        if self._workers:
            into[self._own_count :] = self._memory.observations[self._own_count :]

    def step(self, actions: Iterable[Any], into: Array) -> Sequence[EpisodeEnd]:
        if not self._workers:
            return super().step(actions, into)
        actions = actions if isinstance(actions, (list, np.ndarray)) else list(actions)
        own_count, memory = self._own_count, self._memory
        memory.write_actions(actions)
        for worker in self._workers:
            worker.start_step()
        try:
            episode_ends = super().step(actions[:own_count], into[:own_count])
        finally:
            errors = [worker.finish_step() for worker in self._workers]
        for error in errors:
            if error is not None:
                raise error
        into[own_count:] = memory.observations[own_count:]
        return [*episode_ends, *memory.read_endings(own_count)]

    def read_rewards(self, into: Array) -> None:
        super().read_rewards(into)
        if self._workers:
            into[self._own_count :] = self._memory.rewards[self._own_count :]

    def finish_rollout(self, actions: Array) -> npt.NDArray[np.float64]:
        for worker in self._workers:
            worker.start_call("finish_rollout", actions[:, worker.share])
        rewards = super().finish_rollout(actions[:, : self._own_count])
        parts = [rewards, *self._receive_replies()]
        # With the memory layout of a single process, because the order of sums depends on it.
        return np.concatenate([part.T for part in parts]).T if self._workers else rewards

    # --- resuming

    def checkpoint_state(self) -> tuple[dict[str, Array], list[dict[str, Any]]]:
        self._flush_action_chunk()
        for worker in self._workers:
            worker.start_call("checkpoint_state")
        arrays, facts = super().checkpoint_state()
        for share_arrays, share_facts in self._receive_replies():
            arrays |= share_arrays
            facts += share_facts
        return arrays, facts

    def restore(self, arrays: Mapping[str, Array], facts: Sequence[Mapping[str, Any]]) -> list[str]:
        for worker in self._workers:
            prefixes = tuple(f"env.{index}." for index in range(worker.share.start, worker.share.stop))
            share_arrays = {name: array for name, array in arrays.items() if name.startswith(prefixes)}
            worker.start_call("restore", share_arrays, facts[worker.share])
        problems = super().restore(arrays, facts[: self._own_count])
        return [*problems, *(problem for share_problems in self._receive_replies() for problem in share_problems)]

    def _receive_replies(self) -> list[Any]:
        """Return the results of a call of all processes, in order; pass on their warnings and episodes."""
        replies: list[Reply] = [worker.receive_reply() for worker in self._workers]
        for reply in replies:
            if self._shared_frames is not None:
                for warning in reply.outbox.warnings:
                    self._shared_frames.warn_once(warning)
                for episode in reply.outbox.episodes:
                    self._episode_log.recorder.add(*episode)
            if reply.error is not None:
                raise reply.error
        return [reply.result for reply in replies]
