"""One replay: the frame of a step, what happened in it, and whether it is what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QHideEvent, QImage, QShowEvent
from PySide6.QtWidgets import QWidget

from mosaic.api.replays import fetch_recording
from mosaic.contracts.replays import EpisodeSummary, ReplayOpened, ReplayStep
from mosaic.contracts.views import SeatState
from mosaic.formatting import format_number
from mosaic.gui import theme
from mosaic.gui.models.lanes import FrameCell
from mosaic.gui.models.replay_process import ReplayProcess
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.frame_grid import FrameGrid
from mosaic.gui.views.reward_strip import RewardStrip
from mosaic.gui.workbench import Workbench

SLOW_MS = 300
"""A step that takes longer than this is announced."""
REFRESH_MS = 3000
"""Interval at which new episodes of an active run are listed."""


class ReplayScreen(QWidget):
    """Its process lives while it is visible."""

    episodes_changed = Signal()
    step_shown = Signal(int)
    step_requested = Signal(int)
    """A click into the rewards."""
    failed = Signal(str)

    def __init__(self, workbench: Workbench, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self._workbench = workbench
        self.run_id: str | None = None
        self.opened: ReplayOpened | None = None
        self.episode: EpisodeSummary | None = None
        self.step: ReplayStep | None = None
        """The last step that was shown."""
        self._wanted_step = 0
        self._is_new_process = False
        self._was_active = False
        """Whether the run was active when new episodes were last looked for."""
        self._process = ReplayProcess(self)
        self._process.opened.connect(self._on_opened)
        self._process.step_shown.connect(self._on_step)
        self._process.failed.connect(self._show_problem)
        workbench.closing.connect(self._process.close)
        self.canvas = ui.with_object_name(FrameGrid(has_text=False), f"{name}.canvas")
        self.canvas.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the arrow keys are steps
        self.facts = ui.with_object_name(ui.ElidedLabel(), f"{name}.facts")
        self.facts.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._verdict_icon = ui.IconLabel()
        self.verdict = ui.with_object_name(ui.ElidedLabel(), f"{name}.verdict")
        self.strip = RewardStrip(f"{name}.rewards")
        self.strip.step_chosen.connect(self.step_requested)
        verdict = ui.row(self._verdict_icon, (self.verdict, 1))
        ui.column((self.canvas, 1), self.facts, verdict, self.strip, parent=self)
        self._refresh_timer = ui.VisibleTimer(self, REFRESH_MS, self._refresh_if_active)
        self._slow_timer = ui.create_timer(self, SLOW_MS, self._show_simulating, is_single_shot=True)
        self._clear()

    # --- which recording

    def show_run(self, run_id: str | None) -> None:
        if run_id == self.run_id and (self._process.is_running or run_id is None):
            return
        if run_id != self.run_id:
            self.run_id, self.opened, self.episode = run_id, None, None
            self._was_active = False
            self._clear()
        self._process.stop()
        if self.isVisible():
            self._open()

    def _clear(self) -> None:
        self.step = None
        self._wanted_step = 0
        self.canvas.show_cells([])
        self.canvas.show_message("")
        self.facts.setText("")
        self._show_verdict("", "", "muted")
        self.strip.show_rewards((), 0)

    def _open(self) -> None:
        run_id = self.run_id
        if run_id is None:
            return
        if self.step is None:
            self.canvas.show_message("Opening the recording…")

        def then(path: Path) -> None:
            if run_id == self.run_id and self.isVisible():
                self._is_new_process = True
                self._process.open(path)

        def failed(error: Exception) -> None:
            if run_id == self.run_id:
                self._show_problem(str(error))

        self._workbench.bridge.ask(lambda trainer: fetch_recording(trainer, run_id), then, failed, self)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._process.is_running:
            self._open()

    def hideEvent(self, event: QHideEvent) -> None:
        self._slow_timer.stop()
        self._process.stop()
        super().hideEvent(event)

    def _refresh_if_active(self) -> None:
        view = self._workbench.runs.get(self.run_id) if self.run_id else None
        if view is None or self.opened is None or self._workbench.is_remote:
            return
        is_active = view.stage != "finished"
        # Once more after the end: the last episode is written shortly before it.
        if (is_active or self._was_active) and self._process.refresh():
            self._was_active = is_active

    def _on_opened(self, opened: ReplayOpened) -> None:
        before, episodes = self.episodes, opened.episodes
        chosen = self.episode
        self.opened = opened
        self.episode = None if chosen is None else next((row for row in episodes if row.number == chosen.number), None)
        if before != episodes:
            self.episodes_changed.emit()
        if not episodes:
            self.canvas.show_message("No episode has been recorded yet.")
        elif self.episode is not None and (self._is_new_process or self.episode != chosen):
            self._process.seek(self.episode.number, self._wanted_step)
        self._is_new_process = False

    # --- which step

    @property
    def is_busy(self) -> bool:
        return self._process.is_busy

    @property
    def episodes(self) -> Sequence[EpisodeSummary]:
        return () if self.opened is None else self.opened.episodes

    @property
    def rate_hz(self) -> float:
        return 30.0 if self.opened is None else self.opened.rate_hz

    def choose_episode(self, number: int) -> None:
        self.episode = next((row for row in self.episodes if row.number == number), None)
        self.seek(0)

    def seek(self, step: int) -> None:
        if self.episode is None:
            return
        self._wanted_step = step
        if self._process.is_running:
            self._process.seek(self.episode.number, step)
            if not self._slow_timer.isActive():
                self._slow_timer.start()
        elif self.isVisible():
            self._open()

    def _show_simulating(self) -> None:
        if self.is_busy:
            self._show_verdict(f"Simulating up to step {self._wanted_step:,}…", "mdi6.timer-sand", "muted")

    def _on_step(self, step: ReplayStep, image: QImage | None) -> None:
        if not self.is_busy:
            self._slow_timer.stop()
        if self.episode is None or step.state.episode != self.episode.number:
            return
        self.step = step
        if step.rewards is not None:
            self.strip.show_rewards(step.rewards, step.steps)
        self.canvas.show_message(step.frame_problem or "No frame.")
        self.canvas.show_cells([] if image is None else [FrameCell(0, image, None, None)], {0})
        facts = describe_step(step)
        self.facts.setText(facts)
        self.facts.setToolTip(facts)
        self._show_comparison(step)
        different = None if step.difference is None else step.difference.step
        self.strip.show_position(step.state.step, different)
        self.step_shown.emit(step.state.step)

    # --- what is said about it

    def _show_comparison(self, step: ReplayStep) -> None:
        assert self.opened is not None
        warnings = "; ".join(self.opened.warnings)
        suffix = f" · {warnings}" if warnings else ""
        if self.opened.note:
            self._show_verdict(self.opened.note + suffix, "mdi6.filmstrip", "muted")
        elif step.difference is not None:
            text = f"Differs at step {step.difference.step:,}. {step.difference.describe()}"
            self._show_verdict(text + suffix, "mdi6.alert-outline", "warning")
        elif step.verified_steps >= step.steps:
            has_observations = "observations" in step.compared
            text = "Identical: rewards and observations are the recorded ones"
            text = text if has_observations else "Identical rewards and ending; observations were not recorded"
            self._show_verdict(text + suffix, "mdi6.check-all", "good")
        else:
            text = f"Identical so far ({step.verified_steps:,} of {step.steps:,} steps)"
            self._show_verdict(text + suffix, "mdi6.check", "good")

    def _show_verdict(self, text: str, icon: str, token: str) -> None:
        self.verdict.setText(text)
        self.verdict.setToolTip(text)
        self._verdict_icon.setVisible(bool(icon))
        if icon:
            self._verdict_icon.set_icon(theme.icon(icon, token))

    def _show_problem(self, reason: str) -> None:
        self._slow_timer.stop()
        self.canvas.show_cells([])
        self.canvas.show_message(reason, "mdi6.alert-circle-outline")
        self._show_verdict("", "", "muted")
        self.failed.emit(reason)


def describe_step(step: ReplayStep) -> str:
    """Return what happened in a step, in a line."""
    state = step.state
    seats = state.seats
    if not state.step:
        parts = ["Start" if state.seed is None else f"Start with seed {state.seed}"]
    else:
        parts = [f"Step {state.step:,}", *(_describe_seat(seat) for seat in seats if seat.last_action)]
        if step.is_end:
            parts.append({"running": "left here"}.get(state.ending, state.ending))
    if len(seats) > 1:
        totals = ", ".join(f"{seat.agent} {format_number(seat.episodic_return)}" for seat in seats)
        return " · ".join([*parts, f"returns: {totals}"])
    return " · ".join([*parts, f"return {format_number(seats[0].episodic_return)}"])


def _describe_seat(seat: SeatState) -> str:
    who = " ".join(filter(None, (seat.agent, f"({seat.actor})" if seat.agent and seat.actor else seat.actor)))
    reward = f"reward {format_number(seat.last_reward)}"
    return f"{who}: {seat.last_action} · {reward}" if who else f"{seat.last_action} · {reward}"
