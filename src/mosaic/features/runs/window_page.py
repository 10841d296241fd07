"""The page of one run: its name and state, its actions, and its tabs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QProgressBar, QScrollArea, QSplitter, QToolButton, QWidget

from mosaic.base.fastlane import FrameRequest
from mosaic.base.formatting import (
    BAD_OUTCOMES,
    count_noun,
    describe_place,
    describe_worker,
    explain_state,
    format_ago,
    format_duration,
    format_megabytes,
    format_si_number,
    format_timestamp,
    progress_fraction,
    run_title,
    short_id,
    short_state,
)
from mosaic.contracts.options import RunKind
from mosaic.contracts.states import STOPPABLE_STAGES
from mosaic.contracts.views import RunView
from mosaic.features.evaluate.window_results import EvaluationView
from mosaic.features.runs.window_analytics import ReturnChart
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.actions import find_action, is_resumable, run_menu
from mosaic.window.frames import FramesView
from mosaic.window.runs import Evaluations
from mosaic.window.specs import RunTab
from mosaic.window.tables import Detail, DetailsGrid, HistoryView, StatTile
from mosaic.window.workbench import Workbench

HEADER = ("run.cancel", "run.pause", "run.resume", "run.resubmit")
"""The actions with a button next to the run's name."""
MAX_GROUP_WIDTH = 180


