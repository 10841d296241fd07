"""The compare page: curves of several runs, statistics of their groups, and settings that differ."""

from __future__ import annotations

from functools import partial
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QCheckBox, QComboBox, QWidget

from mosaic.base.comparison import NO_GROUPING, differing_settings, grouping_keys, suggest_grouping_key
from mosaic.base.formatting import count_noun
from mosaic.base.run_payloads import comparison_settings, grouping_fields
from mosaic.contracts.names import RETURN_TAG
from mosaic.contracts.views import RunView
from mosaic.features.experiments.window_charts import group_styles, show_groups
from mosaic.features.experiments.window_model import (
    ComparedRuns,
    ComparisonChoice,
    RunSnapshot,
    compare_snapshots,
    needed_tags,
)
from mosaic.features.replay.window_pair import ReplayPair
from mosaic.features.runs.window_videos import VideoPair
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import run_actions as handlers
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.chart import Chart, SmoothingSlider
from mosaic.window.curves import X_KINDS, RunSeries
from mosaic.window.run_chips import RunChips
from mosaic.window.runs import short_labels
from mosaic.window.tables import (
    MAX_DISTINCT,
    MIN_ROWS,
    ReadOnlyTable,
    RowsTable,
    show_probabilities,
    show_results,
    show_settings,
)
from mosaic.window.widgets import WrappingRow
from mosaic.window.workbench import Workbench

REFRESH_MS = 1000
MIN_CHART_HEIGHT = 160
LOADING = "Loading the points…"
DEFAULT_WEIGHT = 0.9
GROUP_KEY_TITLES = {NO_GROUPING: "each run", "algo": "algorithm", "env_id": "environment"}


