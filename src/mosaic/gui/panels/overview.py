"""How a run stands: its numbers, its frames while it runs, its curve, its facts and its story."""

from __future__ import annotations

import math
import time

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QSplitter,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from mosaic.gui import theme
from mosaic.gui.models.evaluation import Evaluations
from mosaic.gui.views import words
from mosaic.gui.views.evaluation import EvaluationView
from mosaic.gui.views.facts import Fact, Facts, Story, Tile
from mosaic.gui.views.frames import FramesView
from mosaic.gui.views.made import muted, named
from mosaic.gui.views.return_chart import ReturnChart
from mosaic.gui.workbench import Json, Workbench

TICK_MS = 10_000
"""How often ages are told anew."""
FRAMES_HZ = 15.0
"""Enough for small pictures beside a curve; FastLane asks for more."""
TILES = (
    ("return", "Return"),
    ("steps", "Steps"),
    ("sps", "Steps a second"),
    ("time", "Time left"),
    ("cpu", "CPU"),
    ("memory", "Memory"),
)
PARTS = 1000
WATCHED = ("starting", "running", "paused", "stopping")
"""The stages in which there may be frames."""


class Overview(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._tiles = {name: Tile(title, f"overview.{name}") for name, title in TILES}
        self._bar = named(QProgressBar(), "overview.progress")
        self._why = named(QFrame(), "overview.why")
        self._reason = named(QLabel(), "overview.reason")
        self._facts = Facts()
        self._story = Story()
        self._chart = ReturnChart(workbench, "overview.chart")
        self._frames = named(FramesView(workbench, is_small=True), "overview.frames")
        self._frames.lanes.wish(FRAMES_HZ, None)
        self._evaluation = EvaluationView()
        self._found = Evaluations(workbench.bridge, self)
        self._picture = QStackedWidget()
        self._build()
        self._clock = QTimer(self, interval=TICK_MS)
        self._clock.timeout.connect(self._refresh)
        workbench.runs.changed.connect(self._changed)
        workbench.runs.reset.connect(self._ask)
        workbench.theme_changed.connect(self._restyle)
        self._found.changed.connect(self._refresh)

    def _build(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, theme.GAP)
        column.setSpacing(theme.GAP)
        column.addWidget(self._build_why())
        tiles = QHBoxLayout()
        tiles.setSpacing(2 * theme.GAP)
        for tile in self._tiles.values():
            tiles.addWidget(tile, 1)
        column.addLayout(tiles)
        self._bar.setRange(0, PARTS)
        self._bar.setTextVisible(False)
        self._bar.setProperty("thin", True)
        column.addWidget(self._bar)
        right = QSplitter(Qt.Orientation.Vertical)
        self._picture.addWidget(self._chart)
        self._picture.addWidget(self._evaluation)
        right.addWidget(self._picture)
        right.addWidget(self._with_heading("Story", self._story))
        right.setStretchFactor(0, 1)
        right.setSizes([400, 130])
        right.setChildrenCollapsible(False)
        both = named(QSplitter(Qt.Orientation.Horizontal), "overview.split")
        left = QSplitter(Qt.Orientation.Vertical)
        left.addWidget(self._frames)
        left.addWidget(_scrolling(self._facts))
        left.setSizes([220, 220])
        left.setChildrenCollapsible(False)
        both.addWidget(left)
        both.addWidget(right)
        both.setStretchFactor(1, 1)
        both.setSizes([320, 660])
        both.setChildrenCollapsible(False)
        column.addSpacing(4)
        column.addWidget(both, 1)

    def _build_why(self) -> QFrame:
        self._why.setProperty("banner", True)
        row = QHBoxLayout(self._why)
        row.setContentsMargins(theme.MARGIN, 6, theme.MARGIN, 6)
        row.setSpacing(theme.GAP)
        self._reason.setWordWrap(True)
        self._reason.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        logs = named(QPushButton("Show log"), "overview.logs")
        logs.clicked.connect(lambda: self._workbench.tab_wanted.emit("logs"))
        row.addWidget(self._reason, 1)
        row.addWidget(logs)
        self._why.hide()
        return self._why

    def _with_heading(self, title: str, widget: QWidget) -> QWidget:
        holder = QWidget()
        column = QVBoxLayout(holder)
        column.setContentsMargins(theme.GAP, theme.GAP, 0, 0)
        column.setSpacing(4)
        column.addWidget(muted(title))
        column.addWidget(_scrolling(widget), 1)
        return holder

    # --- which run

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._frames.show_run(run_id)
            self._story.show_story([])
        self._chart.show_run(run_id)
        self._follow()
        self._ask()
        self._refresh()

    def _ask(self) -> None:
        """Lists know neither story nor attempts."""
        run_id = self._run_id
        if run_id:
            self._workbench.bridge.ask(
                lambda trainer: trainer.get(run_id), lambda view: self._workbench.runs.update([view]), None, self
            )

    def _follow(self) -> None:
        """An evaluation's own findings stand where a training run has its curve."""
        view = self._workbench.runs.get(self._run_id)
        is_evaluation = view is not None and view.get("kind") == "policy_eval"
        self._picture.setCurrentWidget(self._evaluation if is_evaluation else self._chart)
        if is_evaluation and self.isVisible():
            self._found.follow(self._run_id)
        else:
            self._found.rest()

    def _changed(self, run_ids: set[str]) -> None:
        if self._run_id in run_ids and self.isVisible():
            self._refresh()

    # --- what is told

    def _refresh(self) -> None:
        view = self._workbench.runs.get(self._run_id)
        if view is None:
            return
        self._show_tiles(view)
        if view.get("kind") == "policy_eval":
            self._show_evaluation(view)
        self._show_reason(view)
        # What was seen of a run stays until another one is chosen.
        self._frames.setVisible(view["stage"] in WATCHED or self._frames.grid.has_picture)
        self._facts.show_facts(facts_of(view))
        if "story" in view:
            self._story.show_story(view["story"], str(view.get("outcome") or ""))

    def _show_tiles(self, view: Json) -> None:
        episodes = view.get("episodes") or 0
        last = f"last {min(100, episodes)} episodes" if episodes else "no episode yet"
        mean = f"Mean of the last {min(100, episodes)} of {episodes:,} episodes" if episodes else ""
        self._tiles["return"].say(words.number(view.get("episodic_return")), last, mean)
        step, total = view.get("global_step"), view.get("total_timesteps")
        part = words.progress(view)
        of = f"of {words.number(total)}" if total else ""
        percent = f"{100 * part:.0f} %" if part is not None else ""
        exact = f"{step:,} of {total:,} steps" if step is not None and total else ""
        self._tiles["steps"].caption.setText("Steps")
        self._tiles["steps"].say(words.number(step), " · ".join(filter(None, (of, percent))), exact)
        self._tiles["sps"].say(words.number(view.get("sps")), tip="As the worker measures it")
        is_over = view["stage"] == "finished"
        self._tiles["time"].caption.setText("Took" if is_over else "Time left")
        ran = _took(view)
        if is_over:
            self._tiles["time"].say(words.duration(ran), f"ended {words.ago(view.get('finished_at'))}")
        else:
            self._tiles["time"].say(
                words.duration(view.get("seconds_left")), f"for {words.duration(ran)} now" if ran is not None else ""
            )
        hardware = view.get("hardware") or {}
        when = "at its end" if is_over else "now"
        has_any = bool(hardware)
        self._tiles["cpu"].say(f"{hardware['cpu_percent']:.0f} %" if has_any else "–", when if has_any else "")
        self._tiles["memory"].say(_megabytes(hardware["rss_mb"]) if has_any else "–", when if has_any else "")
        self._bar.setVisible(part is not None and not is_over)
        self._bar.setValue(round(PARTS * (part or 0)))

    def _show_evaluation(self, view: Json) -> None:
        is_over = view["stage"] == "finished"
        evaluation = self._found.found[0] if self._found.found else None
        if evaluation is not None or self._found.is_loaded:
            self._evaluation.show_evaluation(evaluation, theme.run_colour(self._run_id), is_over)
        self._tiles["steps"].caption.setText("Episodes")
        batches = evaluation["batches"] if evaluation is not None else []
        of = "1 batch" if len(batches) == 1 else f"{len(batches)} batches"
        # Single episodes are told by the clock, batches when they end: either may be ahead.
        episodes = max(view.get("episodes") or 0, sum(batch["episodes"] for batch in batches))
        self._tiles["steps"].say(words.number(episodes), of if batches else "")
        if not is_over:  # nobody knows how long episodes take, nor when a repeated evaluation is stopped
            self._tiles["time"].caption.setText("Runs for")
            self._tiles["time"].say(words.duration(_took(view)))
        mean = self._evaluation.histogram.mean if evaluation is not None else None
        if mean is not None and math.isfinite(mean.point):
            sure = f"95 %: {words.number(mean.low)} to {words.number(mean.high)}" if math.isfinite(mean.low) else ""
            self._tiles["return"].say(words.number(mean.point), sure, "Mean return of all its episodes")

    def _show_reason(self, view: Json) -> None:
        is_bad = view.get("outcome") in ("failed", "rejected", "lost") or view.get("is_stalled")
        said = view.get("reason") or ("Running, but without a sign of progress for a while." if is_bad else "")
        self._reason.setText(said)
        self._why.setVisible(bool(is_bad and said))

    def _restyle(self) -> None:
        self._story.rebuild()
        for tile in self._tiles.values():
            tile.value.setFont(theme.heading())

    # --- Qt's calls

    def showEvent(self, event: QShowEvent) -> None:
        self._clock.start()
        self._follow()
        self._refresh()
        super().showEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        self._clock.stop()
        self._found.rest()
        super().hideEvent(event)


def _scrolling(widget: QWidget) -> QScrollArea:
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setWidget(widget)
    area.setMinimumWidth(200)
    return area


def facts_of(view: Json) -> list[Fact]:
    """What is known of a run, in groups; what it does not have is left out."""
    checkpoint = view.get("checkpoint_step")
    is_train = view.get("kind") == "train"
    asked = f"{view.get('cpus') or 1} CPU, {view.get('gpus') or 0} GPU, priority {view.get('priority') or 0}"
    rows: list[Fact | None] = [
        Fact("Run"),
        Fact("Id", words.short_id(view["run_id"]), view["run_id"]),
        _if("Name", view.get("run_name")),
        Fact("Kind", "training" if is_train else "evaluation"),
        Fact("Worker", str(view["worker"])),
        _if("Group", view.get("group")),
        _if("Tags", ", ".join(view.get("tags") or ())),
        Fact("Last checkpoint", f"step {checkpoint:,}" if checkpoint is not None else "none yet") if is_train else None,
        Fact("Attempts", str(len(view["attempts"]))) if len(view.get("attempts") or ()) > 1 else None,
        Fact("Asked for", asked),
        Fact("Folder", view["run_dir"]),
        Fact("Times"),
        *(_time(name, view.get(key)) for name, key in _TIMES),
        Fact("Took" if view.get("finished_at") else "Runs for", words.duration(_took(view))),
        *_hardware(view),
    ]
    return [row for row in rows if row is not None]


_TIMES = (("Submitted", "submitted_at"), ("Started", "started_at"), ("Ended", "finished_at"))


def _if(name: str, value: str | None) -> Fact | None:
    return Fact(name, value) if value else None


def _time(name: str, at: float | None) -> Fact | None:
    return Fact(name, words.ago(at), words.moment(at)) if at else None


def _took(view: Json) -> float | None:
    """From its start to its end, or until now."""
    started = view.get("started_at")
    return None if started is None else max(0.0, (view.get("finished_at") or time.time()) - started)


def _hardware(view: Json) -> list[Fact | None]:
    hardware = view.get("hardware")
    if not hardware:
        return []
    rows: list[Fact | None] = [
        Fact("Hardware at its end" if view["stage"] == "finished" else "Hardware now"),
        Fact("CPU", f"{hardware['cpu_percent']:.0f} %", "100 % is one core"),
        Fact("Memory", _megabytes(hardware["rss_mb"])),
        Fact("Processes", str(hardware.get("processes", "–"))),
    ]
    for number, gpu in enumerate(hardware.get("gpus") or ()):
        used, total = gpu.get("memory_used_mb"), gpu.get("memory_total_mb")
        memory = f", {_megabytes(used)} of {_megabytes(total)}" if used is not None and total else ""
        rows.append(Fact(f"GPU {number}", f"{gpu.get('util_percent', 0):.0f} %{memory}"))
    return rows


def _megabytes(value: float) -> str:
    return f"{value / 1024:.1f} GB" if value >= 1024 else f"{value:.0f} MB"
