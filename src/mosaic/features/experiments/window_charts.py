"""Draws the curves of compared groups: means with intervals, and what is behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QColor, QResizeEvent
from PySide6.QtWidgets import QScrollArea, QWidget

from mosaic.base.comparison import NO_GROUPING, Comparison, RunGroup
from mosaic.features.experiments.core_comparison import ComparisonResult
from mosaic.window import theme
from mosaic.window.chart import Chart
from mosaic.window.curves import Floats, Line
from mosaic.window.plot import SharedAxis

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


# --- Learning curves by setting, one chart for each environment, with the interval of the mean as a band.


MIN_CHART_WIDTH = 260
MIN_CHART_HEIGHT = 150
MAX_CURVES = 12
"""In one chart; the settings that score best are drawn."""


def setting_styles(settings: Sequence[str]) -> dict[str, Style]:
    """Give each setting a color in the order in which they were submitted; dashed where it is taken."""
    count = len(theme.RUN_COLORS)
    return {
        name: (QColor(theme.RUN_COLORS[number % count]), number >= count)
        for number, name in enumerate(dict.fromkeys(settings))
    }


class SettingCharts(QScrollArea):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setMinimumHeight(MIN_CHART_HEIGHT + theme.GAP)
        self.axis = SharedAxis(self)
        self._is_log = False
        self._empty_text = ""
        self.charts: dict[str, Chart] = {}
        """By environment."""
        self._content = QWidget()
        self.setWidget(self._content)

    def show_environments(self, environments: Sequence[str]) -> None:
        """Create a chart for each environment, empty until there is a result."""
        if list(environments) == list(self.charts):
            return
        for chart in self.charts.values():
            chart.hide()
            chart.deleteLater()
        self.charts = {}
        for environment in environments:
            # A single chart has room for a legend; several have the table below them as their legend.
            chart = Chart(environment, f"{self.objectName()}.{environment}", self.axis, len(environments) == 1)
            chart.setParent(self._content)
            chart.plot.wheel_needs_ctrl = True
            chart.set_log(self._is_log)
            chart.set_empty_text(self._empty_text)
            chart.show()
            self.charts[environment] = chart
        self._arrange()

    def show_result(self, result: ComparisonResult, styles: Mapping[str, Style]) -> None:
        compared = result.environments or dict.fromkeys(self.charts, result.statistics)
        for environment, chart in self.charts.items():
            if environment in compared:
                groups = [group for group in compared[environment].groups if group.name in styles]
                show_groups(chart, compared[environment].grid, groups[:MAX_CURVES], styles)

    def clear(self) -> None:
        for chart in self.charts.values():
            for name in list(chart.curves()):
                chart.remove_curve(name)

    def set_log(self, is_log: bool) -> None:
        self._is_log = is_log
        for chart in self.charts.values():
            chart.set_log(is_log)

    def set_empty_text(self, text: str) -> None:
        self._empty_text = text
        for chart in self.charts.values():
            chart.set_empty_text(text)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _arrange(self) -> None:
        """Place the charts in rows; a few fill the height, many are scrolled."""
        if not self.charts:
            return
        width, height = self.viewport().width(), self.viewport().height()
        columns = min(len(self.charts), max(1, (width + theme.GAP) // (MIN_CHART_WIDTH + theme.GAP)))
        rows = -(-len(self.charts) // columns)
        each = (width - (columns - 1) * theme.GAP) // columns
        high = max(MIN_CHART_HEIGHT, (height - (rows - 1) * theme.GAP) // rows)
        for number, chart in enumerate(self.charts.values()):
            row, column = divmod(number, columns)
            chart.setGeometry(QRect(column * (each + theme.GAP), row * (high + theme.GAP), each, high))
        self._content.setMinimumHeight(rows * (high + theme.GAP) - theme.GAP)
