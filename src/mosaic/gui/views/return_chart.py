"""The return of one run while it trains: the chart that shows whether it learns."""

from __future__ import annotations

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from mosaic.contracts.metric_tags import RETURN_TAG
from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.models.curve_model import CurveFeed
from mosaic.gui.models.series import RunSeries
from mosaic.gui.views.chart import Chart
from mosaic.gui.views.smoothing import DEFAULT_SMOOTHING
from mosaic.gui.workbench import Workbench


class ReturnChart(QWidget):
    def __init__(self, workbench: Workbench, name: str) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._series: RunSeries | None = None
        self._feed: CurveFeed | None = None
        self.chart = Chart("Return", name)
        self.chart.set_smoothing(workbench.settings.get("chart_smoothing", DEFAULT_SMOOTHING))
        self.chart.set_empty_text("No episode has ended yet")
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.chart)
        workbench.theme_changed.connect(self.chart.repaint_theme)

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            view = self._workbench.runs.get_or_placeholder(run_id)
            curve = self.chart.ensure_curve("run", run_title(view), theme.run_colour(run_id))
            if self._series is not None:
                self._series.remove_viewer(self)
            self._series = self._workbench.series(run_id)
            self._series.add_viewer(self, self._update_curve)
            self._feed = CurveFeed(self._series.tags, RETURN_TAG, curve)
            self.chart.reset_zoom()
        self._update_curve()

    def _update_curve(self) -> None:
        if self.isVisible() and self._feed is not None and self._feed.update("step"):
            self.chart.schedule_redraw()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.chart.set_smoothing(self._workbench.settings.get("chart_smoothing", DEFAULT_SMOOTHING))
        self._update_curve()
        if self._series is not None:
            self._series.refresh()
