"""What it costs a script to be a run: `python -m tests.bench.probe [--env-id ALE/Breakout-v5 --python PYTHON]`.

The same PPO script bare, under `mosaic run` without a viewer, with one viewer of one environment, and with one and five
viewers of a grid of eight. The bare script and the run take turns of a second each, so that both meet the same machine.
Each round gives two ratios against the bare script beside it: of the CPU seconds of a training iteration, as the mean
of the middle half of all, and by the clock, less the time that the other had its turn.
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

from tests.bench.process_turns import Span, run_alternately, running_time_s

from mosaic.base.fastlane import LaneReader, lane_indices, lanes_folder
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "scripts" / "ppo_cartpole.py"
RATE_HZ = 30.0
WARMUP_S = 10.0
"""A new daemon's checkers warm up, which would slow the first run."""
TARGET_RATIOS = {"no viewer": 0.99, "one viewer": 0.98, "grid, one viewer": 0.97, "grid, five viewers": 0.97}
ENV_COUNTS = {"no viewer": 4, "one viewer": 4, "grid, one viewer": 8, "grid, five viewers": 8}


def run_viewer(folder: str, is_grid: bool) -> None:
    """Looks at one lane or at all of them until it is ended."""
    readers: dict[int, LaneReader] = {}
    while True:
        wanted = lane_indices(folder) if is_grid else lane_indices(folder)[:1]
        readers.update({index: LaneReader(folder, index) for index in wanted if index not in readers})
        for reader in readers.values():
            reader.read_newest()
        time.sleep(1 / RATE_HZ)


Timing = dict[str, Any]


def parse_timing(text: str, suspended: list[Span]) -> Timing:
    lines = [line for line in text.splitlines() if line.startswith("took ")]
    if not lines:
        raise SystemExit(f"The script did not reach its end:\n{text[-2000:]}")
    found: Timing = json.loads(lines[-1].removeprefix("took "))
    found["wall_s"] = running_time_s(suspended, found["began"], found["began"] + found["wall_s"])
    return found


def child_environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "SDL_VIDEODRIVER": "dummy"}


class ViewerMode(NamedTuple):
    viewers: int
    is_grid: bool


MODES = {
    "no viewer": ViewerMode(0, False),
    "one viewer": ViewerMode(1, False),
    "grid, one viewer": ViewerMode(1, True),
    "grid, five viewers": ViewerMode(5, True),
}


def run_pair(trainer: TrainerClient, argv: list[str], cwd: Path, mode: ViewerMode) -> tuple[Timing, Timing]:
    """The bare script and the same as a run, by turns."""
    payload = {"metadata": {"worker": {"id": "script", "config": {"argv": argv, "cwd": str(cwd)}}}, "artifacts": {}}
    with open(cwd / "out", "w", encoding="utf-8") as output, open(cwd / "err", "w", encoding="utf-8") as errors:
        run = trainer.submit(payload, child_environment()).run_id
        while (view := trainer.get_run(run)).pid is None:
            time.sleep(0.02)
        alone = subprocess.Popen(argv, cwd=cwd, env=child_environment(), stdout=output, stderr=errors)
    folder = lanes_folder(view.run_dir)
    grid = ["--grid"] if mode.is_grid else []
    watching = [
        subprocess.Popen([sys.executable, "-m", "tests.bench.probe", "--view", folder, *grid])
        for _ in range(mode.viewers)
    ]
    try:
        held = run_alternately(alone.pid, view.pid)
        alone.wait()
        while trainer.get_run(run).stage != "finished":
            time.sleep(0.1)
    finally:
        for viewer in watching:
            viewer.terminate()
            viewer.wait()
    return (
        parse_timing((cwd / "out").read_text(), held[alone.pid]),
        parse_timing(RunFolder(view.run_dir).stdout_log("script").read_text(), held[view.pid]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--total-timesteps", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch, and ale-py for Atari")
    parser.add_argument("--modes", nargs="*", default=list(TARGET_RATIOS), choices=list(TARGET_RATIOS))
    parser.add_argument("--view", help=argparse.SUPPRESS)
    parser.add_argument("--grid", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.view:
        run_viewer(args.view, args.grid)
        return
    with tempfile.TemporaryDirectory() as place:
        measure(args, Path(place))


def measure(args: argparse.Namespace, temp_dir: Path) -> None:
    command = [args.python, str(SCRIPT), "--env-id", args.env_id, "--total-timesteps", str(args.total_timesteps)]
    cwd = temp_dir / "cwd"
    cwd.mkdir()
    ratios: dict[str, list[float]] = {mode: [] for mode in args.modes}
    walls: dict[str, list[float]] = {mode: [] for mode in args.modes}
    with connect(Workspace(temp_dir / "var")) as trainer:
        try:
            time.sleep(WARMUP_S)
            for turn in range(args.rounds):
                for mode in args.modes:
                    argv = [*command, "--num-envs", str(ENV_COUNTS[mode])]
                    alone, run = run_pair(trainer, argv, cwd, MODES[mode])
                    ratios[mode].append(_iteration_s(alone) / _iteration_s(run))
                    walls[mode].append(alone["wall_s"] / run["wall_s"])
                    print(f"{turn + 1}/{args.rounds} {mode}: {ratios[mode][-1]:.3f}", file=sys.stderr, flush=True)
        finally:
            trainer.stop_daemon(cancel_runs=True)
    print(f"{args.env_id}, {args.total_timesteps:,} steps, {args.rounds} rounds; share of the bare steps per second")
    print("| | by CPU time: median (least … most) | by the clock | aim |\n|---|---|---|---|")
    for mode in args.modes:
        print(
            f"| {mode} | {_format_spread(ratios[mode])} | {_format_spread(walls[mode])} | {TARGET_RATIOS[mode]:.2f} |"
        )


def _iteration_s(timing: Timing) -> float:
    spent = sorted(timing["iterations_cpu_s"])
    return statistics.fmean(spent[len(spent) // 4 : -(len(spent) // 4) or None])


def _format_spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} … {max(values):.3f})"


if __name__ == "__main__":
    main()