class ComparePage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._series: dict[str, RunSeries] = {}
        """The runs of the comparison, in order, with their points."""
        self._settings: dict[str, dict[str, Any]] = {}
        self._compared: ComparedRuns | None = None
        self._needs_refresh = False
        self._is_busy = False
        self._build()
        self._timer = ui.create_timer(self, REFRESH_MS, self._refresh_if_due, is_single_shot=True)
        workbench.comparison_requested.connect(self._on_comparison_requested)
        workbench.runs.reset.connect(self._restore_runs)
        workbench.runs.removed.connect(self._on_runs_removed)
        workbench.runs.changed.connect(self._on_runs_changed)
        workbench.marks_changed.connect(lambda _: self._update_buttons())
        workbench.selection_changed.connect(lambda _: self._update_buttons())
        workbench.ticks.changed.connect(self._update_buttons)
        self._refresh_runs()

    # --- building

    def _build(self) -> None:
        self.add_button = ui.button(
            "Add chosen runs",
            "compare.add",
            self.add_chosen_runs,
            "Put the runs that are marked or ticked in the list into the comparison",
        )
        self.clear_button = ui.button("Clear", "compare.clear", lambda: self._remove_runs(self.run_ids()))
        self.chips = RunChips("compare.runs")
        self.chips.removed.connect(lambda run_id: self._remove_runs([run_id]))
        self.chart = Chart("", "compare.chart", has_legend=True)
        self.chart.set_empty_text(LOADING)
        self.chart.setMinimumHeight(MIN_CHART_HEIGHT)
        self.results = RowsTable("compare.results", min_rows=MIN_ROWS)
        self.results.setToolTip("A double click marks the runs of a row in the list of runs")
        self.results.opened.connect(lambda number: handlers.show_runs(self._workbench, self._row_views(number)))
        self.results.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        self.results.addAction(theme.icon("mdi6.close"), "Remove from the comparison", self._remove_selected_row)
        self.better = ReadOnlyTable("compare.better", min_rows=MIN_ROWS)
        self.diff = ReadOnlyTable("compare.settings", min_rows=MIN_ROWS)
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
        self.notice = ui.NoteLabel("compare.notice")
        below = ui.widget_column(self.notice, (self.tables, 1), spacing=theme.GAP // 2)
        split = ui.splitter(
            Qt.Orientation.Vertical, self.chart, below, sizes=[600, 300], stretch=1, name="compare.split"
        )
        split.setStretchFactor(0, 2)
        ui.remember_splitter(split, self._workbench.settings)
        self._start = ui.accent_button("Compare chosen runs", "compare.start", self.add_chosen_runs)
        empty = ui.EmptyState(
            "No runs to compare yet",
            "Tick some in the list of runs, or mark them (Ctrl or Shift and a click), then compare them here.",
            self._start,
        )
        toolbar = self._build_toolbar()
        self.tables.currentChanged.connect(lambda _: self._show_chart(toolbar))
        self._stack = ui.stack(empty, ui.widget_column(self.chips, toolbar, (split, 1)))
        self.count = ui.PlainLabel(name="compare.count")
        self.count.setProperty("muted", True)
        head = ui.row(ui.heading_label("Compare"), self.count, ui.Stretch(), self.add_button, self.clear_button)
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
        settings = self._workbench.settings
        self.smoothing = SmoothingSlider("compare.smoothing", settings.get("compare_smoothing", DEFAULT_WEIGHT))
        self.smoothing.changed.connect(self._smooth)
        self.log_scale = ui.check_box("Log y", "compare.log", self.chart.set_log)
        self.common_step = self._create_option(
            "Common step",
            "compare.common_step",
            "Compare all runs at the largest step that all of an environment have reached; later points are left out",
        )
        self.run_lines = self._create_option(
            "Individual runs", "compare.run_lines", "Draw each run as a thin line behind the mean of its group"
        )
        shape = ui.row(self.x_axis, theme.GAP, self.smoothing, theme.GAP, self.log_scale, theme.GAP, ui.Stretch())
        options = ui.row(self.common_step, theme.GAP, self.run_lines, ui.Stretch())
        tag, key = ui.PlainLabel("Tag"), ui.PlainLabel("Group by")
        return WrappingRow(
            [
                ui.row(tag, self.tag, theme.GAP, key, self.key, theme.GAP, ui.Stretch()),
                (WrappingRow([shape, (options, 1)]), 1),
            ]
        )

    def _create_option(self, text: str, name: str, tip: str) -> QCheckBox:
        """A box whose state is remembered."""
        settings, key = self._workbench.settings, name.replace(".", "_")
        box = ui.check_box(text, name, lambda is_on: settings.put(key, is_on), tip)
        box.setChecked(bool(settings.get(key, False)))
        box.toggled.connect(lambda _: self._schedule_refresh())
        return box

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
        if self.tables.currentWidget() is self.replays and not any(view.has_recording for view in self._views()):
            self.tables.setCurrentIndex(0)  # the tab of an earlier comparison, which would hide the curves
        self._workbench.page_requested.emit("compare")

    def show_runs(self, run_ids: list[str]) -> None:
        """Compares these, in this order."""
        for run_id in set(self._series) - set(run_ids):
            self._series[run_id].remove_viewer(self)
        self._series = {}
        for run_id in run_ids:
            self._series[run_id] = self._workbench.series(run_id)
            # Before the next one is created: series without viewers are removed where there are too many.
            self._series[run_id].add_viewer(self, self._on_points_changed)
        self._workbench.separate_colors(run_ids)
        missing = [run_id for run_id in run_ids if run_id not in self._settings]
        if missing:
            self._workbench.ask(partial(_read_settings, missing), self._on_settings_loaded, self)
        self._workbench.settings.put_for_workspace("compare", run_ids)
        self._refresh_runs()

    def run_ids(self) -> list[str]:
        return list(self._series)

    def add_chosen_runs(self) -> None:
        chosen = (view.run_id for view in self._workbench.runs_to_compare())
        self.show_runs(list(dict.fromkeys([*self._series, *chosen])))

    def _update_buttons(self) -> None:
        chosen = {view.run_id for view in self._workbench.runs_to_compare()}
        self.add_button.setEnabled(bool(chosen - set(self._series)))
        self._start.setEnabled(bool(chosen))

    def _restore_runs(self) -> None:
        """Compares the runs of the last session again, once the list of runs is known."""
        saved = self._workbench.settings.get_for_workspace("compare", [])
        self.show_runs([run_id for run_id in saved if self._workbench.runs.get(run_id)])

    def _on_runs_removed(self, run_ids: set[str]) -> None:
        if run_ids.intersection(self._series):
            self.show_runs([run_id for run_id in self._series if run_id not in run_ids])

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        """One may have ended, without new points."""
        if not run_ids.isdisjoint(self._series):
            self._refresh_later()

    def _row_views(self, number: int) -> list[RunView]:
        """The runs of a row of the results."""
        run_ids = self._compared.comparison.groups[number].run_ids if self._compared is not None else []
        return [self._workbench.runs.get_or_placeholder(run_id) for run_id in run_ids]

    def _remove_selected_row(self) -> None:
        if (number := self.results.selected_row()) is not None:
            self._remove_runs([view.run_id for view in self._row_views(number)])

    def _remove_runs(self, run_ids: list[str]) -> None:
        """Take runs out of the comparison, on request."""
        before = self.run_ids()
        self._on_runs_removed(set(run_ids))
        count = count_noun(len(run_ids), "run")
        text, title = f"Took {count} out of the comparison.", f"remove {count} from the comparison"
        self._workbench.offer_undo(text, title, partial(self._put_back, before))

    def _put_back(self, run_ids: list[str]) -> None:
        known = [run_id for run_id in run_ids if self._workbench.runs.get(run_id) is not None]
        self.show_runs(list(dict.fromkeys([*known, *self._series])))

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
        number = len(self._series)
        self.count.setText(count_noun(number, "run") if number else "")
        # Many are removed in the menu of the table.
        views = self._views() if number <= MAX_DISTINCT else []
        self.chips.show_runs(views, short_labels(views))
        self.chips.setVisible(number <= MAX_DISTINCT)
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
        _refill_choices(self.key, titles, suggest_grouping_key(settings, MAX_DISTINCT))

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
        self._refresh_later()

    def _refresh_later(self) -> None:
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
        choice = ComparisonChoice(
            str(self.tag.currentData() or RETURN_TAG),
            self.key.currentData() or NO_GROUPING,
            str(self.x_axis.currentData()),
            self.smoothing.weight,
            self.common_step.isChecked(),
        )
        snapshots = [
            RunSnapshot(
                self._workbench.runs.get_or_placeholder(run_id),
                self._settings_of(run_id),
                needed_tags(choice, series.tags),
            )
            for run_id, series in self._series.items()
        ]
        loaded = sum(series.is_loaded for series in self._series.values())
        self._workbench.bridge.run_in_background(
            partial(compare_snapshots, snapshots, choice),
            partial(self._show_comparison, loaded, len(snapshots)),
            self._on_comparison_failed,
            self,
        )

    def _on_comparison_failed(self, error: Exception) -> None:
        self._is_busy = False
        self._workbench.show_error(error)

    def _show_comparison(self, loaded: int, number: int, compared: ComparedRuns) -> None:
        """`loaded` of its `number` runs had their points when the comparison began."""
        is_loading = loaded < number
        self.chart.set_empty_text(LOADING if is_loading else "None of these runs has points of this tag")
        self._is_busy = False
        self._compared = compared
        choice, comparison = compared.choice, compared.comparison
        self.chart.set_title(choice.tag)
        self.chart.set_x_kind(choice.x_kind)
        self.run_lines.setEnabled(choice.key != NO_GROUPING)
        styles = group_styles(comparison, choice.key)
        show_groups(
            self.chart,
            comparison.grid,
            compared.named_groups,
            styles,
            compared.labels(),
            compared.other_groups,
            self.run_lines.isChecked(),
        )
        progress = f"The points of {loaded:,} of {number:,} runs are loaded."
        notes = [progress] if is_loading else compared.notes(self.chart.format_x)
        self.notice.show_text(" ".join(notes))
        show_results(self.results, comparison, {name: color for name, (color, _) in styles.items()})
        show_probabilities(self.better, comparison)
        if self._needs_refresh:
            self._timer.start(0 if is_loading else REFRESH_MS)


def _read_settings(run_ids: list[str], trainer: TrainerClient) -> dict[str, dict[str, Any]]:
    return {run_id: comparison_settings(None, trainer.config(run_id)) for run_id in run_ids}


def _refill_choices(choice: QComboBox, titles: dict[str, str], default: str) -> None:
    """Replaces the entries; the chosen one stays selected if it is still there."""
    if list(titles) == [choice.itemData(number) for number in range(choice.count())]:
        return
    chosen = choice.property("chosen")
    selected = next((value for value in (chosen, default, *titles) if value in titles), None)
    ui.set_choices(choice, ((title, value) for value, title in titles.items()), selected)
