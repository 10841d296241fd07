"""Steps per second of the numpy kernels against our own torch learners, on a CPU with one thread: one table.

    python -m tests.bench.kernels [--pairs 5] [ALGORITHM …]

Both sides are the same training with the same seed, one after the other in a process of its own; who goes first
alternates. Times are those of `train` alone, without imports. The ratio of CPU times is given too, because it depends
less on what else the machine does. A kernel that gains less than 1.2 does not earn its lines.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.algorithm_cases import train_run

from cleanrl_worker.registry import load_algorithm

BACKENDS = ("numpy", "torch")


@dataclass(frozen=True)
class Workload:
    env_id: str
    steps: int
    learning_starts: int | None = None


WORKLOADS = {
    "ppo": Workload("CartPole-v1", 40_960),
    "ppo_continuous_action": Workload("HalfCheetah-v5", 16_384),
    "pqn": Workload("CartPole-v1", 40_960),
    "dqn": Workload("CartPole-v1", 25_000, 2000),
    "c51": Workload("CartPole-v1", 15_000, 2000),
    "ddpg_continuous_action": Workload("HalfCheetah-v5", 1500, 300),
    "td3_continuous_action": Workload("HalfCheetah-v5", 1200, 300),
    "sac_continuous_action": Workload("HalfCheetah-v5", 1000, 300),
}


def measure_here(algo: str, backend: str, seed: int) -> tuple[float, float]:
    """Train in this process; return steps per second of wall time and of CPU time."""
    import torch

    weight = torch.ones(1).requires_grad_()
    torch.autograd.grad(weight.sum(), weight)  # the first call loads much
    workload = WORKLOADS[algo]
    settings: dict[str, Any] = {"env_id": workload.env_id, "total_timesteps": workload.steps, "seed": seed}
    if workload.learning_starts is not None:
        settings["learning_starts"] = workload.learning_starts
    config = load_algorithm(algo).Config(**settings, backend=backend, cuda=False, checkpoint_every=10**9)
    with tempfile.TemporaryDirectory(prefix="mosaic-kernels-") as folder:
        wall, cpu = time.perf_counter(), time.process_time()
        train_run(Path(folder), algo, config)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return workload.steps / wall, workload.steps / cpu


def measure(algo: str, backend: str, seed: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "tests.bench.kernels", algo, "--one", backend, "--seed", str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    wall, cpu = json.loads(done.stdout.splitlines()[-1])
    return wall, cpu


def format_row(algo: str, pairs: list[dict[str, tuple[float, float]]]) -> str:
    ratios = [[pair["numpy"][kind] / pair["torch"][kind] for pair in pairs] for kind in (0, 1)]
    speeds = [statistics.median(pair[backend][0] for pair in pairs) for backend in BACKENDS]
    cells = [f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})" for found in ratios]
    return f"{algo:24} {speeds[0]:9,.0f} {speeds[1]:9,.0f}   {cells[0]:24} {cells[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", metavar="ALGORITHM", default=[*WORKLOADS])
    parser.add_argument("--pairs", type=int, default=5, help="trainings of each side")
    parser.add_argument("--one", choices=BACKENDS, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one is not None:
        print(json.dumps(measure_here(chosen.algorithms[0], chosen.one, chosen.seed)))
        return
    print(f"{'':24} {'numpy':>9} {'torch':>9}   {'ratio, median (range)':24} of CPU time")
    for algo in chosen.algorithms:
        pairs: list[dict[str, tuple[float, float]]] = []
        for seed in range(1, chosen.pairs + 1):
            order = BACKENDS if seed % 2 else BACKENDS[::-1]
            pairs.append({backend: measure(algo, backend, seed) for backend in order})
        print(format_row(algo, pairs), flush=True)


if __name__ == "__main__":
    main()
