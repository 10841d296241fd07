"""What recording every episode costs a training: `python -m tests.bench.recording_cost [--pairs N] [--only dqn]`.

The same training with and without `record_episodes`, in one process by turns; who goes first alternates. Ratios of
steps per second: by the CPU time that the recorder's own functions take of the recorded training, by the least CPU time
of each side, and by CPU time and the clock within each pair. On a machine with other work the latter vary by a fifth
between equal trainings, the first hardly; it leaves out what recording does to caches.
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

from cleanrl_worker.environments.episode_log import EpisodeLog
from cleanrl_worker.shell.launcher import build_job
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.contracts.folder import RunFolder
from mosaic.worker import recorders
from mosaic.worker.recorders import RunRecorder

PAIRS = 8
AIM = 0.98
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
assert recorders, "imported before the first recorded training, which would otherwise pay for it"


@dataclass(frozen=True)
class Workload:
    algo: str
    env_id: str
    steps: int


WORKLOADS = (
    Workload("ppo", "CartPole-v1", 300_000),
    Workload("dqn", "CartPole-v1", 60_000),
    Workload("ppo_continuous_action", "HalfCheetah-v5", 16_384),
)


class RecorderClock:
    """Adds up the CPU time of the functions that do nothing but record; what one calls is counted once."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self._is_inside = False
        for owner, name in (
            (EpisodeLog, "add_rollout"),
            (EpisodeLog, "mark_end"),
            (RunRecorder, "flush"),
            (RunRecorder, "close"),
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


class Pair(NamedTuple):
    plain: Cost
    recorded: Cost

    @property
    def own_ratio(self) -> float:
        """By the time of the recorder's own functions."""
        # Without recording, these functions return at once: what they take then is that of this clock.
        return 1 - self.recorded.recorder_s / self.recorded.cpu_s + self.plain.recorder_s / self.plain.cpu_s

    @property
    def cpu_ratio(self) -> float:
        return self.plain.cpu_s / self.recorded.cpu_s

    @property
    def clock_ratio(self) -> float:
        return self.plain.clock_s / self.recorded.clock_s


def train(workload: Workload, is_recorded: bool, recorder_clock: RecorderClock) -> Cost:
    config: dict[str, Any] = {
        "algo": workload.algo,
        "env_id": workload.env_id,
        "total_timesteps": workload.steps,
        "seed": 1,
        "extras": {"record_episodes": is_recorded, "video_mode": "off"},
    }
    with tempfile.TemporaryDirectory() as place, open(os.devnull, "w", encoding="utf-8") as nowhere:
        job, folder = build_job(parse_request(config)), RunFolder(Path(place) / "run")
        with contextlib.redirect_stdout(nowhere):
            recorder_clock.spent_s = 0.0
            cpu, clock = time.process_time(), time.perf_counter()
            job(folder, False)
            cpu, clock = time.process_time() - cpu, time.perf_counter() - clock
        return Cost(cpu, recorder_clock.spent_s, clock, folder.recording.stat().st_size if is_recorded else 0)


def compare(workload: Workload, count: int, recorder_clock: RecorderClock) -> list[Pair]:
    for is_recorded in (True, False):
        train(workload, is_recorded, recorder_clock)
    pairs = []
    for number in range(count):
        order = (True, False) if number % 2 else (False, True)
        costs = {is_recorded: train(workload, is_recorded, recorder_clock) for is_recorded in order}
        pair = Pair(costs[False], costs[True])
        pairs.append(pair)
        speeds = [f"{workload.steps / cost.clock_s:,.0f}" for cost in pair]
        parts = (
            f"{pair.own_ratio:.4f} by the recorder, {pair.cpu_ratio:.3f} by CPU, {pair.clock_ratio:.3f} by the clock"
        )
        print(f"  {speeds[0]} steps/s without, {speeds[1]} with; {parts}", flush=True)
    return pairs


def format_row(workload: Workload, pairs: Sequence[Pair]) -> str:
    own_ratios = [pair.own_ratio for pair in pairs]
    least_cpu_s = [min(pair[side].cpu_s for pair in pairs) for side in (0, 1)]
    cells = [
        f"{workload.algo} {workload.env_id}",
        _format_spread(own_ratios, 4),
        f"{least_cpu_s[0] / least_cpu_s[1]:.3f}",
        _format_spread([pair.cpu_ratio for pair in pairs]),
        _format_spread([pair.clock_ratio for pair in pairs]),
        f"{pairs[0].recorded.recorded_bytes / workload.steps:.2f}",
        "yes" if statistics.median(own_ratios) >= AIM else "NO",
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
    titles = ("training", "by the recorder", "by least CPU", "by CPU", "by the clock", "bytes per step", f"{AIM:.0%}")
    print(f"\n| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
