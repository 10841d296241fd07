"""Steps per second by number of processes: `python -m tests.bench.parallel_envs [--env-id ID] [--num-envs N]`.

Random actions, no learning. The numbers of processes take turns, so that a change of the machine's load affects all of
them; best and median of the rounds. Load and idle cores matter: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from typing import Any

import numpy as np

from cleanrl_worker.environments.parallel import ParallelEnvs, choose_processes
from mosaic import envs

WARM_UP_STEPS = 50


def measure_rate(environments: ParallelEnvs, actions: Any, into: Any) -> float:
    """Return steps per second, summed over the environments."""
    started = time.perf_counter()
    for row in actions:
        environments.step(row, into)
    elapsed_s = time.perf_counter() - started
    environments.finish_rollout(actions)
    return len(actions) * len(environments) / elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="HalfCheetah-v5")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=300, help="steps of all environments per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="*", help="default: powers of two up to the number of cores")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    counts = options.processes or sorted({*(2**power for power in range(8) if 2**power <= cores), cores})
    counts = [count for count in counts if count <= options.num_envs]
    make_env = functools.partial(envs.make, options.env_id)
    print(f"{options.env_id}, {options.num_envs} environments, {cores} cores, load {os.getloadavg()[0]:.2f}")
    print(f"chosen by measurement: {choose_processes(make_env, options.num_envs)}")
    subjects = {count: ParallelEnvs(make_env, options.num_envs, 1, processes=count) for count in counts}
    try:
        space = subjects[counts[0]].action_space
        space.seed(1)
        shape = options.steps + WARM_UP_STEPS, options.num_envs
        actions = np.array([[space.sample() for _ in range(shape[1])] for _ in range(shape[0])])
        into = np.zeros((options.num_envs, subjects[counts[0]].observation_size))
        rates: dict[int, list[float]] = {count: [] for count in counts}
        for environments in subjects.values():
            environments.start()
            measure_rate(environments, actions[:WARM_UP_STEPS], into)
        for _ in range(options.rounds):
            for count, environments in subjects.items():
                rates[count].append(measure_rate(environments, actions[WARM_UP_STEPS:], into))
    finally:
        for environments in subjects.values():
            environments.close()
    base = max(rates[counts[0]])
    print(f"{'processes':>9} {'best':>10} {'median':>10} {'x':>6}")
    for count, measured in rates.items():
        print(f"{count:9} {max(measured):10,.0f} {statistics.median(measured):10,.0f} {max(measured) / base:6.2f}")


if __name__ == "__main__":
    main()
