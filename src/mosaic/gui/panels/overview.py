"""The Overview tab: the numbers of a run, its frames while it runs, its curve, its details and its history."""

from __future__ import annotations

import math

from PySide6.QtCore import Qt
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QProgressBar, QScrollArea, QSplitter, QWidget

from mosaic.contracts.options import RunKind
from mosaic.contracts.views import RunView
from mosaic.fastlane import FrameRequest
from mosaic.formatting import (
    BAD_OUTCOMES,
    count_noun,
    describe_place,
    describe_worker,
    format_ago,
    format_duration,
    format_megabytes,
    format_si_number,
    format_timestamp,
    progress_fraction,
    short_id,
)
from mosaic.gui import theme
from mosaic.gui.models.runs_model import Evaluations
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.details_view import Detail, DetailsGrid, HistoryView, StatTile
from mosaic.gui.views.evaluation_view import EvaluationView
from mosaic.gui.views.frames_view import FramesView
from mosaic.gui.views.run_charts import ReturnChart
from mosaic.gui.workbench import Workbench

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
