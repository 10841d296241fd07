"""How many frames a second a chart of a million points draws while it is panned, next to pyqtgraph's own items.

.venv/bin/python tests/bench/gui_charts.py [--points 1000000] [--seconds 3]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import numpy as np
import pyqtgraph as pg
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication, QWidget

from mosaic.window import theme
from mosaic.window.chart import Chart
from mosaic.window.curves import Floats

CHART_SIZE_PX = (900, 500)


def pan(
    widget: QWidget, move: Callable[[float, float], None], points: int, visible_fraction: float, seconds: float
) -> float:
    """Frames a second of processor time, so that a busy machine does not blur it: each frame is painted once."""
    width = points * visible_fraction
    frames, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        at = (points - width) * (0.5 + 0.5 * np.sin(frames / 40))
        move(at, at + width)
        QApplication.processEvents()
        frames += 1
    return frames / (time.process_time() - began)


def build_mosaic_chart(x: Floats, y: Floats, smoothing: float) -> Chart:
    chart = Chart("episodic_return")
    chart.set_smoothing(smoothing)
    chart.ensure_curve("run", "run", QColor(theme.RUN_COLORS[0])).extend(x, y)
    return chart


def build_pyqtgraph_plot(x: Floats, y: Floats, is_downsampled: bool) -> pg.PlotWidget:
    plot = pg.PlotWidget(background=theme.tokens().surface)
    """With its thinnest and fastest line: at our width and smoothness it takes seconds a frame."""
    item = pg.PlotDataItem(x, y, pen=pg.mkPen(theme.RUN_COLORS[0]), skipFiniteCheck=True)
    plot.addItem(item)
    if is_downsampled:
        item.setDownsampling(auto=True, method="peak")
        item.setClipToView(True)
    return plot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    app = QApplication([])
    theme.apply(app, "dark")
    random = np.random.default_rng(0)
    x = np.arange(float(options.points))
    y = 500 * (1 - np.exp(-x / options.points * 4)) + 40 * random.normal(size=options.points)
    raw, smooth = build_mosaic_chart(x, y, 0.0), build_mosaic_chart(x, y, 0.9)
    helped, bare = build_pyqtgraph_plot(x, y, True), build_pyqtgraph_plot(x, y, False)
    cases: list[tuple[str, QWidget, Callable[[float, float], None]]] = [
        ("chart", raw, raw.zoom),
        ("chart, smoothed", smooth, smooth.zoom),
        ("pyqtgraph, peaks and clipping", helped, lambda low, high: helped.setXRange(low, high, padding=0)),
        ("pyqtgraph, all points", bare, lambda low, high: bare.setXRange(low, high, padding=0)),
    ]
    print(
        f"{options.points:,} points, {CHART_SIZE_PX[0]} by {CHART_SIZE_PX[1]} pixels; frames a second of processor time"
    )
    print(f"{'in sight':32}{'all':>8}{'half':>8}{'1 %':>8}")
    for name, widget, move in cases:
        widget.resize(*CHART_SIZE_PX)
        widget.show()
        QApplication.processEvents()
        rates = [pan(widget, move, options.points, share, options.seconds) for share in (0.999, 0.5, 0.01)]
        print(f"{name:32}" + "".join(f"{rate:8.0f}" for rate in rates), flush=True)
        widget.hide()
    began = time.process_time()
    smooth.set_smoothing(0.99)
    smooth.redraw()
    print(f"another smoothing, drawn: {1000 * (time.process_time() - began):.0f} ms")
    began = time.process_time()
    for step in range(100):
        smooth.curves()["run"].extend(np.array([options.points + step], np.float64), np.zeros(1))
        smooth.redraw()
    print(f"one more point, drawn: {10 * (time.process_time() - began):.1f} ms")


if __name__ == "__main__":
    main()
