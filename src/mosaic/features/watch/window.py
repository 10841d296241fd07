"""The FastLane tab: a run's environments, live."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import QButtonGroup, QHBoxLayout, QToolButton, QWidget

from mosaic.base.fastlane import CONNECTED, UNAVAILABLE, WAITING, FrameRequest
from mosaic.base.formatting import format_duration, format_eval_line
from mosaic.contracts.events import EvalSummaryUpdate, Event
from mosaic.contracts.options import RunKind
from mosaic.contracts.views import EvaluationBatch, RunView
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.frames import FramesView
from mosaic.window.lanes import RATE_HZ, Recording, save_image
from mosaic.window.runs import RunPhase, empty_text, run_phase
from mosaic.window.specs import RunTab
from mosaic.window.workbench import Workbench

VIEWER_STATUS_ICONS = {
    CONNECTED: ("mdi6.access-point", "good"),
    WAITING: ("mdi6.timer-sand", "warning"),
    UNAVAILABLE: ("mdi6.access-point-off", "muted"),
}
REQUEST = FrameRequest(rate_hz=30.0, budget=0.05)
"""While somebody looks at the tab: fluent frames, unless they cost more of the run's time than this."""
MORE_REQUEST = FrameRequest(rate_hz=30.0, budget=0.25)
MORE_HINT = f"“More frames” allows {100 * (MORE_REQUEST.budget or 0):.0f} %"

WIDEST_ZOOM = "8888 %"
WIDEST_TIME = "● 88:88"


class FastLaneTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._recording: Recording | None = None
        self.frames = ui.with_object_name(FramesView(workbench), "fastlane.frames")
        self._next = ui.button("", "fastlane.next", self._open_next_step)
        self._ended_page = ui.with_object_name(ui.EmptyState("", "", self._next), "fastlane.over")
        self._stack = ui.stack(self.frames, self._ended_page)
        self._eval = ui.selectable_label("fastlane.eval")
        self._eval.setWordWrap(False)
        self._eval.setProperty("monospace", True)
        self._eval.hide()
        ui.column(self._build_toolbar(), (self._stack, 1), self._eval, parent=self, margins=ui.TAB_MARGINS)
        self._recording_timer = ui.create_timer(self, 500, self._show_recording)
        self.frames.changed.connect(self._refresh)
        self.frames.grid.zoom_changed.connect(self._show_zoom)
        self.frames.frames_received.connect(self._record_frame)
        self.frames.frames_received.connect(self._show_zoom)
        workbench.bridge.events_received.connect(self._on_events)
        workbench.runs.changed.connect(self._on_runs_changed)
        workbench.theme_changed.connect(self._fit_to_text)
        workbench.theme_changed.connect(self._show_recording)
        workbench.closing.connect(self._on_closing)
        workbench.recordings.saved.connect(self._on_recording_saved)
        workbench.recordings.failed.connect(self._on_recording_failed)
        self._ask_for_frames()
        self._refresh()
        self._show_recording()

    # --- building

    def _build_toolbar(self) -> QHBoxLayout:
        self._icon = ui.IconLabel()
        self._status_label = ui.status_label("fastlane.state")
        self._all = self._create_toggle(
            "fastlane.grid", "mdi6.view-grid-outline", "All environments (Esc)", lambda: self.frames.show_env(None)
        )
        self._one = self._create_toggle(
            "fastlane.single",
            "mdi6.square-outline",
            "One environment (click a cell; arrow keys)",
            self._show_single_env,
        )
        group = QButtonGroup(self)
        for choice in (self._all, self._one):
            group.addButton(choice)
        self._env = ui.combo_box("fastlane.env", tip="Which environment")
        self._env.setPlaceholderText("All environments")
        self._env.activated.connect(lambda at: self.frames.show_env(int(self._env.itemData(at))))
        self._fit = self._create_toggle(
            "fastlane.fit", "mdi6.fit-to-page-outline", "Fit into the view (0, or a double click)", self.frames.grid.fit
        )
        self._pixels = ui.tool_button(
            "fastlane.pixels", "mdi6.numeric-1-box-outline", "Pixel by pixel (1)", self.frames.grid.show_actual_pixels
        )
        self._zoom = self._create_fixed_label("fastlane.zoom", WIDEST_ZOOM)
        self._zoom.setProperty("muted", True)
        self._zoom.setToolTip("Zoom with the wheel or + and -, move by dragging")
        self._more = ui.tool_button(
            "fastlane.more",
            "mdi6.speedometer",
            "",
            self._ask_for_frames,
            "More frames",
            is_flat=False,
            is_checkable=True,
        )
        self._time = self._create_fixed_label("fastlane.time", WIDEST_TIME)
        self._time.setProperty("error", True)
        policy = self._time.sizePolicy()
        policy.setRetainSizeWhenHidden(True)  # the widgets next to it do not move
        self._time.setSizePolicy(policy)
        self._record = ui.tool_button(
            "fastlane.record", "mdi6.record-circle-outline", "Record a video (MP4)", self._toggle_recording, "Record"
        )
        self._record.setMinimumWidth(self._record.sizeHint().width())  # it does not move when its text changes
        self._snapshot = ui.tool_button(
            "fastlane.snapshot",
            "mdi6.camera-outline",
            "Save the current frame as an image (PNG)",
            self._ask_snapshot_path,
        )
        return ui.row(
            *(self._icon, (self._status_label, 1), self._all, self._one, self._env, theme.GAP),
            *(self._fit, self._pixels, self._zoom, theme.GAP),
            *(self._more, theme.GAP),
            *(self._time, self._record, self._snapshot),
            spacing=4,
        )

    def _fit_to_text(self) -> None:
        """Set the widths that depend on the size of the text."""
        for widget, widest in ((self._record, "Record"), (self._time, WIDEST_TIME), (self._zoom, WIDEST_ZOOM)):
            shown = widget.text()
            widget.setMinimumWidth(0)
            widget.setText(widest)
            widget.setMinimumWidth(widget.sizeHint().width())
            widget.setText(shown)

    def _create_toggle(self, name: str, icon: str, tip: str, on_click: Callable[[], None]) -> QToolButton:
        return ui.tool_button(name, icon, tip, on_click, is_flat=False, is_checkable=True)

    def _create_fixed_label(self, name: str, widest: str) -> ui.PlainLabel:
        """A label that is always as wide as its widest text."""
        label = ui.PlainLabel(name=name)
        label.setMinimumWidth(self.fontMetrics().horizontalAdvance(widest))
        label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        return label

    # --- what is shown

    def show_run(self, run_id: str) -> None:
        if run_id == self._run_id:
            return
        self.stop_recording()
        self._run_id = run_id
        self._eval.hide()
        self._more.setChecked(False)
        self._ask_for_frames()
        self.frames.show_run(run_id)
        self._on_runs_changed({run_id})
        self._refresh()
        view = self._workbench.runs.get(run_id)
        if view is not None and view.kind == RunKind.POLICY_EVAL:
            self._workbench.bridge.ask(lambda trainer: _last_summary(trainer, run_id), self._show_summary, owner=self)

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        """A run that had ended before it was shown has no frames: show the next step instead."""
        view = self._workbench.runs.get(self._run_id) if self._run_id in run_ids else None
        if view is None:
            return
        is_over = view.stage == "finished" and not self.frames.grid.has_image
        if is_over:
            self._ended_page.set_text(*empty_text("fastlane", view))
            is_evaluation = view.kind == RunKind.POLICY_EVAL
            show_text = "Show its results" if is_evaluation else "Show its videos"
            self._next.setText("Evaluate its policy" if self._has_policy(view) else show_text)
            self._next.setVisible(run_phase(view) is not RunPhase.NEVER_STARTED)
        self._stack.setCurrentWidget(self._ended_page if is_over else self.frames)

    def _has_policy(self, view: RunView) -> bool:
        return view.kind != RunKind.POLICY_EVAL and view.checkpoint_step is not None

    def _open_next_step(self) -> None:
        view = self._workbench.runs.get(self._run_id)
        if view is not None and self._has_policy(view):
            self._workbench.page_requested.emit("policy")
        else:
            is_evaluation = view is not None and view.kind == RunKind.POLICY_EVAL
            self._workbench.tab_requested.emit("overview" if is_evaluation else "videos")

    def _refresh(self) -> None:
        lanes = self.frames.lanes
        state, text = lanes.status
        self._icon.set_icon(theme.icon(*VIEWER_STATUS_ICONS[state]))
        shown = f"{state} by {text}" if state == CONNECTED else text if text.startswith(state) else f"{state}: {text}"
        self._status_label.setText(shown)
        self._status_label.setToolTip(
            f"{shown}\nTorn frames that were not shown: {lanes.torn}\nInvalid headers: {lanes.invalid}"
        )
        env = self.frames.env
        (self._all if env is None else self._one).setChecked(True)
        self._fill_envs(env)
        has_image = self.frames.grid.has_image
        for widget in (self._snapshot, self._fit, self._pixels):
            widget.setEnabled(has_image)
        self._record.setEnabled(self._recording is not None or (has_image and state != UNAVAILABLE))
        self._more.setEnabled(state != UNAVAILABLE)
        self._show_zoom()

    def _fill_envs(self, env: int | None) -> None:
        if env is None:
            known = [cell.env for cell in self.frames.lanes.cells]
        else:
            known = [int(self._env.itemData(at)) for at in range(self._env.count())]
            known = known if env in known else sorted({*known, env})
        ui.set_choices(self._env, ((f"Environment {each}", each) for each in known), env)
        for widget in (self._all, self._one, self._env):
            widget.setVisible(len(known) > 1)

    def _ask_for_frames(self) -> None:
        has_more = self._more.isChecked()
        request = MORE_REQUEST if has_more else REQUEST
        other = REQUEST if has_more else MORE_REQUEST
        shares = [f"{100 * (each.budget or 0):.0f} %" for each in (request, other)]
        self._more.setToolTip(
            f"Frames take up to {shares[0]} of the run's time. "
            + (f"Click to go back to {shares[1]}." if has_more else f"Click to allow {shares[1]}.")
        )
        self.frames.limit_hint = "" if has_more else MORE_HINT
        self.frames.lanes.ask(request)

    def _show_single_env(self) -> None:
        cells = self.frames.lanes.cells
        if self.frames.env is None and cells:
            self.frames.show_env(cells[0].env)

    def _show_zoom(self) -> None:
        grid = self.frames.grid
        with QSignalBlocker(self._fit):
            self._fit.setChecked(grid.is_fit)
        self._zoom.setText(f"{100 * grid.scale * grid.devicePixelRatioF():.0f} %" if grid.has_image else "")
        if self._snapshot.isEnabled() != grid.has_image or self._env.count() < len(self.frames.lanes.cells):
            self._refresh()

    # --- evaluations

    def _on_events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, EvalSummaryUpdate) and event.run_id == self._run_id:
                self._show_summary((event.run_id, event.summary))

    def _show_summary(self, answer: tuple[str, EvaluationBatch | None]) -> None:
        run_id, summary = answer
        if run_id == self._run_id and summary is not None:
            self._eval.setText(format_eval_line(summary))
            self._eval.show()

    # --- saving

    def _export_path(self, suffix: str) -> Path:
        """Where exports of the run go, with the time in the name."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        env = "" if self.frames.env is None else f"-env{self.frames.env}"
        return self._workbench.workspace.exports(self._run_id) / f"frames{env}-{stamp}.{suffix}"

    def _ask_snapshot_path(self) -> None:
        cells = list(self.frames.lanes.cells)  # as they were at the click
        path = self._export_path("png")
        path.parent.mkdir(parents=True, exist_ok=True)
        ui.open_save_dialog(
            self, "fastlane.place", "Save snapshot", path, "Images (*.png *.jpg)", partial(self.save_snapshot, cells)
        )

    def save_snapshot(self, cells: list[Any], path: Path) -> None:
        self._workbench.bridge.run_in_background(
            lambda: save_image(cells, path),
            lambda _: self._workbench.show_message(f"Saved {path}", "good"),
            self._workbench.show_error,
            owner=self,
        )

    def _toggle_recording(self) -> None:
        if self._recording is not None:
            self.stop_recording()
            return
        recording = self._workbench.recordings.start(self._run_id, self._export_path("mp4"))
        self._recording = recording
        recording.add(self.frames.lanes.cells)
        self.frames.keep_active(True)
        self._recording_timer.start()
        self._show_recording()

    def stop_recording(self) -> None:
        if self._recording is not None:
            self._workbench.recordings.stop(self._recording)
            self._workbench.show_message("The video is being written…")
            self._recording = None
            self._recording_timer.stop()
            self.frames.keep_active(False)
            self._show_recording()
            self._refresh()

    def _on_closing(self) -> None:
        self.stop_recording()
        self.frames.suspend()

    def _record_frame(self) -> None:
        if self._recording is not None:
            self._recording.add(self.frames.lanes.cells)

    def _on_recording_saved(self, run_id: str, path: Path, frames: int) -> None:
        where = f" on this machine, in {path.parent}" if self._workbench.is_remote else ""
        text = f"Saved a video of {format_duration(frames / RATE_HZ)}{where}."
        self._workbench.offer_action(text, "Show", partial(self._show_video, run_id, path))

    def _show_video(self, run_id: str, path: Path) -> None:
        self._workbench.recordings.requested_path = path
        self._workbench.select(run_id, "videos")

    def _on_recording_failed(self, reason: str) -> None:
        if self._recording is not None and self._recording.is_stopped:
            self.stop_recording()
        self._workbench.show_message(reason, "bad")

    def _show_recording(self) -> None:
        is_on = self._recording is not None
        icon = ("mdi6.stop-circle", "bad") if is_on else ("mdi6.record-circle-outline", "text")
        self._record.setIcon(theme.icon(*icon))
        self._record.setText("Stop" if is_on else "Record")
        self._time.setVisible(is_on)
        if self._recording is not None:
            minutes, seconds = divmod(int(self._recording.elapsed_s), 60)
            self._time.setText(f"● {minutes}:{seconds:02d}")
        if self._recording is not None and self.frames.lanes.status.state == UNAVAILABLE:
            self.stop_recording()


def _last_summary(trainer: TrainerClient, run_id: str) -> tuple[str, EvaluationBatch | None]:
    """The last batch that was completed before events were received."""
    for evaluation in trainer.read_evaluations(run_id):
        return run_id, evaluation.summary.batches[-1]
    return run_id, None


RUN_TABS = (RunTab("fastlane", "FastLane", FastLaneTab, position=2),)
