"""The Analytics tab: all curves of a run and of the ticked ones, and below them its use of the hardware."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPoint, QRect, Qt, QTimer
from PySide6.QtGui import QColor, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QScrollArea, QSizePolicy, QWidget

from mosaic.base.formatting import run_title, short_id
from mosaic.contracts.names import EVAL_MEAN_TAG, RETURN_TAG
from mosaic.contracts.views import RunView
from mosaic.trainer.client.exports import export_csv
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.chart import DEFAULT_SMOOTHING, Chart, LinkBox, SmoothingSlider
from mosaic.window.curves import X_KINDS, CurveFeed, GrowingPoints, HardwareSeries, RunSeries
from mosaic.window.file_actions import export
from mosaic.window.plot import SharedAxis
from mosaic.window.run_chips import RunChips
from mosaic.window.runs import empty_text, short_labels
from mosaic.window.widgets import Stretch, WrappingRow, column, create_timer, tool_button
from mosaic.window.workbench import Workbench

# --- The charts of one run: of its return, and a page of all its tags, grouped by the text before the first slash.
#     The page shows the curves of other runs next to its own.


TaggedPoints = Mapping[str, GrowingPoints]
OWN_CURVE = "run"
"""The key of the curve of the run whose page it is."""
MIN_CHART_WIDTH = 320
CHART_HEIGHT = 216
REDRAW_STAGGER_MS = 10
"""Between the drawings of two charts: one event loop iteration that draws all of them takes too long."""
ENLARGED_FACTOR = 2
"""How many times the height of the others an enlarged chart has."""


class ReturnChart(Chart):
    """The return of a run while it trains, and of its evaluations meanwhile: the chart that shows whether it learns."""

    def __init__(self, workbench: Workbench, name: str) -> None:
        super().__init__("Return", name)
        self._workbench = workbench
        self._run_id = ""
        self._series: RunSeries | None = None
        self._feeds: dict[str, CurveFeed] = {}

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            view = self._workbench.runs.get_or_placeholder(run_id)
            curve = self.ensure_curve("run", run_title(view), theme.run_color(run_id))
            if EVAL_MEAN_TAG in self._feeds:
                self.remove_curve("evaluation")
            if self._series is not None:
                self._series.remove_viewer(self)
            self._series = self._workbench.series(run_id)
            self._series.add_viewer(self, self._update_curve)
            self._feeds = {RETURN_TAG: CurveFeed(self._series.tags, RETURN_TAG, curve)}
            self.reset_zoom()
        self._update_curve()

    def update_empty_text(self) -> None:
        """Show why there is no curve: points are loading, no episode has ended, or none will."""
        view = self._workbench.runs.get_or_placeholder(self._run_id)
        if self._series is None or not self._series.is_loaded:
            self.set_empty_text("Loading…")
        else:
            self.set_empty_text(empty_text("chart", view).title)

    def _update_curve(self) -> None:
        self.update_empty_text()
        if self.isVisible():
            self._add_evaluation()
            has_changed = [feed.update("step") for feed in self._feeds.values()]
            if any(has_changed):
                self.schedule_redraw()

    def _add_evaluation(self) -> None:
        """Add the curve of evaluations during training. Those after it are numbered from 1, not by step."""
        points = None if self._series is None else self._series.tags.get(EVAL_MEAN_TAG)
        if self._series is None or points is None or EVAL_MEAN_TAG in self._feeds:
            return
        if len(points) and points.step[-1] > len(points):
            curve = self.ensure_curve("evaluation", "evaluation", theme.run_color(self._run_id), is_dashed=True)
            self._feeds[EVAL_MEAN_TAG] = CurveFeed(self._series.tags, EVAL_MEAN_TAG, curve)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.set_smoothing(self._workbench.settings.get("chart_smoothing", DEFAULT_SMOOTHING))
        self._update_curve()
        if self._series is not None:
            self._series.refresh()


def split_tag(tag: str) -> tuple[str, str]:
    """Return the group and the title: `losses/value_loss` is `value_loss` of `losses`."""
    group, slash, title = tag.partition("/")
    return (group, title) if slash else ("", tag)


def _sort_key(tag: str) -> tuple[bool, bool, str]:
    """Sort by name, after the returns in training and evaluation, which are the most important."""
    return tag != RETURN_TAG, tag != EVAL_MEAN_TAG, tag.lower()


@dataclass(frozen=True)
class ChartRun:
    """A run whose curves are drawn next to those of the run of the page."""

    run_id: str
    points: TaggedPoints
    color: QColor
    label: str


class ChartCell(QWidget):
    """The place of one chart, which may not have been created yet."""

    def __init__(self, tag: str, points: TaggedPoints, is_time_based: bool, parent: QWidget) -> None:
        super().__init__(parent)
        self.tag = tag
        self.points = points
        self.is_time_based = is_time_based
        """Its points have a time and no step."""
        self.chart: Chart | None = None
        self.is_large = False
        self._feeds: dict[str, CurveFeed] = {}
        """By the key of their curve."""
        self._column = column(parent=self)

    def show_points(self, points: TaggedPoints) -> None:
        """Show those of another run."""
        self.points = points
        self._feeds.pop(OWN_CURVE, None)

    def set_chart(self, chart: Chart) -> None:
        self.chart = chart
        chart.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Ignored)
        self._column.addWidget(chart)
        self._column.activate()  # gives it its size before the first drawing

    def update_curves(self, x_kind: str, runs: Sequence[ChartRun], delay_ms: int = 0) -> None:
        """Draw the curve of the first run, and those of the others that have points of this tag."""
        if self.chart is None:
            return
        wanted = {run.run_id: run for run in runs[1:] if self.tag in run.points and not self.is_time_based}
        for key in set(self._feeds) - {OWN_CURVE, *wanted}:
            self.chart.remove_curve(key)
            del self._feeds[key]
        changed = False
        for key, run in {OWN_CURVE: runs[0], **wanted}.items():
            points = self.points if key == OWN_CURVE else run.points
            feed = self._feeds.get(key)
            if feed is None or feed.tags is not points:
                self._feeds[key] = CurveFeed(points, self.tag, self.chart.ensure_curve(key, run.label, run.color))
        if self.is_time_based and x_kind != "wall":
            x_kind = "relative"
        self.chart.set_x_kind(x_kind)
        for feed in self._feeds.values():
            changed = feed.update(x_kind) or changed
        if changed:
            self.chart.schedule_redraw(delay_ms)

    def restyle_curves(self, runs: Sequence[ChartRun]) -> None:
        """Colors or labels have changed."""
        if self.chart is not None:
            for key, run in zip((OWN_CURVE, *(run.run_id for run in runs[1:])), runs, strict=True):
                if key in self._feeds:
                    self.chart.ensure_curve(key, run.label, run.color)


class ChartSection(QWidget):
    """A heading that folds, and the cells below it."""

    def __init__(self, title: str, name: str, on_toggled: Callable[[], None]) -> None:
        super().__init__()
        self.cells: dict[str, ChartCell] = {}
        self._on_toggled = on_toggled
        self.heading = tool_button(name, "mdi6.chevron-down", "", self._toggle, title, is_checkable=True)
        self.heading.setProperty("heading", True)
        self.heading.setChecked(True)
        self.body = QWidget()
        column((self.heading, Qt.AlignmentFlag.AlignLeft), self.body, parent=self, spacing=theme.GAP // 2)

    def _toggle(self) -> None:
        is_open = self.heading.isChecked()
        self.heading.setIcon(theme.icon("mdi6.chevron-down" if is_open else "mdi6.chevron-right"))
        self.body.setVisible(is_open)
        self._on_toggled()

    def arrange(self, width: int, is_shown: Callable[[str], bool]) -> None:
        """Arrange the cells to be shown in rows; an enlarged one takes a row of its own."""
        columns = max(1, (width + theme.GAP) // (MIN_CHART_WIDTH + theme.GAP))
        each = (width - (columns - 1) * theme.GAP) // columns
        top = column = 0
        shown = [self.cells[tag] for tag in sorted(self.cells, key=_sort_key) if is_shown(tag)]
        for cell in self.cells.values():
            cell.setVisible(cell in shown)
        for cell in shown:
            if column and (cell.is_large or column == columns):
                top, column = top + CHART_HEIGHT + theme.GAP, 0
            if cell.is_large:
                cell.setGeometry(QRect(0, top, width, ENLARGED_FACTOR * CHART_HEIGHT))
                top += ENLARGED_FACTOR * CHART_HEIGHT + theme.GAP
            else:
                cell.setGeometry(QRect(column * (each + theme.GAP), top, each, CHART_HEIGHT))
                column += 1
        self.body.setFixedHeight(max(0, top + (CHART_HEIGHT if column else -theme.GAP)))
        self.setVisible(bool(shown))


class ChartGrid(QScrollArea):
    """As many charts side by side as fit. One is created when it scrolls into view, and updated while it is visible."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(f"{name}.grid")
        self._name = name
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)
        self.axis = SharedAxis(self)
        self._time_axis = SharedAxis(self)
        """Of charts that are always by time, such as hardware."""
        self._sections: dict[str, ChartSection] = {}
        self._filter = ""
        self._weight, self._is_log, self._x_kind = 0.0, False, "step"
        self._runs: list[ChartRun] = []
        """The run of the page, and those that are shown next to it."""
        content = QWidget()
        self._column = column(Stretch(), parent=content, margins=(0, 0, theme.GAP, theme.GAP))
        self.setWidget(content)
        self._build_timer = create_timer(self, 0, self._build_next_chart, is_single_shot=True)
        self.verticalScrollBar().valueChanged.connect(lambda _: self._schedule_build())

    # --- what is shown

    def show_runs(self, own: ChartRun, time_based: TaggedPoints, others: Sequence[ChartRun] = ()) -> None:
        """Show the charts of a run: of its tags and those of others, and below them of the tags without steps."""
        is_restyled = [(run.run_id, run.color, run.label) for run in (own, *others)] != [
            (run.run_id, run.color, run.label) for run in self._runs
        ]
        self._runs = [own, *others]
        tags = own.points
        wanted = {tag: (tags, split_tag(tag)[0] or "other", False) for run in self._runs for tag in run.points}
        wanted |= dict.fromkeys(time_based, (time_based, "hardware", True))
        for group, section in self._sections.items():
            for tag in [tag for tag in section.cells if tag not in wanted or wanted[tag][1] != group]:
                section.cells.pop(tag).deleteLater()
        for tag, (source, group, is_timed) in wanted.items():
            section = self._section(group, is_timed)
            if tag not in section.cells:
                section.cells[tag] = ChartCell(tag, source, is_timed, section.body)
            elif section.cells[tag].points is not source:
                section.cells[tag].show_points(source)
        if is_restyled:
            for cell in self._cells():
                cell.restyle_curves(self._runs)
        self.arrange()

    def _section(self, group: str, is_last: bool) -> ChartSection:
        if group not in self._sections:
            section = ChartSection(group, f"{self._name}.group.{group}", self._schedule_build)
            ahead = [name for name in self._sections if is_last or (name < group and name != "hardware")]
            self._sections[group] = section
            self._column.insertWidget(len(ahead), section)
        return self._sections[group]

    def tags(self) -> list[str]:
        return [cell.tag for cell in self._cells()]

    def charts(self) -> list[Chart]:
        """Return the charts that have been created."""
        return [cell.chart for cell in self._cells() if cell.chart is not None]

    def _step_charts(self) -> list[Chart]:
        return [cell.chart for cell in self._cells() if cell.chart is not None and not cell.is_time_based]

    def _cells(self) -> list[ChartCell]:
        return [cell for section in self._sections.values() for cell in section.cells.values()]

    def set_filter(self, text: str) -> None:
        self._filter = text.strip().lower()
        self.arrange()

    def set_smoothing(self, weight: float) -> None:
        self._weight = weight
        for chart in self._step_charts():
            chart.set_smoothing(weight)

    def set_log(self, is_log: bool) -> None:
        self._is_log = is_log
        for chart in self._step_charts():
            chart.set_log(is_log)

    def set_x_kind(self, kind: str) -> None:
        self._x_kind = kind
        self.update_charts()

    def set_linked(self, is_linked: bool) -> None:
        """Whether a zoom in one chart is that of all charts with the same axis."""
        for axis in (self.axis, self._time_axis):
            axis.set_linked(is_linked)

    def reset_zoom(self) -> None:
        for chart in self.charts():
            chart.reset_zoom()

    # --- room

    def arrange(self) -> None:
        width = self.viewport().width() - theme.GAP
        for section in self._sections.values():
            section.arrange(width, lambda tag: all(word in tag.lower() for word in self._filter.split()))
        self._schedule_build()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.arrange()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._schedule_build()

    # --- creating and updating visible charts

    def _visible_cells(self) -> list[ChartCell]:
        """Decide by position: Qt's visible region leaves out what a child covers, and the chart covers its cell."""
        viewport = self.viewport()
        shown = [cell for cell in self._cells() if cell.isVisible()]
        return [
            cell for cell in shown if viewport.rect().intersects(QRect(cell.mapTo(viewport, QPoint()), cell.size()))
        ]

    def _schedule_build(self) -> None:
        if self.isVisible() and not self._build_timer.isActive():
            self._build_timer.start()

    def _build_next_chart(self) -> None:
        """Create one chart at a time, so that the window stays responsive while a page of them is created."""
        cell = next((cell for cell in self._visible_cells() if cell.chart is None), None)
        if cell is None:
            self.update_charts()
            return
        axis = self._time_axis if cell.is_time_based else self.axis
        chart = Chart(split_tag(cell.tag)[1], f"{self._name}.chart.{cell.tag}", axis)
        chart.plot.wheel_needs_ctrl = True
        chart.includes_zero = cell.is_time_based
        chart.set_smoothing(0.0 if cell.is_time_based else self._weight)
        chart.set_log(self._is_log and not cell.is_time_based)
        chart.expand.show()
        chart.expand_requested.connect(lambda: self._toggle_large(cell))
        cell.set_chart(chart)
        cell.update_curves(self._x_kind, self._runs)
        chart.redraw()
        self._build_timer.start()

    def _toggle_large(self, cell: ChartCell) -> None:
        cell.is_large = not cell.is_large
        self.arrange()
        QTimer.singleShot(0, self, lambda: self.ensureWidgetVisible(cell))

    def update_charts(self) -> None:
        """Update the visible charts; the others are updated when they scroll into view."""
        if self.isVisible():
            for number, cell in enumerate(self._visible_cells()):
                cell.update_curves(self._x_kind, self._runs, number * REDRAW_STAGGER_MS)


# --- The Analytics tab: all curves of a run and of the ticked ones, and below them its use of the hardware.


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
