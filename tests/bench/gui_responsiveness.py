"""How long the window blocks, how soon it is shown, and whether its memory grows.

.venv/bin/python tests/bench/gui_responsiveness.py [--runs 2000] [--streaming 5] [--minutes 1]

Thousands of finished runs are in the list, a few stream curves at the pace of a fast worker (the scripted one, so that
training does not take the processors from the window) and frames of four environments each into real lanes, and a user
walks through the tabs. A timer that should tick every few milliseconds measures the longest gap between two ticks;
next to it is the longest computation between two ticks, as on a busy machine the window also waits for a processor.
Wanted: no gap above 50 ms, a window within 1.5 s, flat memory (`--minutes 10`).
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))
if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")

from PySide6.QtCore import QEventLoop, QObject, Qt, QTimer
from PySide6.QtWidgets import QApplication, QWidget
from tests.bench.load import make_runs
from tests.helpers.daemons import LiveDaemon, scripted
from tests.helpers.gui import close, pump

from mosaic.base.fastlane import lanes_folder
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.window.app import Application
from mosaic.window.frames import FramesView

LANE_WRITER = Path(__file__).parents[1] / "helpers" / "lane_writer.py"
LANES_PER_RUN, FRAME_SIZE_PX, RATE_HZ = 4, 300, 30
"""Of each run that streams: environments, pixels of a side, and pictures a second of each environment."""
TICK_MS = 5
TABS = ("overview", "analytics", "fastlane", "logs", "config")
PAGES = ("train", "compare", "trainer", "settings", "run")
MAX_GAP_S = 0.050
WARMUP_ROUNDS = 2
"""Rounds until everything that is created once has been created."""


class Heartbeat(QObject):
    """The gaps between ticks, by what was going on."""

    def __init__(self) -> None:
        super().__init__()
        self.activity = "start"
        self.gaps: dict[str, array[float]] = {}
        """Of each tick how late it was and how much of that was computing, flat: it shall not be what grows."""
        self._last_tick = time.perf_counter(), time.thread_time()
        self._timer = QTimer(self, interval=TICK_MS)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._tick)
        self._timer.start()

    def _tick(self) -> None:
        now = time.perf_counter(), time.thread_time()
        gap = now[0] - self._last_tick[0] - TICK_MS / 1000, now[1] - self._last_tick[1]
        self.gaps.setdefault(self.activity, array("d")).extend(gap)
        self._last_tick = now

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        before, self.activity = self.activity, activity
        yield
        self.activity = before

    def reset_clock(self) -> None:
        """What happened since the last tick was the benchmark's own doing."""
        self._last_tick = time.perf_counter(), time.thread_time()

    def report(self) -> float:
        print(f"{'while':24} {'longest gap':>12} {'computing':>10} {'99.9 %':>10} {'above 50 ms':>12}")
        for what, gaps in self.gaps.items():
            longest, computing = max(gaps[::2]), max(gaps[1::2])
            ordered = sorted(gaps[::2])
            high = ordered[min(len(ordered) - 1, int(0.999 * len(ordered)))]
            late = sum(gap > MAX_GAP_S for gap in ordered)
            print(
                f"{what:24} {longest * 1e3:9.1f} ms {computing * 1e3:7.1f} ms {high * 1e3:7.1f} ms "
                f"{late:5} of {len(ordered)}"
            )
        return max(gap for gaps in self.gaps.values() for gap in gaps[::2])

    def stop(self) -> None:
        self._timer.stop()


def run_event_loop(seconds: float) -> None:
    """In a loop of Qt's own: without one nothing that is let go of would ever be deleted."""
    loop = QEventLoop()
    QTimer.singleShot(round(1000 * seconds), loop.quit)
    loop.exec()


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


FIRST_PAINT_SCRIPT = """
import sys, time
from pathlib import Path
from PySide6.QtCore import QEvent, QObject, QTimer
from PySide6.QtWidgets import QApplication
from mosaic.contracts.folder import Workspace
from mosaic.window.app import Application

class Watch(QObject):
    def eventFilter(self, watched, event):
        if event.type() is QEvent.Type.Paint:
            print(time.time(), time.process_time(), flush=True)
            app.removeEventFilter(self)
            QTimer.singleShot(0, app.quit)
        return False

app = QApplication([])
watch = Watch()
app.installEventFilter(watch)
program = Application(app, Workspace(sys.argv[1]), Path(sys.argv[2]))
program.start()
app.exec()
program.stop()
"""


