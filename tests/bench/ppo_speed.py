"""Steps per second of `mosaic train` against CleanRL's own script, on this machine, with equal settings.

    python tests/bench/ppo_speed.py --cleanrl CHECKOUT [--python ITS_INTERPRETER] [--learning]

Ours is the whole product: the command, the daemon, the keeper, TensorBoard on. Theirs is the bare script (started by
cleanrl_runner.py, which says what it puts right for Gymnasium 1.x). Both have one thread. A pair is one seed, run by
both one after the other, so that what else the machine does falls on both; who goes first alternates. Two figures
come of each run: `training` is the last `charts/SPS` of its event file, `whole` is its steps by the wall time of the
whole command, start-up included. A ratio is taken within a pair; its median is what counts.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Workload:
    algo: str
    env_id: str
    steps: int
    wanted_ratio: float


WORKLOADS = {
    "cartpole": Workload("ppo", "CartPole-v1", 100_000, 7.0),
    "halfcheetah": Workload("ppo_continuous_action", "HalfCheetah-v5", 50_000, 6.0),
}
LEARNING_STEPS = 100_000
LEARNING_SEEDS = 5


class Result(NamedTuple):
    training_sps: float
    whole_sps: float
    last_returns: float
    """Mean return of the last 100 episodes."""


class Point(NamedTuple):
    tag: str
    step: int
    value: float


def points(folder: Path) -> Iterator[Point]:
    """Every scalar under a TensorBoard folder, in the order in which it was written."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    for file in sorted(folder.rglob("events.out.tfevents.*")):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    yield Point(value.tag, event.step, float(make_ndarray(value.tensor).item()))


def measured(folder: Path, wall_s: float) -> Result:
    speeds, returns = [], []
    for point in points(folder):
        if point.tag == "charts/SPS":
            speeds.append(point)
        elif point.tag == "charts/episodic_return":
            returns.append(point.value)
    if not speeds:
        raise SystemExit(f"No charts/SPS under {folder}: the run did not get through its first update.")
    recent = statistics.fmean(returns[-100:]) if returns else float("nan")
    return Result(speeds[-1].value, speeds[-1].step / wall_s, recent)


def called(command: Sequence[str], folder: Path, **variables: str) -> tuple[str, float]:
    """What it printed, and how long it took. Ends the benchmark where it fails."""
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **ONE_THREAD, **variables}, capture_output=True, text=True
    )
    wall_s = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout, wall_s


class Theirs:
    def __init__(self, checkout: Path, python: str) -> None:
        self._scripts = checkout / "cleanrl"
        self._python = python

    def train(self, work: Workload, seed: int) -> Result:
        runner = Path(__file__).with_name("cleanrl_runner.py")
        script = self._scripts / f"{work.algo}.py"
        with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as folder:
            command = [self._python, str(runner), str(script), "--no-cuda", *flags(work, seed)]
            _, wall_s = called(command, Path(folder))
            return measured(Path(folder), wall_s)


class Ours:
    """A workspace of its own with its daemon up; closing it ends the daemon."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mosaic-bench-")
        self._mosaic = str(Path(sys.executable).with_name("mosaic"))
        self._call("daemon", "start")

    def _call(self, *arguments: str) -> tuple[str, float]:
        root = Path(self._folder.name)
        return called([self._mosaic, *arguments], root, MOSAIC_VAR=str(root / "var"))

    def train(self, work: Workload, seed: int) -> Result:
        said, wall_s = self._call("train", work.algo, *flags(work, seed), "--json")
        return measured(Path(json.loads(said)["run_dir"]) / "tensorboard", wall_s)

    def short_run_s(self) -> float:
        """Wall time of the shortest useful run: mostly start-up."""
        _, wall_s = self._call("train", "ppo", *flags(Workload("ppo", "CartPole-v1", 1000, 0), 1), "--json")
        return wall_s

    def close(self) -> None:
        self._call("daemon", "stop")
        self._folder.cleanup()


def flags(work: Workload, seed: int) -> list[str]:
    return ["--env-id", work.env_id, "--total-timesteps", str(work.steps), "--seed", str(seed)]


def spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def compare(work: Workload, theirs: Theirs | None, ours: Ours | None, seeds: int) -> None:
    print(f"\n{work.algo} on {work.env_id}, {work.steps:,} steps, seeds 1 to {seeds}", flush=True)
    sides = [(name, side) for name, side in (("CleanRL", theirs), ("MOSAIC", ours)) if side is not None]
    results: dict[str, list[Result]] = {name: [] for name, _ in sides}
    for seed in range(1, seeds + 1):
        for name, side in sides if seed % 2 else sides[::-1]:
            result = side.train(work, seed)
            results[name].append(result)
            print(
                f"  seed {seed}  {name:8} training {result.training_sps:9,.0f} steps/s   whole {result.whole_sps:9,.0f}"
                f" steps/s   return {result.last_returns:9.1f}",
                flush=True,
            )
    print("  median (lowest to highest):")
    for name, column in results.items():
        print(
            f"  {name:8} training {spread([r.training_sps for r in column], ',.0f')} steps/s, "
            f"whole {spread([r.whole_sps for r in column], ',.0f')} steps/s, "
            f"mean return of the last 100 episodes {spread([r.last_returns for r in column], '.1f')}"
        )
    if len(sides) == 2:
        pairs = list(zip(results["MOSAIC"], results["CleanRL"], strict=True))
        training = [mine.training_sps / other.training_sps for mine, other in pairs]
        whole = [mine.whole_sps / other.whole_sps for mine, other in pairs]
        verdict = "reached" if statistics.median(training) >= work.wanted_ratio else "NOT reached"
        print(f"  ratio    training {spread(training, '.2f')}, whole {spread(whole, '.2f')}")
        print(f"  wanted   {work.wanted_ratio:g}: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cleanrl", metavar="CHECKOUT", help="a checkout of CleanRL")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has what CleanRL needs")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="only this one (may be repeated)")
    parser.add_argument("--pairs", type=int, default=5, help="how many seeds")
    parser.add_argument("--steps", type=int, help="other than the workload's own number")
    parser.add_argument(
        "--learning", action="store_true", help=f"{LEARNING_STEPS:,} steps and {LEARNING_SEEDS} seeds on each workload"
    )
    parser.add_argument("--side", choices=("both", "mosaic", "cleanrl"), default="both")
    chosen = parser.parse_args()
    if chosen.side != "mosaic" and not (chosen.cleanrl and Path(chosen.cleanrl, "cleanrl", "ppo.py").is_file()):
        parser.error("--cleanrl: expected a checkout of CleanRL (https://github.com/vwxyzjn/cleanrl)")
    theirs = None if chosen.side == "mosaic" else Theirs(Path(chosen.cleanrl).absolute(), chosen.python)
    ours = None if chosen.side == "cleanrl" else Ours()
    seeds = LEARNING_SEEDS if chosen.learning else chosen.pairs
    try:
        for name in chosen.workload or WORKLOADS:
            known = WORKLOADS[name]
            steps = chosen.steps or (LEARNING_STEPS if chosen.learning else known.steps)
            compare(Workload(known.algo, known.env_id, steps, known.wanted_ratio), theirs, ours, seeds)
        if ours is not None:
            print(
                f"\nmosaic train ppo, 1,000 steps, daemon up: {spread([ours.short_run_s() for _ in range(5)], '.2f')} s"
            )
    finally:
        if ours is not None:
            ours.close()


if __name__ == "__main__":
    main()
