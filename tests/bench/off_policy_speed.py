"""Steps per CPU second of our algorithms against CleanRL's own scripts, while both take turns.

    python tests/bench/off_policy_speed.py --cleanrl CHECKOUT [--python ITS_INTERPRETER] [--algo NAME] [--pairs N]

Both sides have equal settings and one thread, and run by turns of a second, so that what else the machine does falls on
both; what counts is the processor time between two reports behind `--learning-starts`, without start-up. For the whole
product by the wall clock on a quiet machine there is ppo_speed.py.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Workload:
    env_id: str
    steps: int
    wanted_ratio: float
    learning_starts: int | None = 2000
    """None where it learns from the beginning."""
    buffer_size: int | None = None
    """Other than the default, which may not fit into memory on CleanRL's side."""


WORKLOADS = {
    "dqn": Workload("CartPole-v1", 20_000, 4.0),
    "c51": Workload("CartPole-v1", 10_000, 3.0),
    "pqn": Workload("CartPole-v1", 51_200, 3.0, learning_starts=None),
    "sac_continuous_action": Workload("HalfCheetah-v5", 4_000, 1.4),
    "td3_continuous_action": Workload("HalfCheetah-v5", 4_000, 1.4),
    "ddpg_continuous_action": Workload("HalfCheetah-v5", 4_000, 1.4),
    "ppo_atari": Workload("BreakoutNoFrameskip-v4", 5_120, 1.4, learning_starts=None),
    "ppo_atari_lstm": Workload("BreakoutNoFrameskip-v4", 5_120, 1.4, learning_starts=None),
    "dqn_atari": Workload("BreakoutNoFrameskip-v4", 4_000, 1.4, buffer_size=10_000),
}
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
Mark = tuple[int, float, float]
"""A step that was reported, the processor time of the process by then, and its newest return."""


# --- in the processes that are measured


class Marks:
    def __init__(self, path: str) -> None:
        self._file = open(path, "w")  # noqa: SIM115
        self.newest_return = float("nan")

    def add(self, step: int) -> None:
        print(step, time.process_time(), self.newest_return, file=self._file, flush=True)