class RunPage(QWidget):
    def __init__(self, workbench: Workbench, tabs: Sequence[RunTab]) -> None:
        super().__init__()
        self._workbench = workbench
        self._tab_specs = tabs
        self._holders: dict[str, QWidget] = {}
        self._panes: dict[str, Any] = {}
        """By tab, its widget: created when it is first shown."""
        self._create_pane_timer = ui.create_timer(self, 0, self._create_pane, is_single_shot=True)
        self._fill_pane_timer = ui.create_timer(self, 0, self._on_tab_changed, is_single_shot=True)
        nothing = ui.muted_label("No run is chosen. Pick one in the list, or start one with Ctrl+N.")
        nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._tabs = ui.tabs("run.tabs")
        self._tabs.currentChanged.connect(self._on_tab_changed)
        run_view = ui.widget_column(
            self._build_header(), (self._tabs, 1), margins=(theme.MARGIN, theme.GAP, theme.MARGIN, 0)
        )
        self._stack = ui.stack(nothing, run_view)
        ui.column(self._stack, parent=self)
        workbench.selection_changed.connect(self._show)
        workbench.tab_requested.connect(self.show_tab)
        workbench.runs.changed.connect(self._on_runs_changed)
        workbench.runs.reset.connect(lambda: self._show(workbench.selection))

    def _build_header(self) -> QHBoxLayout:
        self._icon = ui.IconLabel(20)
        self._title = ui.with_object_name(ui.ElidedLabel(), "run.title")
        self._title.setProperty("heading", True)
        self._title.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._state = ui.with_object_name(ui.ElidedLabel(), "run.state")
        self._state.setProperty("muted", True)
        self._group = ui.tool_button(
            "run.group", "mdi6.folder-multiple-outline", "Show all runs of this group", self._open_group, "–"
        )
        self._group.setMaximumWidth(MAX_GROUP_WIDTH)
        self._buttons = {name: self._create_button(name) for name in HEADER}
        self._more = ui.tool_button("run.more", "mdi6.dots-horizontal", "More actions for this run", self._open_menu)
        return ui.row(self._icon, self._title, (self._state, 1), self._group, *self._buttons.values(), self._more)

    def _create_button(self, name: str) -> QToolButton:
        action = find_action(name)
        return ui.tool_button(
            f"header.{name}",
            action.icon,
            action.tooltip(action.shortcut),
            lambda: action.trigger(self._mark_only_selection()),
        )

    def _mark_only_selection(self) -> Workbench:
        """The buttons next to a run's name apply to that run, whatever is marked in the list."""
        if self._workbench.marks != [self._workbench.selection]:
            self._workbench.mark([self._workbench.selection] if self._workbench.selection else [])
        return self._workbench

    def _open_group(self) -> None:
        view = self._workbench.runs.get(self._workbench.selection or "")
        if view is not None and view.group:
            self._workbench.group_requested.emit(view.group)

    def _open_menu(self) -> None:
        menu = run_menu(self._mark_only_selection(), "run.menu", self)
        menu.popup(self._more.mapToGlobal(self._more.rect().bottomLeft()))

    def _show(self, run_id: str | None) -> None:
        view = self._workbench.runs.get(run_id) if run_id else None
        self._stack.setCurrentIndex(0 if view is None else 1)
        if view is None:
            return
        self._show_header(view)
        self._update_tabs(view)
        self._on_tab_changed()

    def _show_header(self, view: RunView) -> None:
        self._icon.set_icon(theme.state_icon(view.status))
        self._title.setText(run_title(view))
        self._title.setToolTip(f"{run_title(view)}\n{view.run_id}")
        explanation = explain_state(view)
        self._state.setText(short_state(view))
        self._state.setToolTip("\n".join(filter(None, (view.status, explanation))))
        self._state.setMinimumWidth(self._state.fontMetrics().horizontalAdvance(f"{view.status}…"))
        group = view.group or ""
        metrics = self._group.fontMetrics()
        elided = metrics.elidedText(group, Qt.TextElideMode.ElideMiddle, MAX_GROUP_WIDTH - 40)
        self._group.setText(elided.replace("&", "&&"))
        self._group.setToolTip(f"Show all runs of the group {group}")
        self._group.setVisible(bool(group))
        stage = view.stage
        is_paused = stage == "paused"
        pause = self._buttons["run.pause"]
        pause.setIcon(theme.icon("mdi6.play" if is_paused else "mdi6.pause"))
        pause.setToolTip(("Continue" if is_paused else "Pause it") + " (Space in the list of runs)")
        pause.setVisible(stage in ("running", "paused"))
        self._buttons["run.cancel"].setVisible(stage in STOPPABLE_STAGES)
        self._buttons["run.resume"].setVisible(is_resumable(view))

    def _update_tabs(self, view: RunView) -> None:
        """Show the tabs of this run, each created when it is first shown."""
        specs = [spec for spec in self._tab_specs if spec.is_available(view)]
        if [spec.id for spec in specs] == self._tab_ids():
            return
        current = self._workbench.settings.get_for_workspace("tab", "overview")
        with QSignalBlocker(self._tabs):
            while self._tabs.count():
                self._tabs.removeTab(0)
            for spec in specs:
                if spec.id not in self._holders:
                    holder = ui.widget_column(margins=(0, theme.GAP, 0, 0))
                    self._holders[spec.id] = ui.with_object_name(holder, spec.id)
                self._tabs.addTab(self._holders[spec.id], spec.title.replace("&", "&&"))
        self.show_tab(current)

    def show_tab(self, tab_id: str) -> None:
        if tab_id in self._tab_ids():
            self._tabs.setCurrentIndex(self._tab_ids().index(tab_id))

    def _tab_ids(self) -> list[str]:
        tabs = map(self._tabs.widget, range(self._tabs.count()))
        return [tab.objectName() for tab in tabs if tab is not None]

    def _on_tab_changed(self, *_: object) -> None:
        holder = self._tabs.currentWidget()
        run_id = self._workbench.selection
        if holder is None or run_id is None:
            return
        self._workbench.settings.put_for_workspace("tab", holder.objectName())
        pane = self._panes.get(holder.objectName())
        if pane is None:
            self._create_pane_timer.start()
            return
        layout = holder.layout()
        assert layout is not None
        if layout.count() == 0:
            layout.addWidget(pane)
            pane.show()  # the layout would not, while another page is on top
        pane.show_run(run_id)

    def _create_pane(self) -> None:
        """Creates the pane of the current tab; the next turn of the event loop fills it."""
        holder = self._tabs.currentWidget()
        if holder is not None and holder.objectName() not in self._panes:
            spec = next(spec for spec in self._tab_specs if spec.id == holder.objectName())
            pane = spec.create_widget(self._workbench)
            pane.setParent(holder)  # invisible until it is filled
            self._panes[spec.id] = pane
        self._fill_pane_timer.start()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        run_id = self._workbench.selection
        if run_id in run_ids and (view := self._workbench.runs.get(run_id)) is not None:
            if self._stack.currentIndex() == 0:
                self._show(run_id)
            self._show_header(view)
            self._update_tabs(view)


