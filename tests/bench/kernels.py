"""Steps per second of the numpy kernels against our own torch learners, on a CPU with one thread: one table.

    python -m tests.bench.kernels [--pairs 9] [--hidden-sizes 64,64] [ALGORITHM …]

A pair is the same short training by both, with the same seed, one after the other in one process; who goes first
alternates, and the first pair does not count. Only `train` is timed. The ratio of CPU times is given too, because it
depends less on what else the machine does. A kernel that gains less than 1.2 does not earn its lines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers.algorithm_cases import train_run

from cleanrl_worker.registry import load_algorithm

BACKENDS = ("numpy", "torch")


class Workload(NamedTuple):
    env_id: str
    steps: int
    learning_starts: int | None = None


WORKLOADS = {
    "ppo": Workload("CartPole-v1", 8192),
    "ppo_continuous_action": Workload("HalfCheetah-v5", 4096),
    "pqn": Workload("CartPole-v1", 8192),
    "dqn": Workload("CartPole-v1", 6000, 500),
    "c51": Workload("CartPole-v1", 4000, 500),
    "ddpg_continuous_action": Workload("HalfCheetah-v5", 400, 50),
    "td3_continuous_action": Workload("HalfCheetah-v5", 400, 50),
    "sac_continuous_action": Workload("HalfCheetah-v5", 300, 50),
}


class Speed(NamedTuple):
    """Steps per second."""

    wall: float
    cpu: float


def measure(algo: str, backend: str, seed: int, hidden_sizes: list[int] | None) -> Speed:
    workload = WORKLOADS[algo]
    settings: dict[str, Any] = {"env_id": workload.env_id, "total_timesteps": workload.steps, "seed": seed}
    if hidden_sizes:
        settings["hidden_sizes"] = hidden_sizes
    if workload.learning_starts is not None:
        settings["learning_starts"] = workload.learning_starts
    config = load_algorithm(algo).Config(**settings, backend=backend, cuda=False, checkpoint_every=10**9)
    with tempfile.TemporaryDirectory(prefix="mosaic-kernels-") as folder:
        wall, cpu = time.perf_counter(), time.process_time()
        train_run(Path(folder), algo, config)
        return Speed(workload.steps / (time.perf_counter() - wall), workload.steps / (time.process_time() - cpu))


def measure_pairs(algo: str, pairs: int, hidden_sizes: list[int] | None) -> list[dict[str, Speed]]:
    results = []
    for seed in range(pairs + 1):
        order = BACKENDS if seed % 2 else BACKENDS[::-1]
        results.append({backend: measure(algo, backend, seed, hidden_sizes) for backend in order})
    return results[1:]


def format_row(algo: str, pairs: list[dict[str, list[float]]]) -> str:
    cells = []
    for kind in range(len(Speed._fields)):
        ratios = sorted(pair["numpy"][kind] / pair["torch"][kind] for pair in pairs)
        cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    speeds = [statistics.median(pair[backend][0] for pair in pairs) for backend in BACKENDS]
    return f"{algo:24} {speeds[0]:9,.0f} {speeds[1]:9,.0f}   {cells[0]:24} {cells[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", metavar="ALGORITHM", default=[*WORKLOADS])
    parser.add_argument("--pairs", type=int, default=9, help="trainings of each side")
    parser.add_argument("--hidden-sizes", default="", help="of every network, such as 64,64; as usual if not given")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.here:
        hidden_sizes = [int(size) for size in chosen.hidden_sizes.split(",") if size]
        print(json.dumps(measure_pairs(chosen.algorithms[0], chosen.pairs, hidden_sizes)))
        return
    print(f"{'steps/s':24} {'numpy':>9} {'torch':>9}   {'ratio, median (range)':24} of CPU time")
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for algo in chosen.algorithms:
        # In a process of its own: the number of threads is read when numpy is imported.
        command = [sys.executable, "-m", "tests.bench.kernels", algo, "--here", "--pairs", str(chosen.pairs)]
        command += ["--hidden-sizes", chosen.hidden_sizes]
        done = subprocess.run(command, env=one_thread, stdout=subprocess.PIPE, text=True, check=True)
        print(format_row(algo, json.loads(done.stdout.splitlines()[-1])), flush=True)


if __name__ == "__main__":
    main()
