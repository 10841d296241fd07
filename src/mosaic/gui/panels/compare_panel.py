"""The compare page: curves of several runs, statistics of their groups, and settings that differ."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QBoxLayout, QComboBox, QHBoxLayout, QLabel, QSizePolicy, QWidget

from mosaic.contracts.metric_tags import RETURN_TAG
from mosaic.contracts.views import RunView
from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.models.curve_model import X_KINDS, ChartCurve, CurveFeed
from mosaic.gui.models.series import GrowingPoints, RunSeries
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.chart import Chart, SmoothingSlider
from mosaic.gui.views.replay_pair import ReplayPair
from mosaic.gui.views.run_chips import RunChips
from mosaic.gui.views.tables import ReadOnlyTable, show_probabilities, show_results, show_settings
from mosaic.gui.views.video_player import VideoPair
from mosaic.gui.workbench import Workbench
from mosaic.statistics.comparison import (
    NO_GROUPING,
    ComparedRun,
    Comparison,
    compare,
    differing_settings,
    grouping_keys,
    strip_common_parts,
    suggest_grouping_key,
)
from mosaic.submission.run_payloads import comparison_settings, grouping_fields

MAX_RUNS = 50
"""Fewer than the runs whose points the workbench keeps."""
REFRESH_MS = 1000
LOADING = "Loading the points…"
DEFAULT_WEIGHT = 0.9
GROUP_KEY_TITLES = {NO_GROUPING: "each run", "algo": "algorithm", "env_id": "environment"}


class WrappingRow(QWidget):
    """Two rows next to each other, or one below the other where the page is narrow."""

    def __init__(self, first: QHBoxLayout, second: QHBoxLayout) -> None:
        super().__init__()
        self._rows = (first, second)
        self._layout = ui.row(first, (second, 1), parent=self)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        is_narrow = self.width() < theme.GAP + sum(row.minimumSize().width() for row in self._rows)
        self._layout.setDirection(QBoxLayout.Direction.TopToBottom if is_narrow else QBoxLayout.Direction.LeftToRight)


class ComparePage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._series: dict[str, RunSeries] = {}
        """The runs of the comparison, in order, with their points."""
        self._settings: dict[str, dict[str, Any]] = {}
        self._needs_refresh = False
        self._is_busy = False
        self._build()
        self._timer = ui.create_timer(self, REFRESH_MS, self._refresh_if_due, is_single_shot=True)
        workbench.comparison_requested.connect(self._on_comparison_requested)
        workbench.runs.reset.connect(self._restore_runs)
        workbench.runs.removed.connect(self._on_runs_removed)
        workbench.marks_changed.connect(lambda _: self._update_buttons())
        workbench.selection_changed.connect(lambda _: self._update_buttons())
        self._refresh_runs()

    # --- building

    def _build(self) -> None:
        self.add_button = ui.button(
            "Add chosen runs",
            "compare.add",
            self.add_target_runs,
            "Put the runs that are marked in the list into the comparison",
        )
        self.clear_button = ui.button("Clear", "compare.clear", lambda: self.show_runs([]))
        self.chips = RunChips("compare.runs")
        self.chips.removed.connect(lambda run_id: self._on_runs_removed({run_id}))
        self.chart = Chart("", "compare.chart", has_legend=True)
        self.chart.set_empty_text(LOADING)
        self.chart.setMinimumHeight(160)
        self.results = ReadOnlyTable("compare.results")
        self.better = ReadOnlyTable("compare.better")
        self.diff = ReadOnlyTable("compare.settings")
        self.videos = VideoPair(self._workbench)
        self.replays = ReplayPair(self._workbench)
        self.tables = ui.tabs(
            "compare.tables",
            ("Results", self.results),
            ("Probability of improvement", self.better),
            ("Differing settings", self.diff),
            ("Videos", self.videos),
            ("Replays", self.replays),
        )
        self.tables.setMinimumHeight(110)
        split = ui.splitter(Qt.Orientation.Vertical, self.chart, self.tables, sizes=[600, 300], stretch=1)
        split.setStretchFactor(0, 2)
        self._start = ui.accent_button("Compare chosen runs", "compare.start", self.add_target_runs)
        empty = ui.EmptyState(
            "No runs to compare yet",
            "Mark some in the list of runs (Ctrl or Shift and a click marks several), then compare them here.",
            self._start,
        )
        toolbar = self._build_toolbar()
        self.tables.currentChanged.connect(lambda _: self._show_chart(toolbar))
        self._stack = ui.stack(empty, ui.widget_column(self.chips, toolbar, (split, 1)))
        head = ui.row(ui.heading_label("Compare"), ui.Stretch(), self.add_button, self.clear_button)
        ui.column(head, (self._stack, 1), parent=self, margins=ui.PAGE_MARGINS)

    def _show_chart(self, toolbar: QWidget) -> None:
        """Two replays need the whole page; everything else is read together with the curves."""
        is_shown = self.tables.currentWidget() is not self.replays
        self.chart.setVisible(is_shown)
        toolbar.setVisible(is_shown)

    def _build_toolbar(self) -> WrappingRow:
        self.tag = self._create_choice("compare.tag", 200)
        self.key = self._create_choice("compare.key", 140)
        self.key.setToolTip(
            "Runs with the same value of this setting are drawn as one: their mean and its 95 % interval"
        )
        self.x_axis = self._create_choice("compare.x", 0)
        for kind in ("step", "relative", "episode"):
            self.x_axis.addItem(X_KINDS[kind], kind)
        weight = self._workbench.settings.get("compare_smoothing", DEFAULT_WEIGHT)
        self.smoothing = SmoothingSlider("compare.smoothing", weight)
        self.smoothing.changed.connect(self._smooth)
        self.log_scale = ui.check_box("Log y", "compare.log", self.chart.set_log)
        return WrappingRow(
            ui.row(QLabel("Tag"), self.tag, theme.GAP, QLabel("Group by"), self.key, theme.GAP, ui.Stretch()),
            ui.row(self.x_axis, theme.GAP, self.smoothing, theme.GAP, self.log_scale, ui.Stretch()),
        )

    def _create_choice(self, name: str, width: int) -> QComboBox:
        choice = ui.combo_box(name)
        choice.setMinimumWidth(width)
        # The user's choice stays when the entries change; a default may change.
        choice.activated.connect(lambda _: choice.setProperty("chosen", choice.currentData()))
        choice.currentIndexChanged.connect(lambda _: self._schedule_refresh())
        return choice

    # --- which runs

    def _on_comparison_requested(self, run_ids: list[str]) -> None:
        self.show_runs(run_ids)
        self._workbench.page_requested.emit("compare")

    def show_runs(self, run_ids: list[str]) -> None:
        """Compares these, in this order."""
        if len(run_ids) > MAX_RUNS:
            self._workbench.show_message(
                f"{len(run_ids)} runs are too many to compare; the first {MAX_RUNS} are shown.", "warning"
            )
            run_ids = run_ids[:MAX_RUNS]
        for run_id in set(self._series) - set(run_ids):
            self._series[run_id].remove_viewer(self)
        self._series = {run_id: self._workbench.series(run_id) for run_id in run_ids}
        for series in self._series.values():
            series.add_viewer(self, self._on_points_changed)
        missing = [run_id for run_id in run_ids if run_id not in self._settings]
        if missing:
            self._workbench.ask(partial(_read_settings, missing), self._on_settings_loaded, self)
        self._workbench.settings.put_for_workspace("compare", run_ids)
        self._refresh_runs()

    def run_ids(self) -> list[str]:
        return list(self._series)

    def add_target_runs(self) -> None:
        """Adds the marked runs, else the selected one."""
        self.show_runs(list(dict.fromkeys([*self._series, *(view.run_id for view in self._workbench.target_runs())])))

    def _update_buttons(self) -> None:
        targets = {view.run_id for view in self._workbench.target_runs()}
        self.add_button.setEnabled(bool(targets - set(self._series)))
        self._start.setEnabled(bool(targets))

    def _restore_runs(self) -> None:
        """Compares the runs of the last session again, once the list of runs is known."""
        saved = self._workbench.settings.get_for_workspace("compare", [])
        self.show_runs([run_id for run_id in saved if self._workbench.runs.get(run_id)])

    def _on_runs_removed(self, run_ids: set[str]) -> None:
        if run_ids.intersection(self._series):
            self.show_runs([run_id for run_id in self._series if run_id not in run_ids])

    def _on_settings_loaded(self, settings: dict[str, dict[str, Any]]) -> None:
        self._settings |= settings
        self._list_keys()
        self._fill_diff()
        self._schedule_refresh()

    def _views(self) -> list[RunView]:
        return [self._workbench.runs.get_or_placeholder(run_id) for run_id in self._series]

    def _refresh_runs(self) -> None:
        self._stack.setCurrentIndex(1 if self._series else 0)
        self.clear_button.setEnabled(bool(self._series))
        self.chips.show_runs(self._views())
        self.videos.show_runs(self._views())
        self.replays.show_runs(self._views())
        self._update_buttons()
        self._list_tags()
        self._list_keys()
        self._fill_diff()
        self._schedule_refresh()

    def _list_tags(self) -> None:
        tags = sorted({tag for series in self._series.values() for tag in series.tags}, key=str.lower)
        _refill_choices(self.tag, {tag: tag for tag in tags}, RETURN_TAG)

    def _list_keys(self) -> None:
        settings = [self._settings_of(run_id) for run_id in self._series]
        titles = {key: GROUP_KEY_TITLES.get(key, key) for key in (NO_GROUPING, *grouping_keys(settings))}
        _refill_choices(self.key, titles, suggest_grouping_key(settings))

    def _settings_of(self, run_id: str) -> dict[str, Any]:
        view = self._workbench.runs.get_or_placeholder(run_id)
        return grouping_fields(view) | self._settings.get(run_id, {})

    def _fill_diff(self) -> None:
        settings = differing_settings([self._settings_of(run_id) for run_id in self._series])
        show_settings(self.diff, settings, self._views())

    # --- comparing

    def _on_points_changed(self) -> None:
        known = {self.tag.itemData(number) for number in range(self.tag.count())}
        if any(tag not in known for series in self._series.values() for tag in series.tags):
            self._list_tags()
        self._needs_refresh = True
        if self.isVisible() and not self._timer.isActive():
            self._timer.start(REFRESH_MS if self.chart.curves() else 0)

    def _smooth(self, weight: float) -> None:
        self._workbench.settings.put("compare_smoothing", weight)
        self._schedule_refresh()

    def _schedule_refresh(self) -> None:
        self._needs_refresh = True
        if self.isVisible():
            self._timer.start(0)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        for series in self._series.values():
            series.refresh()
        self._timer.start(0)

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()

    def _refresh_if_due(self) -> None:
        if not self._needs_refresh or self._is_busy or not self._series:
            return
        self._needs_refresh, self._is_busy = False, True
        tag, key = str(self.tag.currentData() or RETURN_TAG), self.key.currentData() or NO_GROUPING
        axis, weight = str(self.x_axis.currentData()), self.smoothing.weight
        snapshots = [
            (
                self._workbench.runs.get_or_placeholder(run_id),
                self._settings_of(run_id),
                {name: points.snapshot() for name, points in series.tags.items()},
            )
            for run_id, series in self._series.items()
        ]

        def work() -> Comparison:
            return compare([_comparison_entry(*snapshot, tag, axis) for snapshot in snapshots], key, weight)

        self._workbench.bridge.run_in_background(
            work, partial(self._show_comparison, tag, key), self._on_comparison_failed, self
        )

    def _on_comparison_failed(self, error: Exception) -> None:
        self._is_busy = False
        self._workbench.show_error(error)

    def _show_comparison(self, tag: str, key: str, comparison: Comparison) -> None:
        is_loading = not all(series.is_loaded for series in self._series.values())
        self.chart.set_empty_text(LOADING if is_loading else "None of these runs has points of this tag")
        self._is_busy = False
        self.chart.set_title(tag)
        self.chart.set_x_kind(str(self.x_axis.currentData()))
        colors = _group_colors(comparison, key)
        short = strip_common_parts([group.name for group in comparison.groups])
        for name in set(self.chart.curves()) - set(colors):
            self.chart.remove_curve(name)
        for group in comparison.groups:
            color, is_dashed = colors[group.name]
            label = short[group.name] if key == NO_GROUPING else f"{group.name} ({count_label(len(group.run_ids))})"
            curve = self.chart.ensure_curve(group.name, label, color, is_dashed)
            curve.replace(comparison.grid, group.curve.mean, group.curve.low, group.curve.high)
        self.chart.order_curves([group.name for group in comparison.groups])
        self.chart.schedule_redraw()
        show_results(self.results, comparison, {name: color for name, (color, _) in colors.items()})
        show_probabilities(self.better, comparison)
        if self._needs_refresh:
            self._timer.start(REFRESH_MS)


def _comparison_entry(
    view: RunView, settings: dict[str, Any], tags: dict[str, GrowingPoints], tag: str, axis: str
) -> ComparedRun:
    curve = ChartCurve()
    CurveFeed(tags, tag, curve).update(axis)
    returns = tags.get(RETURN_TAG)
    values = returns.value if returns is not None else np.empty(0)
    return ComparedRun(view.run_id, run_title(view), settings, curve.x, curve.y, values)


def _read_settings(run_ids: list[str], trainer: Any) -> dict[str, dict[str, Any]]:
    return {run_id: comparison_settings(None, trainer.config(run_id)) for run_id in run_ids}


def count_label(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"


def _refill_choices(choice: QComboBox, titles: dict[str, str], default: str) -> None:
    """Replaces the entries; the chosen one stays selected if it is still there."""
    if list(titles) == [choice.itemData(number) for number in range(choice.count())]:
        return
    chosen = choice.property("chosen")
    selected = next((value for value in (chosen, default, *titles) if value in titles), None)
    ui.set_choices(choice, ((title, value) for value, title in titles.items()), selected)


def _group_colors(comparison: Comparison, key: str) -> dict[str, tuple[QColor, bool]]:
    """A run keeps its own color, dashed where another has it already; groups take the cycle's in turn."""
    colors: dict[str, tuple[QColor, bool]] = {}
    names = sorted(group.name for group in comparison.groups)
    for group in comparison.groups:
        if key == NO_GROUPING:
            color = theme.run_color(group.run_ids[0])
        else:
            color = QColor(theme.RUN_COLORS[names.index(group.name) % len(theme.RUN_COLORS)])
        colors[group.name] = color, color in [other for other, _ in colors.values()]
    return colors