# --- The Overview tab: the numbers of a run, its frames while it runs, its curve, its details and its history.


REFRESH_INTERVAL_MS = 10_000
"""How often ages are updated."""
FRAME_RATE_HZ = 15.0
"""Enough for small frames next to a curve; the FastLane tab requests more, and more of the run's time."""
TILES = (
    ("return", "Return"),
    ("steps", "Steps"),
    ("sps", "Steps/s"),
    ("time", "Time left"),
    ("cpu", "CPU"),
    ("memory", "Memory"),
)
KIND_TITLES = {RunKind.TRAIN: "training", RunKind.POLICY_EVAL: "evaluation", RunKind.PLAY: "play"}
PROGRESS_STEPS = 1000
STAGES_WITH_FRAMES = ("starting", "running", "paused", "stopping")
"""The stages in which there may be frames."""


class OverviewTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._tiles = {name: StatTile(title, f"overview.{name}") for name, title in TILES}
        self._bar = ui.with_object_name(QProgressBar(), "overview.progress")
        self._bar.setRange(0, PROGRESS_STEPS)
        self._bar.setTextVisible(False)
        self._bar.setProperty("thin", True)
        self._reason = ui.selectable_label("overview.reason")
        self._details = DetailsGrid()
        self._history = HistoryView()
        self._chart = ReturnChart(workbench, "overview.chart")
        self._frames = ui.with_object_name(FramesView(workbench, is_small=True), "overview.frames")
        self._frames.lanes.ask(FrameRequest(FRAME_RATE_HZ))
        self._evaluation = EvaluationView()
        self._evaluations = Evaluations(workbench.bridge, self)
        self._main_stack = ui.stack(self._chart, self._evaluation)
        ui.column(
            self._build_reason_banner(),
            ui.row(*((tile, 1) for tile in self._tiles.values()), spacing=2 * theme.GAP),
            self._bar,
            4,
            (self._build_splitter(), 1),
            parent=self,
            margins=ui.TAB_MARGINS,
        )
        ui.VisibleTimer(self, REFRESH_INTERVAL_MS, self._refresh)
        workbench.runs.changed.connect(self._on_runs_changed)
        workbench.runs.reset.connect(self._load_details)
        self._evaluations.changed.connect(self._refresh)

    def _build_splitter(self) -> QSplitter:
        lines = _narrow_scroll_area(self._history)
        lines.verticalScrollBar().rangeChanged.connect(lambda _, end: lines.verticalScrollBar().setValue(end))
        history = ui.widget_column(
            ui.muted_label("History"),
            (lines, 1),
            margins=(theme.GAP, theme.GAP, 0, 0),
            spacing=4,
        )
        vertical, horizontal = Qt.Orientation.Vertical, Qt.Orientation.Horizontal
        details = _narrow_scroll_area(self._details)
        left = ui.splitter(vertical, self._frames, details, sizes=[220, 220], stretch=1)
        right = ui.splitter(vertical, self._main_stack, history, sizes=[400, 130], stretch=0)
        return ui.splitter(horizontal, left, right, sizes=[320, 660], stretch=1, name="overview.split")

    def _build_reason_banner(self) -> QFrame:
        self._reason_banner = ui.with_object_name(QFrame(), "overview.why")
        self._reason_banner.setProperty("banner", True)
        self._logs_button = ui.button("Show log", "overview.logs", lambda: self._workbench.tab_requested.emit("logs"))
        margins = (theme.MARGIN, 6, theme.MARGIN, 6)
        ui.row((self._reason, 1), self._logs_button, parent=self._reason_banner, margins=margins)
        self._reason_banner.hide()
        return self._reason_banner

    def hasHeightForWidth(self) -> bool:
        """Banner and curve share the height that there is; else the page would scroll to the curve's preferred one."""
        return False

    # --- which run

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._frames.show_run(run_id)
            self._history.show_history([])
        self._chart.show_run(run_id)
        self._update_evaluation()
        self._load_details()
        self._refresh()

    def _load_details(self) -> None:
        """The list of runs has neither history nor attempts."""
        run_id = self._run_id
        if run_id:
            self._workbench.bridge.ask(
                lambda trainer: trainer.get_run(run_id), lambda view: self._workbench.runs.update([view]), None, self
            )

    def _update_evaluation(self) -> None:
        """The results of an evaluation are shown where a training run has its curve."""
        view = self._workbench.runs.get(self._run_id)
        is_evaluation = view is not None and view.kind == RunKind.POLICY_EVAL
        self._main_stack.setCurrentWidget(self._evaluation if is_evaluation else self._chart)
        if is_evaluation and self.isVisible():
            self._evaluations.watch_run(self._run_id)
        else:
            self._evaluations.suspend()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        if self._run_id in run_ids and self.isVisible():
            self._refresh()

    # --- content

    def _refresh(self) -> None:
        view = self._workbench.runs.get(self._run_id)
        if view is None:
            return
        self._show_tiles(view)
        if view.kind == RunKind.POLICY_EVAL:
            self._show_evaluation(view)
        self._show_reason(view)
        self._chart.update_empty_text()
        # The last frames stay visible until another run is selected.
        self._frames.setVisible(view.stage in STAGES_WITH_FRAMES or self._frames.grid.has_image)
        self._details.show_details(run_details(view))
        if view.history:
            first, *later = view.history
            warnings = [first.model_copy(update={"message": f"Warning: {warning}"}) for warning in view.warnings]
            self._history.show_history([first, *warnings, *later], str(view.outcome or ""))

    def _show_tiles(self, view: RunView) -> None:
        tiles, is_over = self._tiles, view.stage == "finished"
        episodes = view.episodes or 0
        recent = count_noun(min(100, episodes), "episode")
        last = f"last {recent}" if episodes else "no episode" if is_over else "no episode yet"
        mean = f"Mean of the last {min(100, episodes)} of {count_noun(episodes, 'episode')}" if episodes else ""
        tiles["return"].set_value(format_si_number(view.episodic_return), last, mean)
        step, total, part = view.global_step, view.total_timesteps, progress_fraction(view)
        of = f"of {format_si_number(total)}" if total else ""
        percent = f"{100 * part:.0f} %" if part is not None else ""
        exact = f"{step:,} of {total:,} steps" if step is not None and total else ""
        tiles["steps"].caption.setText("Steps")
        tiles["steps"].set_value(format_si_number(step), " · ".join(filter(None, (of, percent))), exact)
        tiles["sps"].set_value(format_si_number(view.sps), tooltip="As the worker measures it")
        elapsed = format_duration(view.active_s)
        tiles["time"].caption.setText("Took" if is_over else "Time left")
        if is_over:
            tiles["time"].set_value(elapsed, f"ended {format_ago(view.finished_at)}")
        else:
            tiles["time"].set_value(
                format_duration(view.seconds_left), f"for {elapsed} now" if view.active_s is not None else ""
            )
        hardware = view.hardware
        when = ("at its end" if is_over else "now") if hardware else ""
        tiles["cpu"].set_value(f"{hardware.cpu_percent:.0f} %" if hardware else "–", when)
        tiles["memory"].set_value(format_megabytes(hardware.rss_mb) if hardware else "–", when)
        self._bar.setVisible(part is not None and not is_over)
        self._bar.setValue(round(PROGRESS_STEPS * (part or 0)))

    def _show_evaluation(self, view: RunView) -> None:
        tiles, is_over = self._tiles, view.stage == "finished"
        evaluation = self._evaluations.evaluations[0] if self._evaluations.evaluations else None
        if evaluation is not None or self._evaluations.is_loaded:
            self._evaluation.show_evaluation(evaluation, view, theme.run_color(self._run_id))
        batches = evaluation.summary.batches if evaluation is not None else ()
        of = count_noun(len(batches), "batch", "batches")
        # Single episodes are reported by the clock, batches when they end: either may be ahead.
        episodes = max(view.episodes or 0, sum(batch.episodes for batch in batches))
        tiles["steps"].caption.setText("Episodes")
        tiles["steps"].set_value(format_si_number(episodes), of if batches else "")
        if not is_over:  # the length of episodes is unknown, and so is when a repeated evaluation is stopped
            tiles["time"].caption.setText("Runs for")
            tiles["time"].set_value(format_duration(view.active_s))
        mean = self._evaluation.mean if evaluation is not None else None
        if mean is not None and math.isfinite(mean.point):
            has_interval = math.isfinite(mean.low)
            interval = f"95 %: {format_si_number(mean.low)} to {format_si_number(mean.high)}" if has_interval else ""
            tiles["return"].set_value(
                format_si_number(mean.point), interval, "Mean return of all its episodes, with Student's interval"
            )

    def _show_reason(self, view: RunView) -> None:
        is_bad = view.outcome in BAD_OUTCOMES or view.is_stalled
        reason = view.reason or ("Running, but without progress for a while." if is_bad else "")
        reason = reason.partition(" Full log: ")[0]  # the button opens it
        text = "\n".join(filter(None, (reason if is_bad else "", view.problem)))
        self._reason.setText(text)
        self._reason_banner.setVisible(bool(text))
        self._logs_button.setVisible(view.started_at is not None)

    # --- events

    def showEvent(self, event: QShowEvent) -> None:
        self._update_evaluation()
        self._refresh()
        super().showEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        self._evaluations.suspend()
        super().hideEvent(event)


