"""One group of runs: its progress, its curves and results by setting, and what can be done with all of its runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QProgressBar, QWidget

from mosaic.api.experiment_state import COUNTED, SettingRow
from mosaic.api.figures import FigureKind, save_figure
from mosaic.api.group_comparison import ComparisonResult
from mosaic.client import TrainerClient
from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.metric_tags import RETURN_TAG
from mosaic.contracts.views import RunView
from mosaic.formatting import count_noun, format_si_number, format_size
from mosaic.gui import run_action_handlers as handlers
from mosaic.gui import theme
from mosaic.gui.models.group_points import GroupPoints
from mosaic.gui.models.groups import GroupState, compare_group, group_state, label_runs, setting_rows
from mosaic.gui.panels.group_actions import GroupActions
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.chart import LinkBox, SmoothingSlider
from mosaic.gui.views.group_curves import Style
from mosaic.gui.views.setting_charts import MAX_CURVES, SettingCharts, setting_styles
from mosaic.gui.views.tables import Cell, RowsTable, color_icon, format_interval
from mosaic.gui.views.wrapping_row import WrappingRow
from mosaic.gui.workbench import Workbench
from mosaic.statistics.comparison import RunGroup, Settings
from mosaic.submission.run_payloads import comparison_settings, grouping_fields

STATE_REFRESH_MS = 300
STATE_PAUSE_FACTOR = 20
"""How many times as long as a refresh took the next one waits at least: a group may have a thousand runs."""
MIN_COMPARE_PAUSE_MS = 1000
PAUSE_FACTOR = 5
"""How many times as long as a comparison took the next one waits."""
MAX_READ_CONFIGS = 200
MAX_TAG_WIDTH = 320
COLUMN_TIPS = {
    "mean": "Mean over the runs of the mean of their last 100 values, with Student's 95 % interval",
    "iqm": "Interquartile mean of the same, with a bootstrap interval",
}


class GroupPage(QWidget):
    left = Signal()
    """The user goes back to the list of groups."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._state = GroupState("", ())
        self._labels: dict[str, str] = {}
        self._settings: dict[str, Settings] = {}
        """Of runs that are not part of an experiment."""
        self._rows: list[SettingRow] = []
        self._result: ComparisonResult | None = None
        self._is_comparing = False
        self._is_comparison_due = False
        self._points = GroupPoints(workbench.bridge, self)
        self._points.changed.connect(self._schedule_comparison)
        self._build()
        self._state_timer = ui.create_timer(self, STATE_REFRESH_MS, self._refresh, is_single_shot=True)
        self._compare_timer = ui.create_timer(self, 0, self._compare_if_due, is_single_shot=True)
        workbench.runs.changed.connect(self._on_runs_changed)
        workbench.runs.removed.connect(self._on_runs_changed)
        workbench.runs.reset.connect(lambda: self._state_timer.start())

    # --- building

    def _build(self) -> None:
        self._back = ui.tool_button("group.back", "mdi6.arrow-left", "All experiments (Esc)", self.left.emit)
        self._title = ui.with_object_name(ui.ElidedLabel(), "group.title")
        self._title.setProperty("heading", True)
        self._line = ui.with_object_name(ui.ElidedLabel(), "group.line")
        self._progress = ui.with_object_name(QProgressBar(), "group.progress")
        self._progress.setProperty("thin", True)
        self._progress.setTextVisible(False)
        self._progress.setRange(0, 1000)
        self._note = ui.NoteLabel("group.note")
        self.buttons = GroupActions(self._workbench)
        self.buttons.figure_requested.connect(self.write_figure)
        self.charts = SettingCharts("group.charts")
        self.table = RowsTable("group.settings", text_columns=(0, 1))
        self.table.setMinimumHeight(96)
        self.table.setToolTip("A double click marks the runs of a row in the list of runs")
        self.table.opened.connect(self._mark_row)
        split = ui.splitter(
            Qt.Orientation.Vertical, self.charts, self.table, sizes=[420, 220], stretch=0, name="group.split"
        )
        ui.remember_splitter(split, self._workbench.settings)
        ui.column(
            ui.row(self._back, self._title, theme.GAP, (self._line, 1)),
            self._progress,
            self.buttons,
            self._build_toolbar(),
            (split, 1),
            self._note,
            parent=self,
        )

    def _build_toolbar(self) -> QWidget:
        self.tag = ui.combo_box("group.tag", [(RETURN_TAG, RETURN_TAG)], "The metric that is drawn and compared")
        self.tag.setMinimumWidth(self.tag.fontMetrics().horizontalAdvance(RETURN_TAG) + 48)
        self.tag.setMaximumWidth(MAX_TAG_WIDTH)
        self.tag.currentIndexChanged.connect(lambda _: self._on_tag_changed())
        weight = self._workbench.settings.get("compare_smoothing", 0.9)
        self.smoothing = SmoothingSlider("group.smoothing", weight)
        self.smoothing.changed.connect(self._on_smoothing_changed)
        self._log_scale = ui.check_box("Log y", "group.log", self.charts.set_log)
        self._link = LinkBox("group.link", self._workbench.settings, self.charts.axis.set_linked)
        axes = ui.row(self._log_scale, theme.GAP, self._link, ui.Stretch())
        return WrappingRow([ui.row((self.tag, 3), theme.GAP, self.smoothing, theme.GAP), (axes, 1)])

    # --- which group

    @property
    def group(self) -> str:
        return self._state.name

    def show_group(self, name: str) -> None:
        if name != self._state.name:
            self._state, self._labels, self._settings, self._rows = GroupState(name, ()), {}, {}, []
            self._result = None
            self.table.clearSelection()
            self.charts.clear()
            self.charts.set_empty_text("Loading the points…")
            ui.set_choices(self.tag, [(RETURN_TAG, RETURN_TAG)], RETURN_TAG)
            self.buttons.find_sweep(name)
        self._refresh()
        self._read_tags()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        if not self._state.name or not self.isVisible() or self._state_timer.isActive():
            return
        known = {view.run_id for view in (*self._state.views, *self._state.superseded)}
        changed = map(self._workbench.runs.get, run_ids)
        if known & run_ids or any(view is not None and view.group == self._state.name for view in changed):
            self._state_timer.start()

    def _refresh(self) -> None:
        """Show the state of the runs; the comparison follows when it was computed."""
        if not self._state.name:
            return
        started_at = time.monotonic()
        self._state = group_state(self._state.name, self._workbench.runs.all())
        if not self._state.views:
            self.left.emit()
            return
        self._read_settings()
        self._labels = label_runs(self._state.views, self._settings)
        self._rows = setting_rows(self._state.views, self._labels)
        self._points.show_runs([view.run_id for view in self._state.views], str(self.tag.currentData() or RETURN_TAG))
        self.charts.show_environments(list(dict.fromkeys(row.environment for row in self._rows)))
        self._show_state()
        self._fill_table()
        self._schedule_comparison()
        took_ms = 1000 * (time.monotonic() - started_at)
        self._state_timer.setInterval(max(STATE_REFRESH_MS, round(STATE_PAUSE_FACTOR * took_ms)))

    def _read_settings(self) -> None:
        """Read the configs of runs that no experiment names, to find what separates them."""
        others = [view for view in self._state.views if view.experiment is None]
        missing = [view for view in others if view.run_id not in self._settings]
        for view in missing:
            self._settings[view.run_id] = grouping_fields(view)
        if missing:
            self._workbench.ask(partial(_load_settings, missing[:MAX_READ_CONFIGS]), self._on_settings_loaded, self)

    def _on_settings_loaded(self, settings: dict[str, Settings]) -> None:
        self._settings |= settings
        self._refresh()

    def _read_tags(self) -> None:
        """List the metrics of a run that has some."""
        views = [view for view in self._state.views if view.global_step]
        if views and self.tag.count() < 2:
            name, run_id = self._state.name, views[-1].run_id
            self._workbench.ask(
                lambda trainer: sorted({part.tag for part in trainer.metrics(run_id, last_only=True)}),
                partial(self._show_tags, name),
                self,
            )

    def _show_tags(self, name: str, tags: Sequence[str]) -> None:
        if name == self._state.name and tags:
            every = dict.fromkeys((RETURN_TAG, *tags))
            ui.set_choices(self.tag, [(tag, tag) for tag in every], self.tag.currentData() or RETURN_TAG)

    def _on_tag_changed(self) -> None:
        self._result = None
        self.charts.clear()
        self.charts.set_empty_text("Loading the points…")
        self._refresh()

    def _on_smoothing_changed(self, weight: float) -> None:
        self._workbench.settings.put("compare_smoothing", weight)
        self._schedule_comparison()

    # --- state

    def _show_state(self) -> None:
        state = self._state
        self._title.setText(state.name)
        self._title.setToolTip(state.name)
        self._line.setText(state.line)
        self._line.setToolTip(state.line)
        self._progress.setValue(round(1000 * state.ended_share))
        self.buttons.show_state(state, self._result is not None)
        self._show_note()

    def _show_note(self) -> None:
        self._note.show_text(self._describe_left_out())

    def _describe_left_out(self) -> str:
        notes = []
        if replaced := len(self._state.superseded):
            runs = count_noun(replaced, "run")
            notes.append(f"{runs} with earlier settings or attempts {'is' if replaced == 1 else 'are'} not counted.")
        settings = len({row.setting for row in self._rows})
        if settings > MAX_CURVES:
            notes.append(f"The charts show the best {MAX_CURVES} of {settings} settings.")
        if any(group.complete_until is not None for group in self._scored_groups().values()):
            notes.append("A dotted line is the mean of the runs that are left, where others have not come that far.")
        return " ".join(notes)

    def _fill_table(self) -> None:
        styles = self._styles()
        shown = [name for name in COUNTED if name != "done" and any(row.counts[name] for row in self._rows)]
        titles: list[str | Cell] = ["Setting", "Environment", "Done", *(name.capitalize() for name in shown), "Steps"]
        titles += [Cell("Mean [95 %]", COLUMN_TIPS["mean"]), Cell("IQM [95 %]", COLUMN_TIPS["iqm"])]
        scored = self._scored_groups()
        rows: list[list[str | Cell]] = []
        for row in self._rows:
            counts, group = row.counts, scored.get((row.environment, row.setting))
            steps = row.total_steps
            cells: list[str | Cell] = [
                Cell(row.setting, icon=color_icon(styles[row.setting][0].name())),
                row.environment,
                f"{counts['done']} of {len(row.statuses)}",
                *(str(counts[name]) if counts[name] else "" for name in shown),
                Cell(format_si_number(steps) if steps else "", f"{steps:,}"),
                format_interval(group.final_return) if group else "–",
                format_interval(group.iqm) if group else "–",
            ]
            rows.append(cells)
        self.table.show_rows(titles, rows)

    def _scored_groups(self) -> Mapping[tuple[str, str], RunGroup]:
        found = self._result.scored_groups if self._result is not None else []
        return {(environment, group.name): group for environment, group in found}

    def _styles(self) -> dict[str, Style]:
        return setting_styles([row.setting for row in self._rows])

    # --- comparing

    def _schedule_comparison(self) -> None:
        self._is_comparison_due = True
        if self.isVisible() and not self._compare_timer.isActive() and not self._is_comparing:
            self._compare_timer.start(0)

    def _compare_if_due(self) -> None:
        if not self._is_comparison_due or self._is_comparing or not self.isVisible():
            return
        self._is_comparison_due, self._is_comparing = False, True
        name, tag, started_at = self._state.name, self._points.tag, time.monotonic()
        self._workbench.bridge.run_in_background(
            self._comparison(),
            lambda result: self._show_comparison(name, tag, time.monotonic() - started_at, result),
            self._on_comparison_failed,
            self,
        )

    def _comparison(self, is_brief: bool = True) -> partial[ComparisonResult | None]:
        """What compares the runs as they are now, in another thread."""
        weight = self.smoothing.weight
        return partial(
            compare_group, self._state.views, self._labels, self._points.snapshot(), self._points.tag, weight, is_brief
        )

    def _show_comparison(self, name: str, tag: str, took_s: float, result: ComparisonResult | None) -> None:
        self._is_comparing = False
        if (name, tag) == (self._state.name, self._points.tag):
            self._result = result
            self.charts.set_empty_text(self._describe_no_points())
            if result is not None:
                self.charts.show_result(result, self._styles())
            self.buttons.show_state(self._state, result is not None)
            self._show_note()
            self._fill_table()
            self._read_tags()
        self._compare_timer.start(max(MIN_COMPARE_PAUSE_MS, round(1000 * PAUSE_FACTOR * took_s)))

    def _describe_no_points(self) -> str:
        if not self._points.is_loaded:
            return "Loading the points…"
        return "No episode has ended yet" if self._state.is_active else "No run has points of this metric"

    def _on_comparison_failed(self, error: Exception) -> None:
        self._is_comparing = False
        self._workbench.show_error(error)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._points.follow(True)
        self._refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._points.follow(False)
        self._compare_timer.stop()
        self._state_timer.stop()

    # --- actions

    def _mark_row(self, number: int) -> None:
        """Mark the runs of a row in the list of runs, and show the first."""
        handlers.show_runs(self._workbench, self._rows[number].views)

    def write_figure(self, kind: FigureKind, path: Path) -> None:
        """Draw the runs as they are now."""
        self._workbench.settings.put("export.folder", str(path.parent))
        compare, weight = self._comparison(is_brief=False), self.smoothing.weight

        def draw() -> str:
            result = compare()
            if result is None:
                raise NotAllowed("No run of this group has points yet, so there is nothing to draw.")
            save_figure(result, path, kind, smoothing=weight)
            return f"Wrote {path} ({format_size(path.stat().st_size)})."

        self._workbench.bridge.run_in_background(
            draw, lambda text: self._workbench.show_message(text, "good"), self._workbench.show_error, self
        )


def _load_settings(views: Sequence[RunView], trainer: TrainerClient) -> dict[str, Settings]:
    return {view.run_id: comparison_settings(view, trainer.config(view.run_id)) for view in views}
