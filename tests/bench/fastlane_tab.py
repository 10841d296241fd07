"""The FastLane tab of the real window: how many frames it shows, and what they cost the training.

    python -m tests.bench.fastlane_tab [--pairs N]

With a real daemon, under Xvfb or offscreen. For each training, the tab with one environment and another tab are shown
in turns; steps are counted in both, per second and per second of the run's processor time, which depends less on what
else the machine does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from PySide6.QtWidgets import QApplication
from tests.bench.fastlane import format_spread
from tests.helpers.daemons import LiveDaemon
from tests.helpers.gui import close, pump

from mosaic.base.run_payloads import build_payload
from mosaic.contracts.folder import Workspace
from mosaic.features.watch.window import FastLaneTab
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application

TAB_TRAININGS = (
    ("ppo", "CartPole-v1"),
    ("dqn", "CartPole-v1"),
    ("ppo_atari", "BreakoutNoFrameskip-v4"),
    ("ppo_continuous_action", "HalfCheetah-v5"),
)
TURN_S = 6.0
SETTLE_S = 2.0
"""After a change of the tab: the run notices that somebody looks, or does no more."""


def bench_tab(pairs: int) -> None:
    app = QApplication(sys.argv[:1])
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as place:
        workspace = Workspace(Path(place) / "var")
        daemon = LiveDaemon(workspace, Path(place) / "plugins", "--max-runs", "1")
        trainer = daemon.start()
        program = Application(app, workspace, Path(place) / "settings.ini")
        program.start()
        program.window.resize(1366, 768)
        try:
            for algo, env_id in TAB_TRAININGS:
                _bench_tab_of(program, trainer, algo, env_id, pairs)
        finally:
            close(program)
            trainer.close()
            daemon.end()


def _bench_tab_of(program: Application, trainer: TrainerClient, algo: str, env_id: str, pairs: int) -> None:
    config = {"algo": algo, "env_id": env_id, "total_timesteps": 1_000_000_000, "seed": 1}
    run_id = trainer.submit(build_payload({"id": "cleanrl", "config": config}, {})).run_id
    pump(lambda: program.workbench.runs.get(run_id), "the run", 60)
    program.workbench.select(run_id, "fastlane")
    tab = pump(lambda: program.window.findChild(FastLaneTab), "the tab", 30)
    frames = tab.frames
    pump(lambda: frames.lanes.run_id == run_id and frames.grid.has_image, "the first frame", 300)
    frames.show_env(0)
    found: list[tuple[TurnSpeed, TurnSpeed]] = []
    rates, costs = [], []
    for _ in range(pairs):
        speeds = []
        for name in ("fastlane", "config"):
            program.workbench.select(run_id, name)
            _measure_turn(trainer, run_id, SETTLE_S)
            speeds.append(_measure_turn(trainer, run_id, TURN_S))
            hud = frames.lanes.cells[0].hud
            if name == "fastlane" and hud is not None:
                rates.append(frames.lanes.frame_rate_hz())
                costs.append(hud.cost)
                print(f"  {frames.grid.text}", flush=True)
        found.append((speeds[0], speeds[1]))
    trainer.cancel_run(run_id)
    pump(lambda: trainer.get_run(run_id).stage == "finished", "the end", 120)
    by_clock = [watched.wall_sps / other.wall_sps for watched, other in found if other.wall_sps]
    by_processor = [watched.cpu_sps / other.cpu_sps for watched, other in found if other.cpu_sps]
    seen, unseen = (statistics.median(pair[at].wall_sps for pair in found) for at in (0, 1))
    print(
        f"tab      {algo} {env_id}: {statistics.median(rates):.1f} frames/s ({min(rates):.1f} to {max(rates):.1f}), "
        f"measured cost {100 * statistics.median(costs):.1f} %; watched {seen:,.0f} steps/s, else {unseen:,.0f}; "
        f"ratio by processor time {format_spread(by_processor)}, by the clock {format_spread(by_clock)}; {pairs} pairs",
        flush=True,
    )


class TurnSpeed(NamedTuple):
    wall_sps: float
    cpu_sps: float


def _measure_turn(trainer: TrainerClient, run_id: str, seconds: float) -> TurnSpeed:
    """The speed between the first and the last report of the run in this time, while the window is used."""
    reports: list[tuple[float, float, int]] = []
    ends_at = time.monotonic() + seconds
    next_at = 0.0
    pids = _processes_of(run_id)
    while time.monotonic() < ends_at:
        QApplication.processEvents()
        time.sleep(0.002)
        if time.monotonic() >= next_at:
            next_at = time.monotonic() + 0.1
            step = trainer.get_run(run_id).global_step or 0
            if not reports or step != reports[-1][2]:
                reports.append((time.monotonic(), sum(map(_processor_time_s, pids)), step))
    if len(reports) < 3:
        return TurnSpeed(0.0, 0.0)
    (begin, cpu_begin, first), (end, cpu_end, last) = reports[1], reports[-1]
    return TurnSpeed((last - first) / (end - begin), (last - first) / max(0.01, cpu_end - cpu_begin))


def _processes_of(run_id: str) -> list[int]:
    folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    found = []
    for folder in folders:
        try:
            if run_id.encode() in (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended, or is another user's
    return found


def _processor_time_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    bench_tab(parser.parse_args().pairs)
