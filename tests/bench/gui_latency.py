"""How long a value takes from the worker's journal to the chart in the window.

.venv/bin/python tests/bench/gui_latency.py [--seconds 15] [--interval 0.25]

A scripted worker logs one point per interval. For each redraw that shows a new point, the delay is the time since the
worker logged it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")

from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication
from tests.helpers.daemons import LiveDaemon, scripted
from tests.helpers.gui import close, pump

from mosaic.contracts.folder import Workspace
from mosaic.window.app import Application
from mosaic.window.chart import Chart

TAG = "scripted/step"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--interval", type=float, default=0.25)
    options = parser.parse_args()
    delays_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as place:
        workspace = Workspace(Path(place) / "var")
        daemon = LiveDaemon(workspace, Path(place) / "plugins")
        trainer = daemon.start()
        run_id = trainer.submit(scripted(steps=1_000_000, dt=options.interval)).run_id
        app = QApplication(sys.argv[:1])
        program = Application(app, workspace, Path(place) / "settings.ini")
        program.start()
        pump(lambda: program.workbench.runs.get(run_id) is not None, "the run", 60)
        program.workbench.select(run_id, "analytics")
        points = program.workbench.series(run_id)
        name = f"analytics.chart.{TAG}"
        pump(lambda: program.window.findChild(Chart, name) is not None, "the chart", 60)
        drawn = 0
        redraw = Chart.redraw

        def timed_redraw(chart: Chart) -> None:
            nonlocal drawn
            redraw(chart)
            if chart.objectName() == name and len(chart.curves()["run"]) > drawn:
                drawn = len(chart.curves()["run"])
                delays_s.append(time.time() - points.tags[TAG].at[drawn - 1])

        Chart.redraw = timed_redraw  # type: ignore[method-assign, assignment]
        loop = QEventLoop()
        QTimer.singleShot(round(1000 * options.seconds), loop.quit)
        loop.exec()
        Chart.redraw = redraw  # type: ignore[method-assign]
        close(program)
        trainer.close()
        daemon.end()
    ordered = sorted(delays_s[1:])  # the first redraw may show points from before
    print(
        f"{len(ordered)} redraws, delay from journal to chart: median {1e3 * statistics.median(ordered):.0f} ms, "
        f"90 % {1e3 * ordered[int(0.9 * len(ordered))]:.0f} ms, longest {1e3 * ordered[-1]:.0f} ms"
    )


if __name__ == "__main__":
    main()
