"""What it costs a script to be a run: `python tests/bench/probe.py [--env-id ALE/Breakout-v5 --python PYTHON]`.

The same PPO script bare, under `mosaic run` without a viewer, with one viewer of one environment, and with one and five
viewers of a grid of eight. Interleaved; each round gives a ratio of CPU seconds in the training loop against the bare
script of that round, so that other work on the machine counts little.
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
from typing import Any

from mosaic.client import Trainer, connect
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.fastlane import LaneReader, lane_indices, lanes_folder

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "scripts" / "ppo_cartpole.py"
RATE_HZ = 30.0
AIMS = {"no viewer": 0.99, "one viewer": 0.98, "grid, one viewer": 0.97, "grid, five viewers": 0.97}
ENVIRONMENTS = {"no viewer": 4, "one viewer": 4, "grid, one viewer": 8, "grid, five viewers": 8}
VIEWERS = {"no viewer": 0, "one viewer": 1, "grid, one viewer": 1, "grid, five viewers": 5}


def view(folder: str, is_grid: bool) -> None:
    """Looks at one lane or at all of them until it is ended."""
    readers: dict[int, LaneReader] = {}
    while True:
        wanted = lane_indices(folder) if is_grid else lane_indices(folder)[:1]
        readers.update({index: LaneReader(folder, index) for index in wanted if index not in readers})
        for reader in readers.values():
            reader.newest()
        time.sleep(1 / RATE_HZ)


def took(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line.startswith("took ")]
    if not lines:
        raise SystemExit(f"The script did not reach its end:\n{text[-2000:]}")
    found: dict[str, float] = json.loads(lines[-1].removeprefix("took "))
    return found


def caller() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "SDL_VIDEODRIVER": "dummy"}


def bare(argv: list[str], cwd: Path) -> dict[str, float]:
    with open(cwd / "out", "w") as output, open(cwd / "err", "w") as errors:
        subprocess.run(argv, cwd=cwd, env=caller(), stdout=output, stderr=errors, check=True)
    return took((cwd / "out").read_text())


def as_run(trainer: Trainer, argv: list[str], cwd: Path, viewers: int, is_grid: bool) -> dict[str, float]:
    config = {"argv": argv, "cwd": str(cwd)}
    payload = {"metadata": {"worker": {"id": "script", "config": config}}, "artifacts": {}}
    view = trainer.submit(payload, caller())
    folder = lanes_folder(view["run_dir"])
    grid = ["--grid"] if is_grid else []
    watching = [subprocess.Popen([sys.executable, __file__, "--view", folder, *grid]) for _ in range(viewers)]
    try:
        while (view := trainer.get(view["run_id"]))["stage"] != "finished":
            time.sleep(0.5)
    finally:
        for viewer in watching:
            viewer.terminate()
            viewer.wait()
    return took(RunFolder(view["run_dir"]).stdout_log("script").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--total-timesteps", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch, and ale-py for Atari")
    parser.add_argument("--modes", nargs="*", default=list(AIMS), choices=list(AIMS))
    parser.add_argument("--view", help=argparse.SUPPRESS)
    parser.add_argument("--grid", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.view:
        view(args.view, args.grid)
        return
    with tempfile.TemporaryDirectory() as place:
        measure(args, Path(place))


def measure(args: argparse.Namespace, place: Path) -> None:
    command = [args.python, str(SCRIPT), "--env-id", args.env_id, "--total-timesteps", str(args.total_timesteps)]
    cwd = place / "cwd"
    cwd.mkdir()
    ratios: dict[str, list[float]] = {mode: [] for mode in args.modes}
    walls: dict[str, list[float]] = {mode: [] for mode in args.modes}
    with connect(Workspace(place / "var")) as trainer:
        try:
            for turn in range(args.rounds):
                for mode in args.modes:
                    argv = [*command, "--num-envs", str(ENVIRONMENTS[mode])]
                    measured = {}
                    # Side by side, and each of the two first in turn: the machine is not always equally busy.
                    for is_bare in (True, False) if turn % 2 == 0 else (False, True):
                        measured[is_bare] = (
                            bare(argv, cwd)
                            if is_bare
                            else as_run(trainer, argv, cwd, VIEWERS[mode], mode.startswith("grid"))
                        )
                    for clock, found in (("cpu_s", ratios), ("wall_s", walls)):
                        found[mode].append(_speed(measured[False], clock) / _speed(measured[True], clock))
                    print(f"{turn + 1}/{args.rounds} {mode}: {ratios[mode][-1]:.3f}", file=sys.stderr, flush=True)
        finally:
            trainer.stop_daemon(cancel_runs=True)
    print(f"{args.env_id}, {args.total_timesteps:,} steps, {args.rounds} rounds; share of the bare steps per second")
    print("| | by CPU time: median (least … most) | by the clock | aim |\n|---|---|---|---|")
    for mode in args.modes:
        print(f"| {mode} | {_spread(ratios[mode])} | {_spread(walls[mode])} | {AIMS[mode]:.2f} |")


def _speed(measured: dict[str, Any], clock: str) -> float:
    return float(measured["steps"] / measured[clock])


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} … {max(values):.3f})"


if __name__ == "__main__":
    main()
