"""Environments in several processes behave as those in one process, and end with it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.conftest import wait_until
from tests.helpers.algorithm_cases import (
    Corridor,
    assert_same_checkpoint,
    latest_checkpoint,
    register_env,
    train_run,
)
from tests.helpers.worker_runs import events, small, train_here

from cleanrl_worker.environments import classic_control, parallel
from cleanrl_worker.environments.atari import AtariEnvs
from cleanrl_worker.environments.normalized import NormalizedEnvs
from cleanrl_worker.environments.parallel import ParallelEnvs, choose_processes
from cleanrl_worker.registry import load_algorithm
from cleanrl_worker.shell.launcher import build_job
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.base.fastlane import LaneView, LaneWriter, lane_indices, lanes_folder
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import RunFolder
from mosaic.worker import envs, live_frames
from mosaic.worker.live_frames import LiveFrames

CASES = ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5"]


def maker(env_id: str, **settings: Any) -> Callable[[], gymnasium.Env[Any, Any]]:
    return lambda: gymnasium.make(env_id, disable_env_checker=True, **settings)


@contextmanager
def opened(env_id: str, processes: int, num_envs: int = 5, **options: Any) -> Iterator[ParallelEnvs]:
    # A short time limit: every environment is truncated and reset several times.
    make_env = maker(env_id, max_episode_steps=30)
    environments = ParallelEnvs(make_env, num_envs, 3, processes=processes, **options)
    try:
        yield environments
    finally:
        environments.close()


def sample_actions(environments: ParallelEnvs, steps: int) -> np.ndarray[Any, Any]:
    environments.action_space.seed(1)
    return np.array([[environments.action_space.sample() for _ in range(len(environments))] for _ in range(steps)])


def comparable(ends: Any) -> list[tuple[Any, ...]]:
    return [(*end._replace(observation=end.observation.tobytes()), end.observation.dtype) for end in ends]


def same_state(one: ParallelEnvs, other: ParallelEnvs) -> bool:
    (arrays, facts), (other_arrays, other_facts) = one.checkpoint_state(), other.checkpoint_state()
    assert list(arrays) == list(other_arrays)
    assert all(arrays[key].dtype == other_arrays[key].dtype for key in arrays)
    return facts == other_facts and all(arrays[key].tobytes() == other_arrays[key].tobytes() for key in arrays)


@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("env_id", CASES)
def test_rollouts_are_equal_to_those_of_one_process(env_id: str, processes: int) -> None:
    with opened(env_id, 1) as alone, opened(env_id, processes) as shared:
        assert (len(alone), len(shared)) == (5, 5)
        into = np.zeros((2, 5, alone.observation_size))
        alone.start()
        shared.start()
        actions, ended = sample_actions(alone, 120), 0
        for first in range(0, 120, 40):
            for row in actions[first : first + 40]:
                ends, other_ends = alone.step(row, into[0]), shared.step(row, into[1])
                assert into[0].tobytes() == into[1].tobytes()
                assert comparable(ends) == comparable(other_ends)
                ended += len(ends)
            rollout = actions[first : first + 40]
            rewards, other_rewards = alone.finish_rollout(rollout), shared.finish_rollout(rollout)
            assert rewards.tobytes() == other_rewards.tobytes()
            assert rewards.strides == other_rewards.strides
            assert same_state(alone, shared)
        assert ended >= 15


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_state_resumes_with_any_number_of_processes(env_id: str) -> None:
    with opened(env_id, 2) as first, opened(env_id, 1) as alone, opened(env_id, 3) as three:
        into, rewards = np.zeros((3, 5, first.observation_size)), np.zeros((3, 5))
        first.start()
        actions = sample_actions(first, 140)
        for row in actions[:50]:
            first.advance(row, into[0], rewards[0])
        state = first.checkpoint_state()
        assert alone.restore(*state) == []
        assert three.restore(*state) == []
        for environments, part in ((alone, into[1]), (three, into[2])):
            environments.observe(part)
            assert part.tobytes() == into[0].tobytes()
        for row in actions[50:]:
            ends = [one.advance(row, into[n], rewards[n]) for n, one in enumerate((first, alone, three))]
            assert into[0].tobytes() == into[1].tobytes() == into[2].tobytes()
            assert rewards[0].tobytes() == rewards[1].tobytes() == rewards[2].tobytes()
            assert comparable(ends[0]) == comparable(ends[1]) == comparable(ends[2])
        assert same_state(first, alone)
        assert same_state(first, three)


def test_what_cannot_be_restored_is_named_by_its_index_in_the_run() -> None:
    with register_env(noise="foreign") as env_id, opened(env_id, 2, 4) as first, opened(env_id, 2, 4) as second:
        first.start()
        actions = np.zeros((3, 4), int)
        for row in actions:
            first.step(row, np.zeros((4, 2)))
        first.finish_rollout(actions)
        problems = second.restore(*first.checkpoint_state())
    assert [problem.partition(":")[0] for problem in problems] == [f"environment {index}" for index in range(4)]


class Typed(Corridor):
    """Rewards by the type of its action."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._observe(), float(sum(type(action).__name__.encode())), False, False, {}