def measure_first_paint(workspace: Workspace, settings: Path) -> tuple[float, float]:
    """Seconds from the start of the process to the first paint, by the clock and by the processor."""
    began = time.time()
    command = [sys.executable, "-c", FIRST_PAINT_SCRIPT, str(workspace.root), str(settings)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    return float(output[0]) - began, float(output[1])


@contextmanager
def streaming_frames(folders: Sequence[RunFolder], seconds: float) -> Iterator[None]:
    """Writes into the lanes of these runs, from one process a run."""
    processes = []
    for folder in folders:
        command = [
            sys.executable,
            LANE_WRITER,
            lanes_folder(folder.path),
            LANES_PER_RUN,
            FRAME_SIZE_PX,
            seconds,
            RATE_HZ,
        ]
        processes.append(subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL))
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.wait(timeout=10)


class WalkResult(NamedTuple):
    memory: list[tuple[float, float]]
    """When, and how many megabytes."""
    frames_hz: list[float]
    """Pictures a second that the FastLane tab showed."""


def walk_through_pages(program: Application, heartbeat: Heartbeat, run_ids: list[str], minutes: float) -> WalkResult:
    """Looks at everything, again and again."""
    walked = WalkResult([], [])
    ends_at = time.monotonic() + 60 * minutes
    while time.monotonic() < ends_at:
        for number, tab in enumerate(TABS):
            with heartbeat.during(f"tab {tab}"):
                program.workbench.select(run_ids[number % len(run_ids)], tab)
                run_event_loop(2.0)
                if tab == "fastlane":
                    shown = program.window.findChild(FramesView, "fastlane.frames")
                    walked.frames_hz.append(shown.lanes.frame_rate_hz() if shown is not None else 0.0)
        for page in PAGES:
            with heartbeat.during(f"page {page}"):
                program.window.show_page(page)
                run_event_loop(1.0)
        with heartbeat.during("palette"):
            program.window.open_dialog("palette")
            run_event_loop(0.5)
            for dialog in program.window.findChildren(QWidget, "palette"):
                dialog.close()
            run_event_loop(0.5)
        gc.collect()
        walked.memory.append((time.monotonic(), resident_mb()))
        heartbeat.reset_clock()
    return walked


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--streaming", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as place:
        workspace, settings = Workspace(Path(place) / "var"), Path(place) / "settings.ini"
        make_runs(workspace, options.runs)
        daemon = LiveDaemon(workspace, Path(place) / "plugins", "--max-runs", str(options.streaming))
        trainer = daemon.start()
        starts = [measure_first_paint(workspace, settings) for _ in range(5)]
        payload = scripted(steps=10_000_000, dt=0.05)
        run_ids = [trainer.submit(payload).run_id for _ in range(options.streaming)]
        folders = [workspace.run(run_id) for run_id in run_ids]
        app = QApplication(sys.argv[:1])
        with streaming_frames(folders, 60 * options.minutes + 120):
            at_start_mb = resident_mb()
            program = Application(app, workspace, settings)
            heart = Heartbeat()
            program.start()
            with heart.during("loading the list"):
                pump(lambda: len(program.workbench.runs) == options.runs + options.streaming, "the runs", 60)
                run_event_loop(2.0)
            with heart.during("streaming, list only"):
                run_event_loop(10.0)
            walked = walk_through_pages(program, heart, run_ids, options.minutes)
            heart.stop()
            close(program)
        trainer.close()
        daemon.end()
    print(f"{options.runs} runs in the list, {options.streaming} streaming, {options.minutes:g} min")
    clock, processor = (statistics.median(times) for times in zip(*starts, strict=True))
    print(f"first paint: {clock:.2f} s by the clock, {processor:.2f} s by the processor (wanted: 1.5)")
    longest = heart.report()
    print(f"longest gap: {longest * 1e3:.1f} ms (wanted: 50)")
    print(f"FastLane showed {statistics.median(walked.frames_hz):.0f} of {LANES_PER_RUN * RATE_HZ} pictures a second")
    memory = walked.memory
    if len(memory) > WARMUP_ROUNDS:
        (warm_at, warm_mb), (last_at, last_mb) = memory[WARMUP_ROUNDS], memory[-1]
        rate = (last_mb - warm_mb) / max(1e-9, (last_at - warm_at) / 60)
        print(
            f"memory: {at_start_mb:.0f} MB before the window, {warm_mb:.0f} MB after {WARMUP_ROUNDS + 1} rounds, "
            f"{last_mb:.0f} MB at the end: {rate:+.2f} MB a minute"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
