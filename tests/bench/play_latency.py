"""How long it takes from a key press to the painted frame of the step that it caused.

xvfb-run -a .venv/bin/python tests/bench/play_latency.py [--presses 200]

A session of FrozenLake in the real window, with the real trainer. In real time it steps 60 times a second, and a key
waits for the next step; by turns it steps at the key. Each press moves the agent, so the frame differs from the one
before.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")

from PySide6.QtCore import QEventLoop, Qt, QTimer
from PySide6.QtGui import QPaintEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from tests.helpers.daemons import LiveDaemon
from tests.helpers.gui import click, close, find, pump, pump_for

from mosaic.contracts.folder import Workspace
from mosaic.features.play.window import GRID, VIDEO, PlayView, SessionView
from mosaic.features.play.window_board import SymbolGridView
from mosaic.features.play.window_draft import PlayRequest
from mosaic.window.app import Application
from mosaic.window.frames import FrameGrid

RATE_HZ = 60.0
LIMIT_MS = 120_000
ENV_KWARGS = {"is_slippery": False, "desc": ["SFFF", "FFFG"], "max_episode_steps": 1_000_000}
KEYS = (Qt.Key.Key_Down, Qt.Key.Key_Up)
"""From the start to the cell below it, and back; `left`, which a step without a key is, changes nothing there, and
neither does a key that is held for two steps."""

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


class PaintWatch:
    """Calls `on_change` after a widget was painted with another content than before."""

    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._content: object = None
        frame_paint, grid_paint = FrameGrid.paintEvent, SymbolGridView.paintEvent

        def paint_frames(grid: FrameGrid, event: QPaintEvent) -> None:
            frame_paint(grid, event)
            if grid.cells and grid.cells[0].image is not None:
                self._see(bytes(grid.cells[0].image.constBits()))

        def paint_tiles(grid: SymbolGridView, event: QPaintEvent) -> None:
            grid_paint(grid, event)
            self._see(grid.symbols)

        FrameGrid.paintEvent = paint_frames  # type: ignore[method-assign, assignment]
        SymbolGridView.paintEvent = paint_tiles  # type: ignore[method-assign, assignment]

    def _see(self, content: object) -> None:
        if content != self._content:
            self._content = content
            self.on_change()


def measure(view: SessionView, watch: PaintWatch, presses: int, chance: random.Random) -> list[float]:
    """Return the delays in milliseconds."""
    delays_ms: list[float] = []
    loop = QEventLoop()
    pressed_at = 0.0

    def press() -> None:
        nonlocal pressed_at
        key = KEYS[len(delays_ms) % 2]
        pressed_at = time.perf_counter()
        QTest.keyPress(view, key)
        QTimer.singleShot(25, lambda: QTest.keyRelease(view, key))

    def on_change() -> None:
        nonlocal pressed_at
        if not pressed_at:
            return
        delays_ms.append(1000 * (time.perf_counter() - pressed_at))
        pressed_at = 0.0
        if len(delays_ms) == presses:
            loop.quit()
        else:
            QTimer.singleShot(chance.randrange(60, 140), press)

    watch.on_change = on_change
    guard = QTimer(interval=LIMIT_MS)
    guard.timeout.connect(loop.quit)
    guard.start()
    press()
    loop.exec()
    guard.stop()
    if len(delays_ms) < presses:
        raise SystemExit(f"A key had no effect, or there were no {presses} of them in {LIMIT_MS / 1000:g} s.")
    watch.on_change = lambda: None
    pump_for(0.2)
    return delays_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presses", type=int, default=200)
    options = parser.parse_args()
    chance = random.Random(1)
    watch = PaintWatch()
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as place:
        workspace = Workspace(Path(place) / "var")
        daemon = LiveDaemon(workspace, Path(place) / "plugins")
        trainer = daemon.start()
        app = QApplication(sys.argv[:1])
        program = Application(app, workspace, Path(place) / "settings.ini")
        program.start()
        program.window.show_page("play")
        pump(lambda: program.workbench.status, "the trainer")
        page = find(program.window, "page.play").findChild(PlayView)
        assert page is not None
        view = find(page, "play.session", SessionView)
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.presses} presses each")
        for pacing in ("real_time", "turns"):
            settings = {"env_kwargs": ENV_KWARGS, "pacing": pacing, "rate_hz": RATE_HZ}
            request = PlayRequest("FrozenLake-v1", {"*": "human"}, {}, settings)
            page.match.start(request, None, RATE_HZ)
            pump(lambda: page.match.is_playing or page.match.first.problem, "the session")
            for tab in (VIDEO, GRID):
                view.show_tab(tab)
                pump(lambda: view.frames.grid.has_image or view.current_tab != VIDEO, "a frame")
                pump_for(0.5)
                delays = sorted(measure(view, watch, options.presses, chance))
                percentiles = {name: delays[int(part * (len(delays) - 1))] for name, part in PERCENTILES.items()}
                shown = ", ".join(f"{name} {value:.1f}" for name, value in percentiles.items())
                rate_hz = view.frames.lanes.frame_rate_hz() if tab == VIDEO else 0.0
                frames = f" ({rate_hz:.0f} frames/s)" if pacing == "real_time" and rate_hz else ""
                print(f"{pacing:>9}, {tab:5}: mean {statistics.mean(delays):.1f}, {shown} ms{frames}", flush=True)
            click(find(page, "play.start"))
            pump(lambda: not page.match.is_active, "the end")
        close(program)
        trainer.close()
        daemon.end()


if __name__ == "__main__":
    main()