def test_environments_get_actions_of_the_same_type() -> None:
    with register_env(kind=Typed) as env_id, opened(env_id, 2, 4) as environments:
        environments.start()
        into = np.zeros((4, 2))
        for row in ([0, 1, 0, 1], [np.int64(0)] * 4, np.zeros(4, np.int32)):
            environments.step(row, into)
            rewards = np.zeros(4)
            environments.read_rewards(rewards)
            assert len(set(rewards.tolist())) == 1
        with pytest.raises(ValueError, match="shape"):
            environments.step([0, 1], into)


class Failing(Corridor):
    """Raises in its third step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        if len(self.received) == 3:
            raise ValueError(f"The wheel fell off in process {os.getpid()}.")
        return result


def test_an_error_of_an_environment_is_raised_with_its_message() -> None:
    with register_env(kind=Failing, limit=None) as env_id, opened(env_id, 2, 2) as environments:
        environments.start()
        environments._unwrapped_envs[0].received.extend("other")  # so that only the other process fails
        into = np.zeros((2, 2))
        environments.step([0, 0], into)
        environments.step([0, 0], into)
        (worker,) = environments._workers
        with pytest.raises(ValueError, match=f"The wheel fell off in process {worker.pid}") as caught:
            environments.step([0, 0], into)
        assert "in step" in "".join(caught.value.__notes__)


class Unmakeable(Corridor):
    def __init__(self, parent: int, **settings: Any) -> None:
        super().__init__(**settings)
        if os.getpid() != parent:
            raise OSError("No such wheel.")


def test_an_environment_that_cannot_be_made_in_a_process_leaves_none() -> None:
    """The check after each test finds processes that are left."""
    with (
        register_env(kind=Unmakeable, parent=os.getpid()) as env_id,
        pytest.raises(OSError, match="No such wheel"),
        opened(env_id, 3, 3),
    ):
        pass


@pytest.mark.parametrize("is_call", [False, True])
def test_the_death_of_a_process_is_an_error_that_names_it(is_call: bool) -> None:
    with opened("CartPole-v1", 2, 4) as environments:
        environments.start()
        (worker,) = environments._workers
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(MosaicError, match=f"process {worker.pid} of the environments 2 to 3 was killed by SIGKILL"):
            environments.checkpoint_state() if is_call else environments.step([0] * 4, np.zeros((4, 4)))


def test_signals_for_the_parent_do_not_end_a_process() -> None:
    with opened("CartPole-v1", 2, 4) as environments:
        environments.start()
        (worker,) = environments._workers
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker.pid, number)
        environments.step([0] * 4, np.zeros((4, 4)))


PARENT = """
import gymnasium, sys
from cleanrl_worker.environments.parallel import ParallelEnvs
environments = ParallelEnvs(lambda: gymnasium.make("CartPole-v1"), 3, 1, processes=3)
environments.start()
print(*(worker.pid for worker in environments._workers), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, None])
def test_no_process_is_left_when_the_parent_ends_without_closing(ending: signal.Signals | None) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        if ending is None:
            parent.stdin.close()
        else:
            parent.send_signal(ending)
        parent.wait()
    assert wait_until(lambda: not any(_is_running(pid) for pid in pids))


