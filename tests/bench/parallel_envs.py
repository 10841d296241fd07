"""Steps per second of many environments, by number of processes: `python -m tests.bench.parallel_envs [--env-id ID]`.

Random actions, no learning. MOSAIC with 1, 2, 4, … processes, Stable-Baselines3's SubprocVecEnv (a process per
environment) and envpool (a thread per core) take turns, so that a change of the load affects all of them. Best
and median of the rounds; × is the best against one process. Run it on a quiet machine. A package that is not installed
is skipped.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from cleanrl_worker.environments.atari import AtariEnvs
from cleanrl_worker.environments.parallel import ParallelEnvs
from mosaic.worker import envs

NUM_ENVS = {"HalfCheetah-v5": 16, "BreakoutNoFrameskip-v4": 64}
STEPS = {"HalfCheetah-v5": 500, "BreakoutNoFrameskip-v4": 40}
"""Steps of all environments per round."""
WARM_UP_STEPS = 20

Round = Callable[[Any], None]
"""Steps all environments with each row of actions."""
Subject = tuple[Round, Callable[[], None]]
"""A round, and how to close the environments."""


def is_game(env_id: str) -> bool:
    return "NoFrameskip" in env_id


def open_ours(env_id: str, num_envs: int, processes: int) -> Subject:
    environments: Any
    if is_game(env_id):
        environments = AtariEnvs(env_id, num_envs, 1, processes=processes)
        into = np.zeros((num_envs, *environments.shape), np.uint8)
    else:
        environments = ParallelEnvs(functools.partial(envs.make, env_id), num_envs, 1, processes=processes)
        into = np.zeros((num_envs, environments.observation_size), np.float32)
    environments.start()

    def run_round(actions: Any) -> None:
        for row in actions:
            environments.step(row, into)
        environments.finish_rollout(actions)

    return run_round, environments.close


def make_sb3_env(env_id: str) -> Any:
    if not is_game(env_id):
        return gymnasium.make(env_id)
    import ale_py
    from stable_baselines3.common.atari_wrappers import AtariWrapper

    gymnasium.register_envs(ale_py)
    return AtariWrapper(gymnasium.make(env_id))


def open_sb3(env_id: str, num_envs: int) -> Subject:
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

    environments: Any = SubprocVecEnv([functools.partial(make_sb3_env, env_id)] * num_envs, start_method="fork")
    if is_game(env_id):
        environments = VecFrameStack(environments, 4)
    environments.reset()

    def run_round(actions: Any) -> None:
        for row in actions:
            environments.step(row)

    return run_round, environments.close


def open_envpool(env_id: str, num_envs: int, threads: int) -> Subject:
    import envpool

    settings: dict[str, Any] = {}
    if is_game(env_id):
        env_id = env_id.replace("NoFrameskip-v4", "-v5")
        settings = {"episodic_life": True, "reward_clip": True, "repeat_action_probability": 0.0}
    environments = envpool.make(
        env_id, env_type="gymnasium", num_envs=num_envs, num_threads=min(threads, num_envs), seed=1, **settings
    )
    environments.reset()

    def run_round(actions: Any) -> None:
        for row in actions:
            environments.step(row)

    return run_round, environments.close


def sample_actions(env_id: str, steps: int, num_envs: int) -> Any:
    space = envs.make(env_id).action_space
    space.seed(1)
    return np.array([[space.sample() for _ in range(num_envs)] for _ in range(steps)])


def measure(env_id: str, num_envs: int, counts: list[int], rounds: int) -> None:
    cores = len(os.sched_getaffinity(0))
    actions = sample_actions(env_id, STEPS.get(env_id, 200), num_envs)
    openers: dict[str, Callable[[], Subject]] = {
        f"MOSAIC, {count} process{'es' if count > 1 else ''}": functools.partial(open_ours, env_id, num_envs, count)
        for count in counts
        if count <= num_envs
    }
    openers[f"Stable-Baselines3, {num_envs} processes"] = functools.partial(open_sb3, env_id, num_envs)
    openers[f"envpool, {min(cores, num_envs)} threads"] = functools.partial(open_envpool, env_id, num_envs, cores)
    print(f"\n{env_id}, {num_envs} environments, {cores} cores, load {os.getloadavg()[0]:.2f}")
    subjects: dict[str, Subject] = {}
    rates: dict[str, list[float]] = {}
    try:
        for name, opener in openers.items():
            try:
                subjects[name] = opener()
            except ImportError as error:
                print(f"{name}: skipped, because {error.name} is not installed")
        for run_round, _ in subjects.values():
            run_round(actions[:WARM_UP_STEPS])
        for _ in range(rounds):
            for name, (run_round, _) in subjects.items():
                started = time.perf_counter()
                run_round(actions)
                rates.setdefault(name, []).append(actions.shape[0] * num_envs / (time.perf_counter() - started))
    finally:
        for _, close in subjects.values():
            close()
    base = max(next(iter(rates.values())))
    print("| | best, steps/s | median | × |\n|---|---|---|---|")
    for name, measured in rates.items():
        print(f"| {name} | {max(measured):,.0f} | {statistics.median(measured):,.0f} | {max(measured) / base:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", nargs="*", default=list(NUM_ENVS))
    parser.add_argument("--num-envs", type=int, help="default: 16, for Atari games 64")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processes", type=int, nargs="*", help="default: powers of two up to the number of cores")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    counts = options.processes or sorted({*(2**power for power in range(8) if 2**power <= cores), cores})
    for env_id in options.env_id:
        measure(env_id, options.num_envs or NUM_ENVS.get(env_id, 16), counts, options.rounds)


if __name__ == "__main__":
    main()
