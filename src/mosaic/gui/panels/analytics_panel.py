"""The Analytics tab: all curves of a run and of the ticked ones, and below them its use of the hardware."""

from __future__ import annotations

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QWidget

from mosaic.client.exports import export_csv
from mosaic.contracts.views import RunView
from mosaic.formatting import short_id
from mosaic.gui import theme
from mosaic.gui.file_action_handlers import export
from mosaic.gui.models.curve_model import X_KINDS
from mosaic.gui.models.run_states import empty_text
from mosaic.gui.models.series import HardwareSeries, RunSeries
from mosaic.gui.models.ticks import short_labels
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.chart import LinkBox, SmoothingSlider
from mosaic.gui.views.run_charts import ChartGrid, ChartRun
from mosaic.gui.views.run_chips import RunChips
from mosaic.gui.views.wrapping_row import WrappingRow
from mosaic.gui.workbench import Workbench

MIN_FILTER_WIDTH = 120


class AnalyticsTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._series: RunSeries | None = None
        self._hardware: HardwareSeries | None = None
        self.grid = ChartGrid("analytics")
        self._ticked: dict[str, RunSeries] = {}
        """The points of the ticked runs, without those of the run of the page."""
        self._labels: dict[str, str] = {}
        """Of all of these runs."""
        self._chips = RunChips("analytics.runs", "Untick this run")
        self._chips.removed.connect(self._untick)
        self._empty = ui.EmptyState("No points yet")
        self._stack = ui.stack(self._empty, self.grid)
        ui.column(self._build_toolbar(), self._chips, (self._stack, 1), parent=self)
        workbench.runs.changed.connect(self._on_runs_changed)
        workbench.ticks.changed.connect(self._on_ticks_changed)

    def _build_toolbar(self) -> WrappingRow:
        settings = self._workbench.settings
        self.tag_filter = ui.search_field("analytics.filter", "Filter tags", max_width=220)
        self.tag_filter.setMinimumWidth(MIN_FILTER_WIDTH)
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
        self.link = LinkBox("analytics.link", settings, self.grid.set_linked)
        reset = ui.tool_button(
            "analytics.reset", "mdi6.magnify-remove-outline", "Reset zoom", self.grid.reset_zoom, is_flat=False
        )
        export = ui.tool_button(
            "analytics.export", "mdi6.download", "Export all points as CSV…", self._export_points, is_flat=False
        )
        self.grid.set_smoothing(self.smoothing.weight)
        self.grid.set_x_kind(str(self.x_axis.currentData()))
        space = 2 * theme.GAP
        curves = ui.row((self.tag_filter, 1), self.smoothing, spacing=space)
        axes = ui.row(self.x_axis, self.log_scale, self.link, ui.Stretch(), reset, export, spacing=space)
        return WrappingRow([curves, (axes, 1)], space)

    # --- which run

    def _untick(self, run_id: str) -> None:
        workbench = self._workbench
        workbench.ticks.toggle([run_id])
        text = f"Run {short_id(run_id)} is not drawn any more."
        workbench.offer_undo(text, f"untick run {short_id(run_id)}", lambda: workbench.toggle_ticks([run_id]))

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
            self.grid.axis.move_to(None)
        self._follow_ticked()
        self._refresh()

    def _follow_ticked(self) -> None:
        """Load the points of the ticked runs, and show which they are."""
        wanted = [run_id for run_id in self._workbench.ticks.ids if run_id != self._run_id]
        for run_id in set(self._ticked) - set(wanted):
            self._ticked.pop(run_id).remove_viewer(self)
        for run_id in wanted:
            if run_id not in self._ticked:
                self._ticked[run_id] = self._workbench.series(run_id)
                self._ticked[run_id].add_viewer(self, self._on_points_changed)
        self._ticked = {run_id: self._ticked[run_id] for run_id in wanted}
        self._workbench.separate_colors((self._run_id, *wanted))
        views = self._views()
        self._labels = short_labels(views)
        self._chips.show_runs(views if wanted else (), self._labels, fixed=self._run_id)
        self._chips.setVisible(bool(wanted))

    def _views(self) -> list[RunView]:
        """Of the run of the page and the ticked ones."""
        return [self._workbench.runs.get_or_placeholder(run_id) for run_id in (self._run_id, *self._ticked)]

    def _on_ticks_changed(self) -> None:
        if self._series is not None:
            self._follow_ticked()
            self._refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._series is not None:
            self._series.refresh()
        for series in self._ticked.values():
            series.refresh()

    def _on_points_changed(self) -> None:
        if self._series is None or self._hardware is None:
            return
        tags = set(self._hardware.tags).union(*(series.tags for series in (self._series, *self._ticked.values())))
        if self._stack.currentIndex() == 1 and tags == set(self.grid.tags()):
            self.grid.update_charts()
        else:
            self._refresh()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        if self._run_id in run_ids and self._stack.currentIndex() == 0:
            self._refresh()
        elif not run_ids.isdisjoint(self._labels) and short_labels(self._views()) != self._labels:
            self._on_ticks_changed()  # one of them was renamed

    def _refresh(self) -> None:
        series, hardware = self._series, self._hardware
        if series is None or hardware is None:
            return
        view = self._workbench.runs.get_or_placeholder(self._run_id)
        has_points = bool(series.tags or hardware.tags or any(other.tags for other in self._ticked.values()))
        self._stack.setCurrentIndex(1 if has_points else 0)
        if has_points:
            runs = [
                ChartRun(each.run_id, points, theme.run_color(each.run_id), self._labels[each.run_id])
                for each, points in zip(
                    self._views(), (series.tags, *(s.tags for s in self._ticked.values())), strict=True
                )
            ]
            self.grid.show_runs(runs[0], hardware.tags, runs[1:])
        elif not series.is_loaded:
            self._empty.set_text("Loading…")
        else:
            self._empty.set_text(*empty_text("analytics", view))

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
