"""The page of experiments: all groups of runs with their progress, and the page of one group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import QMenu, QProgressBar, QToolButton, QWidget

from mosaic.base.comparison import RunGroup, Settings
from mosaic.base.formatting import count_noun, format_ago, format_si_number, format_size, format_timestamp
from mosaic.base.run_payloads import comparison_settings, grouping_fields
from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.names import RETURN_TAG
from mosaic.contracts.views import RunView
from mosaic.features.experiments.core import COUNTED, SettingRow, environment_label, setting_label
from mosaic.features.experiments.core_comparison import ComparisonResult
from mosaic.features.experiments.core_figures import FigureKind, save_figure
from mosaic.features.experiments.window_charts import MAX_CURVES, SettingCharts, Style, setting_styles
from mosaic.features.experiments.window_compare import ComparePage
from mosaic.features.experiments.window_model import (
    GroupPoints,
    GroupState,
    compare_group,
    group_state,
    label_runs,
    list_groups,
    setting_rows,
)
from mosaic.features.sweeps.core_folder import sweep_names
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import run_actions as handlers
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.chart import LinkBox, SmoothingSlider
from mosaic.window.runs import runs_with_policy
from mosaic.window.specs import Page
from mosaic.window.tables import Cell, RowsTable, color_icon, format_interval
from mosaic.window.widgets import ButtonRow, WrappingRow
from mosaic.window.workbench import Workbench

# --- The buttons of a group page: what can be done with all runs of a group.


FIGURES = {
    FigureKind.CURVES: "Learning curves…",
    FigureKind.EFFICIENCY: "Sample efficiency…",
    FigureKind.AGGREGATES: "Aggregates over environments…",
}
FIGURE_FILTER = "PDF (*.pdf);;SVG (*.svg);;PNG (*.png)"


class GroupActions(QWidget):
    figure_requested = Signal(object, object)
    """The kind of figure and the path of its file."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._state = GroupState("", ())
        self._cancel = self._button("cancel", "mdi6.stop", self._cancel_runs)
        self._retry = self._button("retry", "mdi6.replay", self._retry_runs)
        self._compare = self._button("compare", "mdi6.compare", self._compare_runs)
        self._evaluate = self._button("evaluate", "mdi6.clipboard-check-outline", self._evaluate_runs)
        self._archive = self._button("archive", "mdi6.archive-arrow-down-outline", self._archive_runs)
        self._figure = self._button("figure", "mdi6.file-image-outline", None)
        self._sweep = self._button("sweep", "mdi6.tune-vertical", self._open_sweep)
        _show_action(self._compare, "Compare", "Put the runs of this group onto the compare page", True)
        _show_action(self._sweep, "Show sweep", "These are the runs of a sweep: show its trials", True)
        self._figure.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        menu = ui.with_object_name(QMenu(self._figure), "group.figure.menu")
        for kind, title in FIGURES.items():
            menu.addAction(title, partial(self._ask_figure_path, kind))
        self._figure.setMenu(menu)
        self._sweep.hide()
        buttons = (self._cancel, self._retry, self._compare, self._evaluate, self._figure, self._archive, self._sweep)
        ui.column(ButtonRow(buttons), parent=self)

    def _button(self, name: str, icon: str, on_click: ui.Call | None) -> QToolButton:
        return ui.tool_button(f"group.{name}", icon, "", on_click, "–", is_flat=False)

    def show_state(self, state: GroupState, has_points: bool) -> None:
        """Show what is possible now."""
        self._state = state
        stoppable, retryable, archivable = state.stoppable, state.retryable, state.archivable
        _show_action(
            self._cancel,
            f"Cancel {_count_runs(len(stoppable))}" if stoppable else "Cancel",
            "Stop the runs that have not ended, with a checkpoint where it can" if stoppable else "All runs have ended",
            bool(stoppable),
        )
        _show_action(
            self._retry,
            f"Retry {_count_runs(len(retryable))}" if retryable else "Retry",
            "Submit the runs that failed, were cancelled or lost again, each as a further attempt"
            if retryable
            else "No run of an experiment has ended without success",
            bool(retryable),
        )
        evaluable = runs_with_policy(state.views)
        _show_action(
            self._evaluate,
            f"Evaluate {_count_runs(len(evaluable))}" if evaluable else "Evaluate",
            "Play episodes with their policies on unseen seeds" if evaluable else "No run has saved a policy yet",
            bool(evaluable),
        )
        is_restore = not archivable and state.is_archived
        _show_action(
            self._archive,
            "Unarchive" if is_restore else "Archive",
            "Put the runs into the list again"
            if is_restore
            else "Take the runs out of the lists without deleting them, when all have ended",
            is_restore or (bool(archivable) and not state.is_active),
        )
        _show_action(
            self._figure,
            "Export figure",
            "Draw a figure for a paper into a PDF, SVG or PNG file"
            if has_points
            else "There are no points to draw yet",
            has_points,
        )

    def find_sweep(self, group: str) -> None:
        """Offer the sweep whose runs these are, if it is one of this workspace."""
        self._sweep.hide()
        self._workbench.bridge.run_in_background(
            lambda: group in sweep_names(self._workbench.workspace),
            lambda is_sweep: self._sweep.setVisible(is_sweep and group == self._state.name),
            self._workbench.show_error,
            self,
        )

    def _cancel_runs(self) -> None:
        handlers.cancel_runs(self._workbench, self._state.stoppable)

    def _retry_runs(self) -> None:
        handlers.retry_runs(self._workbench, self._state.retryable)

    def _compare_runs(self) -> None:
        self._workbench.comparison_requested.emit([view.run_id for view in self._state.views[::-1]])

    def _evaluate_runs(self) -> None:
        evaluable = runs_with_policy(self._state.views)
        self._workbench.evaluation_requested.emit([view.run_id for view in evaluable])

    def _archive_runs(self) -> None:
        if self._state.archivable:
            handlers.archive_runs(self._workbench, self._state.archivable)
        else:
            every = [*self._state.views, *self._state.superseded]
            handlers.archive_runs(self._workbench, every, is_archived=False)

    def _open_sweep(self) -> None:
        self._workbench.sweep_requested.emit(self._state.name)

    def _ask_figure_path(self, kind: FigureKind) -> None:
        folder = Path(self._workbench.settings.get("export.folder", str(Path.home())))
        ui.open_save_dialog(
            self._workbench.window,
            "group.figure.file",
            f"Export figure of {self._state.name}",
            folder / f"{self._state.name}-{kind}.pdf",
            FIGURE_FILTER,
            partial(self.figure_requested.emit, kind),
        )


