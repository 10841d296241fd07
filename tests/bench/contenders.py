"""The sides of a comparison: one training by `mosaic train`, by CleanRL's own script, by Stable-Baselines3.

Ours is the whole product: the command, the daemon, the keeper, TensorBoard on. The others are bare scripts, started by
cleanrl_runner.py and sb3_runner.py, each with the interpreter that has their packages. All write TensorBoard files,
and what is said of a training is read from these, in the same way for every side.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

HERE = Path(__file__).resolve().parent
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
LAST_EPISODES = 100
WINDOWS = 20
MAX_OUTPUT_CHARS = 2000


@dataclass(frozen=True)
class Training:
    """One training that every side can do."""

    algo: str
    env_id: str
    steps: int
    seed: int = 1
    settings: dict[str, str] = field(default_factory=dict)
    """Other than the defaults, by the names of the settings."""

    @property
    def flags(self) -> list[str]:
        known = {"env_id": self.env_id, "total_timesteps": str(self.steps), "seed": str(self.seed), **self.settings}
        return [part for name, value in known.items() for part in (f"--{name.replace('_', '-')}", value)]

    @property
    def command(self) -> str:
        return " ".join(["mosaic", "train", self.algo, *self.flags])

    @property
    def learning_starts(self) -> int:
        return int(self.settings.get("learning_starts", 0))


class Result(NamedTuple):
    training_sps: float
    """Steps per second from the first report of learning to the last."""
    overall_sps: float
    """Steps by the wall time of the whole command, start-up included."""
    mean_return: float
    """Mean return of the last 100 episodes."""
    curve: list[float | None]
    """Mean return of the episodes that ended in each of 20 equal windows of the training's steps; None without one."""
    episodes: int
    wall_s: float


class TrainingFailed(Exception):
    """A side's command ended badly, or without a report."""


class Contender(Protocol):
    @property
    def name(self) -> str: ...

    def train(self, training: Training) -> Result: ...


class ScalarPoint(NamedTuple):
    tag: str
    step: int
    value: float
    wall_time: float


def read_scalars(folder: Path) -> Iterator[ScalarPoint]:
    """Every scalar under a TensorBoard folder, in the order in which it was written."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    for file in sorted(folder.rglob("events.out.tfevents.*")):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    yield ScalarPoint(value.tag, event.step, float(make_ndarray(value.tensor).item()), event.wall_time)


def read_result(folder: Path, training: Training, wall_s: float) -> Result:
    reports, returns = [], []
    for point in read_scalars(folder):
        if point.tag == "charts/SPS" and point.step > training.learning_starts:
            reports.append(point)
        elif point.tag == "charts/episodic_return":
            returns.append(point)
    if len(reports) < 2:
        raise TrainingFailed(f"{training.command}: {len(reports)} charts/SPS under {folder}; expected at least two.")
    first, last = reports[0], reports[-1]
    recent = [point.value for point in returns[-LAST_EPISODES:]]
    return Result(
        training_sps=(last.step - first.step) / (last.wall_time - first.wall_time),
        overall_sps=last.step / wall_s,
        mean_return=statistics.fmean(recent) if recent else float("nan"),
        curve=window_means(returns, training.steps),
        episodes=len(returns),
        wall_s=wall_s,
    )


def window_means(returns: Sequence[ScalarPoint], steps: int) -> list[float | None]:
    windows: list[list[float]] = [[] for _ in range(WINDOWS)]
    for point in returns:
        windows[min(point.step * WINDOWS // steps, WINDOWS - 1)].append(point.value)
    return [round(statistics.fmean(window), 2) if window else None for window in windows]


def run_command(command: Sequence[str], folder: Path, threads: int | None, **variables: str) -> tuple[str, float]:
    """What it printed, and how long it took."""
    environment = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    if threads is not None:
        environment |= dict.fromkeys(THREAD_VARIABLES, str(threads))
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env={**environment, **variables}, capture_output=True, text=True)
    wall_s = time.perf_counter() - started
    if done.returncode:
        said = done.stdout[-MAX_OUTPUT_CHARS:] + done.stderr[-MAX_OUTPUT_CHARS:]
        raise TrainingFailed(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    return done.stdout, wall_s


class ScriptContender:
    """A runner beside this file, in a folder of its own that goes when the training is over."""

    def __init__(self, name: str, python: str, runner: str, threads: int | None, uses_cuda: bool = False) -> None:
        self.name = name
        self._command = [python, str(HERE / runner)]
        self._threads = threads
        self._device_flags = [] if uses_cuda else ["--no-cuda"]

    def train(self, training: Training) -> Result:
        with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as folder:
            command = [*self._command, *self._arguments(training), *self._device_flags, *training.flags]
            _, wall_s = run_command(command, Path(folder), self._threads)
            return read_result(Path(folder), training, wall_s)

    def _arguments(self, training: Training) -> list[str]:
        return [training.algo]


class CleanRlContender(ScriptContender):
    def __init__(self, checkout: Path, python: str, threads: int | None = 1, uses_cuda: bool = False) -> None:
        super().__init__("CleanRL", python, "cleanrl_runner.py", threads, uses_cuda)
        self._scripts = checkout / "cleanrl"
        if not (self._scripts / "ppo.py").is_file():
            raise SystemExit(f"{checkout} is not a checkout of CleanRL (https://github.com/vwxyzjn/cleanrl).")

    def script(self, algo: str) -> str:
        return str(self._scripts / f"{algo}.py")

    def _arguments(self, training: Training) -> list[str]:
        return [self.script(training.algo)]


class Sb3Contender(ScriptContender):
    def __init__(self, python: str, threads: int | None = 1) -> None:
        super().__init__("SB3", python, "sb3_runner.py", threads)


class MosaicContender:
    """A workspace of its own with its daemon up; closing it ends the daemon."""

    name = "MOSAIC"

    def __init__(self, workspace: Path | None = None, threads: int | None = 1) -> None:
        """Without a workspace it has a temporary one, whose runs go when it is closed."""
        self._is_temporary = workspace is None
        self._root = workspace or Path(tempfile.mkdtemp(prefix="mosaic-bench-"))
        self._root.mkdir(parents=True, exist_ok=True)
        self._threads = threads
        self._executable = str(Path(sys.executable).with_name("mosaic"))
        self._run_mosaic("daemon", "start")

    def _run_mosaic(self, *arguments: str) -> tuple[str, float]:
        return run_command(
            [self._executable, *arguments], self._root, self._threads, MOSAIC_VAR=str(self._root / "var")
        )

    def train(self, training: Training) -> Result:
        cpus = [] if self._threads is None else ["--cpus", str(self._threads)]
        said, wall_s = self._run_mosaic("train", training.algo, *training.flags, *cpus, "--json")
        return read_result(Path(json.loads(said)["run_dir"]) / "tensorboard", training, wall_s)

    def measure_startup_s(self) -> float:
        """Wall time of the shortest useful run: mostly start-up."""
        return self._run_mosaic("train", "ppo", *Training("ppo", "CartPole-v1", 1000).flags, "--json")[1]

    def close(self) -> None:
        self._run_mosaic("daemon", "stop")
        if self._is_temporary:
            shutil.rmtree(self._root)
