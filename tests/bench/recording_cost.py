"""What recording every episode costs a training: `python -m tests.bench.recording_cost [--pairs N] [--only dqn]`.

The same training with and without `record_episodes`, in one process by turns; who goes first alternates. A pair is one
seed. Each pair gives the ratio of their steps per second: by the CPU time that the recorder's own functions take of the
recorded training, by the CPU time of both, and by the clock. The median of the first counts: on a machine with other
work the other two vary by a fifth between equal trainings.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cleanrl_worker.launcher import build_job
from cleanrl_worker.vector_envs import VectorEnvs
from cleanrl_worker.worker_config import parse_request
from mosaic.arena import training_artifacts
from mosaic.arena.training_recorder import BufferedRecorder
from mosaic.contracts.folder import RunFolder

PAIRS = 8
AIM = 0.98
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
assert training_artifacts, "imported before the first recorded training, which would otherwise pay for it"


@dataclass(frozen=True)
class Workload:
    algo: str
    env_id: str
    steps: int


WORKLOADS = (
    Workload("ppo", "CartPole-v1", 60_000),
    Workload("dqn", "CartPole-v1", 16_000),
    Workload("ppo_continuous_action", "HalfCheetah-v5", 4_096),
)


class RecorderClock:
    """Adds up the CPU time of the functions that do nothing but record; what one calls is counted once."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._is_inside = False
        for owner, name in (
            (VectorEnvs, "_record_episodes"),
            (VectorEnvs, "_mark_episode_end"),
            (BufferedRecorder, "flush"),
            (BufferedRecorder, "close"),
        ):
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            if self._is_inside:
                return function(*args)
            self._is_inside, begin = True, time.thread_time()
            try:
                return function(*args)
            finally:
                self._is_inside = False
                self.spent_s += time.thread_time() - begin

        return call


class Cost(NamedTuple):
    cpu_s: float
    recorder_s: float
    clock_s: float
    recorded_bytes: int


class PairRatio(NamedTuple):
    """Steps per second with recording, as a part of those without."""

    own: float
    """By the time of the recorder's own functions."""
    cpu: float
    clock: float
    bytes_per_step: float


def train(workload: Workload, seed: int, is_recorded: bool, recorder_clock: RecorderClock) -> Cost:
    config: dict[str, Any] = {
        "algo": workload.algo,
        "env_id": workload.env_id,
        "total_timesteps": workload.steps,
        "seed": seed,
        "extras": {"record_episodes": is_recorded, "video_mode": "off"},
    }
    with tempfile.TemporaryDirectory() as place, open(os.devnull, "w") as nowhere:
        job, folder = build_job(parse_request(config)), RunFolder(Path(place) / "run")
        with contextlib.redirect_stdout(nowhere):
            recorder_clock.spent_s = 0.0
            cpu, clock = time.process_time(), time.perf_counter()
            job(folder, False)
            cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
        return Cost(cpu, recorder_clock.spent_s, clock, folder.recording.stat().st_size if is_recorded else 0)


def compare(workload: Workload, pairs: int, recorder_clock: RecorderClock) -> list[PairRatio]:
    for is_recorded in (True, False):
        train(workload, 1, is_recorded, recorder_clock)
    ratios = []
    for seed in range(1, pairs + 1):
        order = (True, False) if seed % 2 else (False, True)
        costs = {is_recorded: train(workload, seed, is_recorded, recorder_clock) for is_recorded in order}
        plain, recorded = costs[False], costs[True]
        ratios.append(
            PairRatio(
                # Without recording, these functions return at once: what they take then is that of this clock.
                1 - recorded.recorder_s / recorded.cpu_s + plain.recorder_s / plain.cpu_s,
                plain.cpu_s / recorded.cpu_s,
                plain.clock_s / recorded.clock_s,
                recorded.recorded_bytes / workload.steps,
            )
        )
        speeds = [f"{workload.steps / cost.clock_s:,.0f}" for cost in (plain, recorded)]
        last = ratios[-1]
        parts = f"{last.own:.4f} by the recorder, {last.cpu:.3f} by CPU, {last.clock:.3f} by the clock"
        print(f"  seed {seed}: {speeds[0]} steps/s without, {speeds[1]} with; {parts}", flush=True)
    return ratios


def format_row(workload: Workload, ratios: Sequence[PairRatio]) -> str:
    cells = [
        f"{workload.algo} {workload.env_id}",
        _format_spread([ratio.own for ratio in ratios], 4),
        _format_spread([ratio.cpu for ratio in ratios]),
        _format_spread([ratio.clock for ratio in ratios]),
        f"{statistics.median(ratio.bytes_per_step for ratio in ratios):.2f}",
        "yes" if statistics.median(ratio.own for ratio in ratios) >= AIM else "NO",
    ]
    return f"| {' | '.join(cells)} |"


def _format_spread(values: Sequence[float], digits: int = 3) -> str:
    """The median, and the extremes."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N")
    parser.add_argument("--only", default="", metavar="ALGO")
    args = parser.parse_args()
    if any(os.environ.get(name) != "1" for name in THREAD_VARIABLES):
        # They are read when the libraries are imported; a run of the daemon has them.
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
        os.execve(sys.executable, [sys.executable, "-m", "tests.bench.recording_cost", *sys.argv[1:]], environment)
    rows, recorder_clock = [], RecorderClock()
    for workload in WORKLOADS:
        if args.only in ("", workload.algo):
            print(f"{workload.algo} {workload.env_id}, {workload.steps:,} steps", flush=True)
            rows.append(format_row(workload, compare(workload, args.pairs, recorder_clock)))
    titles = (
        "training",
        "ratio by the recorder's time",
        "by CPU",
        "by the clock",
        "bytes per step",
        f"{AIM:.0%} reached",
    )
    print(f"\n| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