def _narrow_scroll_area(widget: QWidget) -> QScrollArea:
    area = ui.scroll_area(widget, is_vertical_only=True)
    area.setMinimumWidth(200)
    return area


def run_details(view: RunView) -> list[Detail]:
    """The details of a run in groups, without those that it does not have."""
    elapsed_s = view.active_s
    is_train = view.kind == RunKind.TRAIN
    no_checkpoint = "none" if view.stage == "finished" else "none yet"
    checkpoint = no_checkpoint if view.checkpoint_step is None else f"step {view.checkpoint_step:,}"
    groups = {
        "Run": [
            Detail("Id", short_id(view.run_id), view.run_id),
            Detail("Name", view.run_name or ""),
            Detail("Kind", KIND_TITLES[view.kind]),
            Detail("Worker", describe_worker(view)),
            Detail("Worker id", view.worker_id or ""),
            Detail("Agent", view.agent_id or ""),
            Detail("Imported", "yes", "What its config would execute needs your trust")
            if view.is_imported
            else Detail(""),
            Detail("Group", view.group or ""),
            Detail("Tags", ", ".join(view.tags or ())),
            Detail("Last checkpoint", checkpoint if is_train else ""),
            Detail("Attempts", str(len(view.attempts)) if len(view.attempts or ()) > 1 else ""),
            Detail("Runs on", describe_place(view)),
            Detail("Resources", f"{view.cpus} CPU, {view.gpus} GPU, priority {view.priority}"),
            Detail("Folder", view.run_dir),
        ],
        "Times": [
            _time_detail("Submitted", view.submitted_at),
            _time_detail("Started", view.started_at),
            _time_detail("Ended", view.finished_at),
            Detail(
                "Took" if view.finished_at else "Runs for", format_duration(elapsed_s) if elapsed_s is not None else ""
            ),
        ],
        "Hardware at its end" if view.stage == "finished" else "Hardware now": _hardware_details(view),
    }
    return [
        detail
        for title, details in groups.items()
        if details
        for detail in (Detail(title), *(detail for detail in details if detail.value))
    ]


def _time_detail(name: str, at: float | None) -> Detail:
    return Detail(name, format_ago(at), format_timestamp(at)) if at else Detail(name)


def _hardware_details(view: RunView) -> list[Detail]:
    hardware = view.hardware
    if not hardware:
        return []
    details = [
        Detail("CPU", f"{hardware.cpu_percent:.0f} %", "100 % is one core"),
        Detail("Memory", format_megabytes(hardware.rss_mb)),
        Detail("Processes", str(hardware.processes)),
    ]
    for number, gpu in enumerate(hardware.gpus):
        used, total = format_megabytes(gpu.memory_used_mb), format_megabytes(gpu.memory_total_mb)
        memory = f", {used} of {total}" if gpu.memory_total_mb else ""
        details.append(Detail(f"GPU {number}", f"{gpu.util_percent:.0f} %{memory}"))
    return details
