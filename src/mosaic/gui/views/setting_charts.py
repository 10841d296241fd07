"""Learning curves by setting, one chart for each environment, with the interval of the mean as a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QRect, Qt
from PySide6.QtGui import QColor, QResizeEvent
from PySide6.QtWidgets import QScrollArea, QWidget

from mosaic.api.group_comparison import ComparisonResult
from mosaic.gui import theme
from mosaic.gui.views.chart import Chart
from mosaic.gui.views.group_curves import Style, show_groups
from mosaic.gui.views.plot import SharedAxis

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