def run_theirs(marks: Marks, arguments: list[str]) -> None:
    """CleanRL's script by cleanrl_runner.py, with an ear on what it writes to TensorBoard."""
    import runpy

    from torch.utils import tensorboard

    class Writer(tensorboard.SummaryWriter):
        def add_scalar(self, tag: str, scalar_value: Any, global_step: Any = None, *more: Any) -> None:
            super().add_scalar(tag, scalar_value, global_step, *more)
            if tag == "charts/episodic_return":
                marks.newest_return = float(sum(scalar_value))  # an array of one number
            elif tag == "charts/SPS":
                marks.add(int(global_step))

    tensorboard.SummaryWriter = Writer  # type: ignore[misc]
    sys.argv = [str(HERE / "cleanrl_runner.py"), *arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")


def run_ours(marks: Marks, arguments: list[str]) -> None:
    """Our training with a real run, TensorBoard on."""
    from cleanrl_worker.registry import algorithm
    from mosaic.contracts.folder import RunFolder
    from mosaic.run import Run

    class Listening(Run):
        def episode(self, *, episodic_return: Any, **more: Any) -> None:
            super().episode(episodic_return=episodic_return, **more)
            marks.newest_return = float(episodic_return)

        def scalars(self, step: int, values: Any) -> None:
            super().scalars(step, values)
            marks.add(step)

    name, folder, *settings = arguments
    module = algorithm(name)
    config = module.Config(**dict(zip(settings[::2], settings[1::2], strict=True)))
    with Listening.open(
        RunFolder(Path(folder)), worker="cleanrl", version="0", tensorboard=Path(folder) / "tensorboard"
    ) as run:
        run.hello()
        module.train(config, run)


# --- in the process that measures


def measured(path: Path, after: int) -> tuple[float, float]:
    """Steps per CPU second behind a step, and the mean of the last three returns."""
    marks: list[Mark] = []
    for line in path.read_text().splitlines():
        step, cpu_s, newest = line.split()
        marks.append((int(step), float(cpu_s), float(newest)))
    learning = [mark for mark in marks if mark[0] > after + 100]
    (first_step, first_s, _), (last_step, last_s, _) = learning[0], learning[-1]
    returns = list(dict.fromkeys(mark[2] for mark in marks))
    return (last_step - first_step) / (last_s - first_s), statistics.fmean(returns[-3:])


def pair(
    chosen: argparse.Namespace, algo: str, work: Workload, seed: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """One run of each side, by turns: ours, then theirs."""
    from turns import take_turns  # type: ignore[import-not-found]

    settings = {"env_id": work.env_id, "total_timesteps": str(work.steps), "seed": str(seed)}
    if work.learning_starts is not None:
        settings["learning_starts"] = str(work.learning_starts)
    if work.buffer_size is not None:
        settings["buffer_size"] = str(work.buffer_size)
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]
    checkout = Path(chosen.cleanrl).absolute()
    script = str(checkout / "cleanrl" / f"{algo}.py")
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as place:
        folder = Path(place)
        plain = [part for item in settings.items() for part in item]
        sides = [
            _started(sys.executable, ROOT / "src", folder / "ours", ["ours", algo, str(folder / "run"), *plain]),
            _started(chosen.python, checkout, folder / "theirs", ["theirs", script, "--no-cuda", *flags]),
        ]
        # Once one has ended, the other goes on alone.
        turning = threading.Thread(target=take_turns, args=[side.pid for side in sides])
        turning.start()
        failed = [name for name, side in zip(("ours", "theirs"), sides, strict=True) if side.wait()]
        turning.join()
        if failed:
            raise SystemExit(f"The run of {algo} failed: {failed[0]}.")
        ours, theirs = (measured(folder / name / "marks", work.learning_starts or 0) for name in ("ours", "theirs"))
        return ours, theirs


def _started(python: str, package: Path, folder: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    folder.mkdir()
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return subprocess.Popen(
        [python, __file__, "--child", str(folder / "marks"), *arguments],
        cwd=folder,
        env={**os.environ, **one_thread, "PYTHONPATH": str(package)},
        stdout=subprocess.DEVNULL,
    )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        marks, side, *arguments = sys.argv[2:]
        {"ours": run_ours, "theirs": run_theirs}[side](Marks(marks), arguments)
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cleanrl", metavar="CHECKOUT", required=True, help="a checkout of CleanRL")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has what CleanRL needs")
    parser.add_argument("--algo", choices=WORKLOADS, action="append", help="only this one (may be repeated)")
    parser.add_argument("--env-id", help="other than the workload's own")
    parser.add_argument("--pairs", type=int, default=3, help="how many seeds")
    parser.add_argument("--steps", type=int, help="other than the workload's own number")
    chosen = parser.parse_args()
    print("Steps per CPU second while learning")
    for algo in chosen.algo or WORKLOADS:
        known = WORKLOADS[algo]
        work = replace(known, env_id=chosen.env_id or known.env_id, steps=chosen.steps or known.steps)
        print(f"{algo} on {work.env_id}, {work.steps:,} steps")
        ratios = []
        for seed in range(1, chosen.pairs + 1):
            (ours, our_return), (theirs, their_return) = pair(chosen, algo, work, seed)
            ratios.append(ours / theirs)
            print(
                f"  {algo:24} seed {seed}  MOSAIC {ours:7.1f}  CleanRL {theirs:7.1f}  ratio {ours / theirs:5.2f}"
                f"  returns {our_return:9.1f} and {their_return:9.1f}",
                flush=True,
            )
        found = statistics.median(ratios)
        verdict = "reached" if found >= work.wanted_ratio else "NOT reached"
        print(f"  {algo:24} median ratio {found:.2f}; wanted {work.wanted_ratio:g}: {verdict}")


if __name__ == "__main__":
    main()
