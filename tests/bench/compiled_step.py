"""Steps per second of trainings with and without the compiled step of classic control, on one thread: one table.

    python -m tests.bench.compiled_step [--pairs 7] [--steps 40000]

A pair is the same training by both, with the same seed, one after the other in one process; who goes first alternates,
and the first pair does not count. Only `train` is timed, by wall and by CPU time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from tests.helpers.algorithm_cases import train_run

from cleanrl_worker.environments import classic_control
from cleanrl_worker.environments import vector as vector_envs
from cleanrl_worker.registry import load_algorithm

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
WORKLOADS = (
    ("ppo", "CartPole-v1"),
    ("ppo", "MountainCar-v0"),
    ("ppo", "Acrobot-v1"),
    ("ppo_continuous_action", "Pendulum-v1"),
    ("dqn", "CartPole-v1"),
)


def measure(algo: str, env_id: str, steps: int, seed: int, is_compiled: bool) -> tuple[float, float]:
    """Return the steps per second by wall and by CPU time."""
    config = load_algorithm(algo).Config(env_id=env_id, total_timesteps=steps, seed=seed, checkpoint_every=10**9)
    find = classic_control.find_compiled_step if is_compiled else lambda envs: None
    with (
        mock.patch.object(vector_envs, "find_compiled_step", find),
        tempfile.TemporaryDirectory(prefix="mosaic-bench-") as folder,
    ):
        wall, cpu = time.perf_counter(), time.process_time()
        train_run(Path(folder), algo, config)
        return steps / (time.perf_counter() - wall), steps / (time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--only", type=int, default=len(WORKLOADS), help="the first N workloads")
    chosen = parser.parse_args()
    if not os.environ.items() >= ONE_THREAD.items():
        # The number of threads is read when numpy is imported.
        command = [sys.executable, "-m", "tests.bench.compiled_step", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **ONE_THREAD})
    if classic_control.load_library() is None:
        parser.exit(1, f"{classic_control.LIBRARY} does not exist: install a C compiler, then make stubs.\n")
    print(f"{'steps/s':38} {'Python':>9} {'C':>9}   ratio, median (range), and of CPU time")
    for algo, env_id in WORKLOADS[: chosen.only]:
        pairs = []
        for seed in range(chosen.pairs + 1):
            order = (True, False) if seed % 2 else (False, True)
            pairs.append({kind: measure(algo, env_id, chosen.steps, seed, kind) for kind in order})
        del pairs[0]
        wall, cpu = ([pair[True][kind] / pair[False][kind] for pair in pairs] for kind in (0, 1))
        speeds = [statistics.median(pair[kind][0] for pair in pairs) for kind in (False, True)]
        ranges = f"{statistics.median(wall):.2f} ({min(wall):.2f} to {max(wall):.2f}), {statistics.median(cpu):.2f}"
        print(f"{algo + ' ' + env_id:38} {speeds[0]:9,.0f} {speeds[1]:9,.0f}   {ranges}", flush=True)


if __name__ == "__main__":
    main()
