"""The Analytics tab: all curves of a run, and below them its use of the hardware."""

from __future__ import annotations

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QWidget

from mosaic.client.exports import export_csv
from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.models.curve_model import X_KINDS
from mosaic.gui.models.series import HardwareSeries, RunSeries
from mosaic.gui.run_action_handlers import export
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.chart import SmoothingSlider
from mosaic.gui.views.run_charts import ChartGrid
from mosaic.gui.workbench import Workbench

EMPTY_TEXT_BY_STATE = {
    "queued": "The run waits for a free slot. Curves begin when it has started.",
    "starting": "The run is starting. Curves begin with its first episode or update.",
    "running": "The run has logged nothing yet. Curves begin with its first episode or update.",
    "paused": "The run was paused before it logged anything. Resume it to continue.",
}
NO_POINTS_TEXT = "The run ended before it logged anything. The Logs tab may show why."


class AnalyticsTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._series: RunSeries | None = None
        self._hardware: HardwareSeries | None = None
        self.grid = ChartGrid("analytics")
        self._empty = ui.EmptyState("No points yet")
        self._stack = ui.stack(self._empty, self.grid)
        ui.column(self._build_toolbar(), (self._stack, 1), parent=self)
        workbench.runs.changed.connect(self._on_runs_changed)

    def _build_toolbar(self) -> QHBoxLayout:
        settings = self._workbench.settings
        self.tag_filter = ui.search_field("analytics.filter", "Filter tags", max_width=220)
        self.tag_filter.textChanged.connect(self.grid.set_filter)
        self.smoothing = SmoothingSlider("analytics.smoothing", settings.get("chart_smoothing", 0.6))
        self.smoothing.changed.connect(self._smooth)
        self.x_axis = ui.combo_box(
            "analytics.x",
            [(title, kind) for kind, title in X_KINDS.items()],
            "What the horizontal axis shows; hardware is always by time",
        )
        self.x_axis.setCurrentIndex(max(0, self.x_axis.findData(settings.get("chart_x", "step"))))
        self.x_axis.currentIndexChanged.connect(self._set_x_axis)
        self.log_scale = ui.check_box(
            "Log y",
            "analytics.log",
            self.grid.set_log,
            "Logarithmic vertical axis; values that are not above zero are left out",
        )
        reset = ui.tool_button(
            "analytics.reset", "mdi6.magnify-remove-outline", "Reset zoom", self.grid.reset_zoom, is_flat=False
        )
        export = ui.tool_button(
            "analytics.export", "mdi6.download", "Export all points as CSV…", self._export_points, is_flat=False
        )
        self.grid.set_smoothing(self.smoothing.weight)
        self.grid.set_x_kind(str(self.x_axis.currentData()))
        filters = (self.tag_filter, self.smoothing, self.x_axis, self.log_scale)
        return ui.row(*filters, ui.Stretch(), reset, export, spacing=2 * theme.GAP)

    # --- which run

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            if self._series is not None:
                self._series.remove_viewer(self)
            if self._hardware is not None:
                self._hardware.deleteLater()
            self._run_id = run_id
            view = self._workbench.runs.get_or_placeholder(run_id)
            self._series = self._workbench.series(run_id)
            self._series.add_viewer(self, self._on_points_changed)
            self._hardware = HardwareSeries(run_id, self._workbench.bridge, view.hardware, self)
            self._hardware.changed.connect(self._on_points_changed)
            self.grid.crosshair.move_to(None)
        self._refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._series is not None:
            self._series.refresh()

    def _on_points_changed(self) -> None:
        if self._series is None or self._hardware is None:
            return
        tags = self._series.tags.keys() | self._hardware.tags.keys()
        if self._stack.currentIndex() == 1 and tags == set(self.grid.tags()):
            self.grid.update_charts()
        else:
            self._refresh()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        if self._run_id in run_ids and self._stack.currentIndex() == 0:
            self._refresh()

    def _refresh(self) -> None:
        series, hardware = self._series, self._hardware
        if series is None or hardware is None:
            return
        view = self._workbench.runs.get_or_placeholder(self._run_id)
        has_points = bool(series.tags or hardware.tags)
        self._stack.setCurrentIndex(1 if has_points else 0)
        if has_points:
            self.grid.show_tags(series.tags, hardware.tags, theme.run_color(self._run_id), run_title(view))
        elif not series.is_loaded:
            self._empty.set_text("Loading…")
        else:
            self._empty.set_text("No points yet", EMPTY_TEXT_BY_STATE.get(view.status, NO_POINTS_TEXT))

    # --- the tools

    def _smooth(self, weight: float) -> None:
        self._workbench.settings.put("chart_smoothing", weight)
        self.grid.set_smoothing(weight)

    def _set_x_axis(self) -> None:
        kind = str(self.x_axis.currentData())
        self._workbench.settings.put("chart_x", kind)
        self.grid.set_x_kind(kind)

    def _export_points(self) -> None:
        view = self._workbench.runs.get(self._run_id)
        if view is not None:
            export(self._workbench, export_csv, "-metrics.csv", "Table (*.csv)", view)