def _is_running(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


def test_normalized_environments_are_equal_too() -> None:
    make_env = maker("Pendulum-v1", max_episode_steps=20)
    alone, shared = (NormalizedEnvs(make_env, 4, 3, processes=processes) for processes in (1, 2))
    try:
        into = np.zeros((2, 4, 3), np.float32)
        alone.start()
        shared.start()
        for row in sample_actions(alone, 50):
            ends, other_ends = alone.step(row, into[0]), shared.step(row, into[1])
            assert into[0].tobytes() == into[1].tobytes()
            assert comparable(ends) == comparable(other_ends)
    finally:
        alone.close()
        shared.close()


def test_games_are_equal_too() -> None:
    """Also lost lives, which are not the end of an episode, and a state that another number of processes resumes."""
    alone, shared, resumed = (AtariEnvs("BreakoutNoFrameskip-v4", 3, 3, processes=count) for count in (1, 2, 3))
    try:
        into, ended = np.zeros((3, 3, *alone.shape), np.uint8), 0
        alone.start()
        shared.start()
        actions = sample_actions(alone, 150)
        for step, row in enumerate(actions):
            if step == 75:
                alone.finish_rollout(actions[:step])
                shared.finish_rollout(actions[:step])
                assert same_state(alone, shared)
                assert resumed.restore(*shared.checkpoint_state()) == []
            games = (alone, shared) if step < 75 else (alone, shared, resumed)
            ends = [comparable(one.step(row, into[number])) for number, one in enumerate(games)]
            assert all(other == ends[0] for other in ends)
            assert all(other.tobytes() == into[0].tobytes() for other in into[1 : len(games)])
            ended += sum(not end[5] for end in ends[0])
        assert ended > 3
        assert same_state(shared, resumed)
    finally:
        for one in (alone, shared, resumed):
            one.close()


TRAININGS: list[tuple[str, str, dict[str, Any]]] = [
    ("ppo", "CartPole-v1", {"num_envs": 4, "num_steps": 32, "total_timesteps": 1024}),
    ("ppo_continuous_action", "Pendulum-v1", {"num_envs": 4, "num_steps": 64, "total_timesteps": 1024}),
    ("dqn", "CartPole-v1", {"num_envs": 4, "learning_starts": 200, "total_timesteps": 1024}),
    ("sac_continuous_action", "Pendulum-v1", {"num_envs": 4, "learning_starts": 200, "total_timesteps": 1024}),
]


@pytest.mark.parametrize(("algo", "env_id", "settings"), TRAININGS, ids=[case[0] for case in TRAININGS])
def test_a_training_ends_with_the_same_checkpoint(
    algo: str, env_id: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Also one that was resumed in the middle with another number of processes."""
    kind = load_algorithm(algo).Config
    alone, shared = (
        kind(env_id=env_id, checkpoint_every=512, env_processes=processes, **settings) for processes in (1, 2)
    )
    one = train_run(tmp_path / "one", algo, alone)
    two = train_run(tmp_path / "two", algo, shared)
    assert one.episodes == two.episodes
    assert_same_checkpoint(latest_checkpoint(tmp_path / "one"), latest_checkpoint(tmp_path / "two"))
    train_run(tmp_path / "three", algo, shared, stop_at=512)
    train_run(tmp_path / "three", algo, alone, latest_checkpoint(tmp_path / "three"))
    assert_same_checkpoint(latest_checkpoint(tmp_path / "one"), latest_checkpoint(tmp_path / "three"))


class Store:
    """Keeps the episodes that it gets."""

    def __init__(self) -> None:
        self.episodes: list[Any] = []

    def add(
        self, seed: Any, random_state: Any, actions: Any, rewards: Any, is_terminal: bool, hashes: Any = ()
    ) -> None:
        parts = [np.concatenate(part).tolist() for part in (actions, rewards)]
        self.episodes.append((seed, random_state, *parts, is_terminal, hashes))

    def flush(self) -> None: ...


def test_episodes_of_all_processes_are_recorded_in_the_same_order(tmp_path: Path) -> None:
    stores = []
    for processes in (1, 3):
        frames = LiveFrames(RunFolder(tmp_path), 0, lambda *_: None)
        frames.recorder = store = Store()
        stores.append(store)
        with opened("CartPole-v1", processes, frames=frames) as environments:
            environments.start()
            actions = sample_actions(environments, 100)
            for row in actions:
                environments.step(row, np.zeros((5, 4)))
            environments.finish_rollout(actions)
    assert len(stores[0].episodes) > 10
    assert stores[0].episodes == stores[1].episodes


def test_environments_of_all_processes_are_watched(tmp_path: Path) -> None:
    frames = LiveFrames(RunFolder(tmp_path), 4, lambda sentence, _: pytest.fail(sentence))
    with opened("CartPole-v1", 2, 4, frames=frames) as environments:
        assert lane_indices(lanes_folder(tmp_path)) == [0, 1, 2, 3]
        environments.start()
        assert len(environments._pictures.taps) == 2
        view = LaneView(lanes_folder(tmp_path))

        def has_all_frames() -> bool:
            environments.step([0, 1, 0, 1], np.zeros((4, 4)))
            view.poll()
            return [index for index, frame in sorted(view.frames.items()) if frame is not None] == [0, 1, 2, 3]

        assert wait_until(has_all_frames)
        view.close()
    assert lane_indices(lanes_folder(tmp_path)) == []


def test_a_warning_of_a_process_is_one_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[tuple[str, str]] = []
    parent = os.getpid()

    def make_lane(*args: Any, **options: Any) -> Any:
        if os.getpid() != parent:
            raise OSError(errno.ENOSPC, "No space left on device")
        return LaneWriter(*args, **options)

    monkeypatch.setattr(live_frames, "LaneWriter", make_lane)
    frames = LiveFrames(RunFolder(tmp_path), 6, lambda *warning: warnings.append(warning))
    with opened("CartPole-v1", 3, 6, frames=frames):
        ((sentence, code),) = warnings
    assert "No space left on device" in sentence
    assert code == "frames_off"


# --- the choice


class Slow(Corridor):
    """Takes ages by a clock of its own."""

    step_us = 0.0
    clock_s = 0.0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Slow.clock_s += self.step_us * 1e-6
        return super().step(action)


@pytest.mark.parametrize(
    ("step_us", "num_envs", "cores", "busy", "cpus", "expected"),
    [
        (20.0, 2, 8, 0, None, 1),
        (20.0, 4, 8, 0, None, 2),
        (50.0, 16, 8, 0, None, 8),
        (50.0, 16, 8, 3, None, 2),
        (50.0, 16, 8, 0, 4, 4),
        (50.0, 16, 2, 1, None, 1),
        (50.0, 1, 8, 0, None, 1),
        (1000.0, 3, 8, 0, None, 3),
    ],
)
def test_the_number_of_processes_follows_work_and_idle_cores(
    step_us: float, num_envs: int, cores: int, busy: int, cpus: int | None, expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Slow, "step_us", step_us + 0.001)
    monkeypatch.setattr(time, "perf_counter", lambda: Slow.clock_s)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(parallel, "_count_busy_tasks", lambda: busy)
    assert choose_processes(Slow, num_envs, cpus) == expected


def test_a_compiled_step_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    make_env = maker("CartPole-v1")
    assert parallel._measure_step_us(make_env) == 0.0
    monkeypatch.setattr(classic_control, "load_library", lambda: None)
    assert parallel._measure_step_us(make_env) > 0.0


def test_running_tasks_are_counted_without_the_run_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "5.30 2.10 1.00 4/310 999")
    assert parallel._count_busy_tasks() == 3


def test_the_choice_is_in_the_checkpoint_and_resuming_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "choose_processes", lambda *_: 2)
    folder = RunFolder(tmp_path / "run")
    train_here(folder, small())
    assert latest_checkpoint(folder.path).facts["config"]["env_processes"] == 2
    (hyperparameters,) = events(folder, "hyperparameters")
    assert hyperparameters["values"]["env_processes"] == 2
    monkeypatch.setattr(parallel, "choose_processes", lambda *_: pytest.fail("measured again"))
    for total_timesteps, cores in ((128, 2), (256, 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        train_here(folder, small(total_timesteps=total_timesteps), is_resume=True)
        assert latest_checkpoint(folder.path).facts["config"]["env_processes"] == cores


@pytest.mark.parametrize(("cpus", "limit"), [(None, None), (1, 1), (3, 3)])
def test_the_cpus_of_a_run_limit_its_processes(
    cpus: int | None, limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int | None] = []

    def choose(_: Any, num_envs: int, cpus: int | None) -> int:
        limits.append(cpus)
        return 1

    monkeypatch.setattr(parallel, "choose_processes", choose)
    request = parse_request(small())
    resources = request.payload.resources.model_copy(update={"cpus": cpus})
    request = replace(request, payload=request.payload.model_copy(update={"resources": resources}))
    build_job(request)(RunFolder(tmp_path / "run"), False)
    assert limits == [limit]


def test_one_environment_is_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_measure_step_us", lambda _: pytest.fail("measured"))
    assert choose_processes(lambda: envs.make("CartPole-v1"), 1) == 1