def _count_runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count:,} runs"


def _show_action(button: QToolButton, text: str, tip: str, is_enabled: bool) -> None:
    button.setText(text)
    button.setToolTip(tip)
    button.setEnabled(is_enabled)


# --- One group of runs: its progress, its curves and results by setting, and what can be done with all of its runs.


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


# --- The page of experiments: all groups of runs with their progress, and the page of one group.


REFRESH_MS = 500
AGE_REFRESH_MS = 20_000
COLUMN_TITLES = ("Group", "Progress", "Settings", "Environments", "Newest run")
EMPTY_TEXT = (
    "Runs with a group are shown together here: their progress, curves and results by setting. Write an experiment "
    "(algorithms, environments, seeds) into a YAML file and run it: mosaic experiment run FILE.yaml\n"
    "Several seeds in the train form make a group, too."
)


class ExperimentsPage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._groups: list[GroupState] = []
        self._is_listing = False
        self._archived = ui.tool_button(
            "experiments.archived",
            "mdi6.archive-outline",
            "Also show groups whose runs are all archived",
            self._refresh,
            is_flat=False,
            is_checkable=True,
        )
        self.table = RowsTable("experiments.groups", text_columns=(0, 1), elided_column=1)
        self.table.opened.connect(lambda row: self.show_group(self._groups[row].name))
        self.table.itemSelectionChanged.connect(self._update_buttons)
        self._open = ui.button(
            "Open", "experiments.open", self._open_selected, "Show the selected group (Return, or a double click)"
        )
        train = ui.accent_button("Train with several seeds", "experiments.train", self._open_train_form)
        head = ui.row(ui.heading_label("Experiments"), ui.Stretch(), self._archived, self._open)
        self._lists = ui.stack(ui.EmptyState("No groups of runs yet", EMPTY_TEXT, train), self.table)
        self.page = GroupPage(workbench)
        self.page.left.connect(self.show_list)
        self._stack = ui.stack(ui.widget_column(head, (self._lists, 1)), self.page)
        ui.column(self._stack, parent=self, margins=ui.PAGE_MARGINS)
        self._timer = ui.create_timer(self, REFRESH_MS, self._refresh, is_single_shot=True)
        ui.VisibleTimer(self, AGE_REFRESH_MS, self._refresh)
        for signal in (workbench.runs.changed, workbench.runs.removed, workbench.runs.reset):
            signal.connect(self._schedule_refresh)
        workbench.runs.reset.connect(self._restore_group)
        workbench.group_requested.connect(self._on_group_requested)
        self._update_buttons()

    # --- which group

    def _on_group_requested(self, name: str) -> None:
        self.show_group(name)
        self._workbench.page_requested.emit("experiments")

    def show_group(self, name: str) -> None:
        self._workbench.settings.put_for_workspace("group", name)
        self.page.show_group(name)
        self._stack.setCurrentWidget(self.page)

    def show_list(self) -> None:
        self._workbench.settings.put_for_workspace("group", "")
        self._stack.setCurrentIndex(0)
        self._refresh()
        self.table.setFocus()

    def _restore_group(self) -> None:
        """Show the group that was open in the last session, once the runs are known."""
        name = self._workbench.settings.get_for_workspace("group", "")
        if name and any(view.group == name for view in self._workbench.runs.all()):
            self.show_group(name)

    def _open_selected(self) -> None:
        row = self.table.selected_row()
        if row is not None:
            self.show_group(self._groups[row].name)

    def _open_train_form(self) -> None:
        self._workbench.form_requested.emit(None)

    # --- the list

    def _schedule_refresh(self, *_: object) -> None:
        if self.isVisible() and self._stack.currentIndex() == 0 and not self._timer.isActive():
            self._timer.start()

    def _refresh(self) -> None:
        """List the groups in the background, as there may be thousands of runs."""
        if self._is_listing:
            self._schedule_refresh()
            return
        self._is_listing = True
        views, with_archived = self._workbench.runs.all(), self._archived.isChecked()
        self._workbench.bridge.run_in_background(
            lambda: [(group, _cells(group)) for group in list_groups(views, with_archived)],
            self._show_groups,
            self._on_listing_failed,
            self,
        )

    def _on_listing_failed(self, error: Exception) -> None:
        self._is_listing = False
        self._workbench.show_error(error)

    def _show_groups(self, listed: list[tuple[GroupState, list[str | Cell]]]) -> None:
        self._is_listing = False
        selected = self.table.selected_row()
        name = self._groups[selected].name if selected is not None and selected < len(self._groups) else ""
        self._groups = [group for group, _ in listed]
        self._lists.setCurrentIndex(1 if self._groups else 0)
        self.table.show_rows(COLUMN_TITLES, [cells for _, cells in listed])
        names = [group.name for group in self._groups]
        if name in names:
            self.table.selectRow(names.index(name))
        self._update_buttons()

    def _update_buttons(self) -> None:
        self._open.setEnabled(self.table.selected_row() is not None)
        self._open.setVisible(bool(self._groups))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self._stack.currentWidget() is self.page:
            self.show_list()
        else:
            super().keyPressEvent(event)


def _cells(group: GroupState) -> list[str | Cell]:
    settings = {setting_label(view) for view in group.views}
    environments = {environment_label(view) for view in group.views}
    newest = group.views[0].submitted_at
    return [
        group.name,
        group.line,
        Cell(str(len(settings)), "\n".join(sorted(settings)[:20])),
        Cell(str(len(environments)), "\n".join(sorted(environments)[:20])),
        Cell(format_ago(newest), format_timestamp(newest)),
    ]


PAGES = (
    Page("compare", "Compare", "mdi6.compare", ComparePage, position=4),
    Page("experiments", "Experiments", "mdi6.flask-outline", ExperimentsPage, position=5),
)
