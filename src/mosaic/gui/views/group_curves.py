"""Draws the curves of compared groups: means with intervals, and what is behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PySide6.QtGui import QColor

from mosaic.gui import theme
from mosaic.gui.models.curve_model import Line
from mosaic.gui.models.series import Floats
from mosaic.gui.views.chart import Chart
from mosaic.statistics.comparison import NO_GROUPING, Comparison, RunGroup

Style = tuple[QColor, bool]
"""The color of a group's line, and whether it is dashed."""
MAX_LINE_POINTS, MAX_STRIDE = 8000, 4
OTHERS = "\0others"
"""The key of the lines of groups that have no color of their own."""


def group_styles(comparison: Comparison, key: str) -> dict[str, Style]:
    """A run keeps its own color, dashed where another has it already; groups take the cycle's in turn."""
    cycle = {
        name: QColor(theme.RUN_COLORS[number % len(theme.RUN_COLORS)])
        for number, name in enumerate(sorted(group.name for group in comparison.groups))
    }
    styles: dict[str, Style] = {}
    used: set[int] = set()
    for group in comparison.groups:
        color = theme.run_color(group.run_ids[0]) if key == NO_GROUPING else cycle[group.name]
        styles[group.name] = color, color.rgb() in used
        used.add(color.rgb())
    return styles


def show_groups(
    chart: Chart,
    grid: Floats,
    groups: Sequence[RunGroup],
    styles: Mapping[str, Style],
    labels: Mapping[str, str] | None = None,
    others: Sequence[RunGroup] = (),
    has_run_lines: bool = False,
) -> None:
    """Draw the mean of each group with its interval, dotted from where runs of it are missing.

    `others` are drawn as thin lines of one color; with `has_run_lines`, so is each run behind its group.
    """
    keys = [group.name for group in groups] + ([OTHERS] if others else [])
    for key in set(chart.curves()) - set(keys):
        chart.remove_curve(key)
    for key, group in zip(keys, groups, strict=False):
        curve = chart.ensure_curve(key, (labels or {}).get(group.name, group.name), *styles[group.name])
        curve.replace(grid, group.curve.mean, group.curve.low, group.curve.high)
        curve.tail = _joined(grid, group.tail[None]) if group.complete_until is not None else curve.tail
        curve.lines = _joined(grid, group.run_curves) if has_run_lines and len(group.run_ids) > 1 else curve.lines
    if others:
        curve = chart.ensure_curve(OTHERS, f"{len(others):,} others", QColor(theme.tokens().muted))
        curve.replace(np.empty(0), np.empty(0))
        curve.lines = _joined(grid, np.stack([group.curve.mean for group in others]))
    chart.order_curves(keys)
    chart.schedule_redraw()


def _joined(grid: Floats, rows: Floats) -> Line:
    """One line of several, with a gap after each. Many lines have fewer points, which are drawn faster."""
    stride = min(MAX_STRIDE, 1 + rows.size // MAX_LINE_POINTS)
    grid, rows = grid[::stride], rows[:, ::stride]
    x = np.tile(np.append(grid, grid[-1]), len(rows))
    return x, np.pad(rows, ((0, 0), (0, 1)), constant_values=np.nan).ravel()
