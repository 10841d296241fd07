"""What tracking costs a run whose W&B never answers: `python -m tests.bench.wandb_blackhole`.

The same PPO run with W&B in a black hole (a server that takes every request and never answers) and without W&B, by
turns of a second each, so that both meet the same machine; the tracked run's sidecar has its turn with it. Each round
gives ratios of their steps a second: by the CPU seconds of the worker, and by the clock, less the time that the other
had its turn; the ratio of their whole lives, from the start of the worker to its exit; and how much later the worker
was started for the sidecar's sake. A sidecar leaves a run alone for its first half minute: shorter runs than the
default here would be over before it looks for W&B at all.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench.process_turns import TURN_S, Span, running_time_s
from tests.helpers.wandb_server import KEY, WandbServer

from mosaic.base.journal import read_all
from mosaic.base.processes import is_alive
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.keeper.tree import read_process
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient

WARMUP_S = 10.0
"""A new daemon's checkers warm up, which would slow the first run."""


def wait_for_process_groups(folder: RunFolder, kinds: tuple[str, ...]) -> list[int]:
    """The process groups of those who were started."""
    while True:
        found = {body["kind"]: body["process"]["pid"] for body in _read_events(folder.keeper) if body["kind"] in kinds}
        if len(found) == len(kinds):
            return [found[kind] for kind in kinds]
        time.sleep(0.005)


def _read_events(path: Path) -> list[dict[str, Any]]:
    return read_all(path) if path.exists() else []


class RunAlternator:
    """As turns.take_turns, for several processes each, by the clock of the journals; notes what a worker has used."""

    def __init__(self, folders: list[RunFolder], groups: dict[str, list[int]]) -> None:
        self.suspended: dict[str, list[Span]] = {folder.run_id: [] for folder in folders}
        self.cpu_samples: dict[str, list[tuple[float, int]]] = {folder.run_id: [] for folder in folders}
        """By run, at the end of each of its turns: CPU seconds, steps."""
        self._folders = folders
        self._groups = groups

    def run(self) -> None:
        running, waiting = self._folders
        try:
            while not any(body["kind"] == "exited" for folder in self._folders for body in _read_events(folder.keeper)):
                self._signal(waiting, signal.SIGSTOP)
                self._record_usage(waiting)
                self._signal(running, signal.SIGCONT)
                began = time.time()
                time.sleep(TURN_S)
                self.suspended[waiting.run_id].append((began, time.time()))
                running, waiting = waiting, running
        finally:
            for folder in self._folders:
                self._signal(folder, signal.SIGCONT)

    def _signal(self, folder: RunFolder, signal_number: signal.Signals) -> None:
        for group in self._groups[folder.run_id]:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal_number)

    def _record_usage(self, folder: RunFolder) -> None:
        process = read_process("/proc", self._groups[folder.run_id][0])
        steps = [
            row[0] for body in _read_events(folder.journal) for rows in body.get("series", {}).values() for row in rows
        ]
        if process is not None and steps:
            self.cpu_samples[folder.run_id].append((process.own_ticks / os.sysconf("SC_CLK_TCK"), max(steps)))


def run_round(trainer: TrainerClient, steps: int, is_tracked_first: bool) -> tuple[dict[str, float], dict[str, float]]:
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": steps}
    bare = {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}
    tracked = {**bare, "artifacts": {"wandb": {"enabled": True}}}
    order = (tracked, bare) if is_tracked_first else (bare, tracked)
    views = [trainer.submit(payload) for payload in order]
    folders = [RunFolder(view.run_dir) for view in views]
    kinds = [("worker_started", "sidecar_started") if payload is tracked else ("worker_started",) for payload in order]
    groups = {folder.run_id: wait_for_process_groups(folder, some) for folder, some in zip(folders, kinds, strict=True)}
    turns = RunAlternator(folders, groups)
    turns.run()
    while any(trainer.get_run(view.run_id).stage != "finished" for view in views):
        time.sleep(0.1)
    measured = [
        _measure(folder, turns.suspended[folder.run_id], turns.cpu_samples[folder.run_id]) for folder in folders
    ]
    sidecar = next(
        body["process"]
        for folder in folders
        for body in _read_events(folder.keeper)
        if body["kind"] == "sidecar_started"
    )
    while is_alive(sidecar):
        time.sleep(0.1)
    return (measured[0], measured[1]) if is_tracked_first else (measured[1], measured[0])


def _measure(folder: RunFolder, suspended: list[Span], cpu_samples: list[tuple[float, int]]) -> dict[str, float]:
    progress = [(body["at"], body["global_step"]) for body in read_all(folder.journal) if body["kind"] == "progress"]
    at = {body["kind"]: body["at"] for body in read_all(folder.keeper) if body["kind"] != "sample"}
    (first_at, first_step), (last_at, last_step) = progress[0], progress[-1]
    (first_cpu_s, cpu_from), (last_cpu_s, cpu_to) = cpu_samples[0], cpu_samples[-1]
    return {
        "cpu_sps": (cpu_to - cpu_from) / (last_cpu_s - first_cpu_s),
        "sps": (last_step - first_step) / running_time_s(suspended, first_at, last_at),
        "life_s": running_time_s(suspended, at["worker_started"], at["exited"]),
        "start_ms": 1000 * (at["worker_started"] - at["keeper_started"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total-timesteps", type=int, default=700_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    by_cpu, speeds, lives, starts = [], [], [], []
    with WandbServer("hang") as server, tempfile.TemporaryDirectory() as place:
        os.environ |= {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}
        with connect(Workspace(Path(place) / "var")) as trainer:
            try:
                time.sleep(WARMUP_S)
                for turn in range(args.rounds):
                    tracked, bare = run_round(trainer, args.total_timesteps, turn % 2 == 0)
                    by_cpu.append(tracked["cpu_sps"] / bare["cpu_sps"])
                    speeds.append(tracked["sps"] / bare["sps"])
                    lives.append(bare["life_s"] / tracked["life_s"])
                    starts.append(tracked["start_ms"] - bare["start_ms"])
                    print(
                        f"{turn + 1}/{args.rounds} {by_cpu[-1]:.3f}, {speeds[-1]:.3f} of {bare['sps']:,.0f} steps/s",
                        flush=True,
                    )
            finally:
                trainer.stop_daemon(cancel_runs=True)
    print("| W&B in a black hole against no W&B | median (least … most) | aim |\n|---|---|---|")
    print(f"| steps per second of CPU | {_format_spread(by_cpu)} | 1.00 |")
    print(f"| steps per second by the clock | {_format_spread(speeds)} | 1.00 |")
    print(f"| whole life of the worker | {_format_spread(lives)} | 1.00 |")
    print(f"| worker started later, ms | {_format_spread(starts)} | < 10 |")


def _format_spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} … {max(values):.3f})"


if __name__ == "__main__":
    main()
