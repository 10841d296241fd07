"""The FastLane tab: a run's environments, live."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt, QTimer
from PySide6.QtWidgets import (
    QButtonGroup,
    QComboBox,
    QFileDialog,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from mosaic.client import Trainer
from mosaic.client.evaluation import eval_line
from mosaic.gui import theme
from mosaic.gui.models.evaluation import SUMMARY_EVENT
from mosaic.gui.models.lanes import CONNECTED, UNAVAILABLE
from mosaic.gui.models.recording import Recording, save_picture
from mosaic.gui.views.empty import Empty
from mosaic.gui.views.frames import FramesView
from mosaic.gui.views.made import named, state_label
from mosaic.gui.views.words import duration
from mosaic.gui.workbench import Json, Workbench

STATE_ICONS = {
    CONNECTED: ("mdi6.access-point", "good"),
    "waiting": ("mdi6.timer-sand", "warning"),
    UNAVAILABLE: ("mdi6.access-point-off", "muted"),
}
BUDGETS = (
    ("1.5 % of training", None),
    ("5 % of training", 0.05),
    ("10 % of training", 0.1),
    ("25 % of training", 0.25),
)


class FastLane(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id: str | None = None
        self._recording: Recording | None = None
        self.frames = named(FramesView(workbench), "fastlane.frames")
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, theme.GAP)
        column.setSpacing(theme.GAP)
        column.addLayout(self._bar())
        self._next = named(QPushButton(), "fastlane.next")
        self._next.clicked.connect(self._go_on)
        self._over = named(Empty("", "", self._next), "fastlane.over")
        self._stack = QStackedWidget()
        self._stack.addWidget(self.frames)
        self._stack.addWidget(self._over)
        column.addWidget(self._stack, 1)
        self._eval = named(QLabel(), "fastlane.eval")
        self._eval.setFont(theme.monospace())
        self._eval.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._eval.hide()
        column.addWidget(self._eval)
        self._clock = QTimer(self, interval=500)
        self._clock.timeout.connect(self._show_recording)
        self.frames.changed.connect(self._refresh)
        self.frames.grid.zoomed.connect(self._show_zoom)
        self.frames.came.connect(self._film)
        self.frames.came.connect(self._show_zoom)
        workbench.bridge.told.connect(self._hear)
        workbench.runs.changed.connect(self._run_changed)
        workbench.theme_changed.connect(self._theme)
        workbench.closing.connect(self._close)
        self._theme()

    # --- building

    def _bar(self) -> QHBoxLayout:
        bar = QHBoxLayout()
        bar.setSpacing(4)
        self._state_icon = QLabel()
        self._state = state_label("fastlane.state")
        bar.addWidget(self._state_icon)
        bar.addWidget(self._state, 1)
        self._all = self._button("fastlane.grid", "mdi6.view-grid-outline", "All environments (Esc)", True)
        self._one = self._button(
            "fastlane.single", "mdi6.square-outline", "One environment (click a cell; arrow keys)", True
        )
        pair = QButtonGroup(self)
        for button in (self._all, self._one):
            pair.addButton(button)
            bar.addWidget(button)
        self._env = named(QComboBox(), "fastlane.env")
        self._env.setToolTip("Which environment")
        self._env.setPlaceholderText("All environments")
        self._env.activated.connect(lambda at: self.frames.look_at(int(self._env.itemData(at))))
        bar.addWidget(self._env)
        bar.addSpacing(theme.GAP)
        self._fit = self._button(
            "fastlane.fit", "mdi6.fit-to-page-outline", "Fit into the view (0, or a double click)", True
        )
        self._pixels = self._button("fastlane.pixels", "mdi6.numeric-1-box-outline", "Pixel by pixel (1)")
        self._zoom = named(QLabel(), "fastlane.zoom")
        self._zoom.setProperty("muted", True)
        self._zoom.setMinimumWidth(self.fontMetrics().horizontalAdvance("8888 %"))
        self._zoom.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._zoom.setToolTip("Zoom with the wheel or + and -, move by dragging")
        for widget in (self._fit, self._pixels, self._zoom):
            bar.addWidget(widget)
        bar.addSpacing(theme.GAP)
        self._budget = named(QComboBox(), "fastlane.budget")
        for title, share in BUDGETS:
            self._budget.addItem(title, share)
        self._budget.setToolTip("How much of the training's time drawing may take: more gives more frames a second")
        self._budget.activated.connect(lambda at: self.frames.lanes.wish(None, self._budget.itemData(at)))
        drawing = QLabel("Drawing")
        drawing.setProperty("muted", True)
        bar.addWidget(drawing)
        bar.addWidget(self._budget)
        bar.addSpacing(theme.GAP)
        self._time = named(QLabel(), "fastlane.time")
        self._time.setMinimumWidth(self.fontMetrics().horizontalAdvance("● 88:88"))
        self._time.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        kept = self._time.sizePolicy()
        kept.setRetainSizeWhenHidden(True)  # what stands beside it does not jump
        self._time.setSizePolicy(kept)
        self._record = self._button("fastlane.record", "mdi6.record-circle-outline", "Record a film (MP4)")
        self._record.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._record.setMinimumWidth(self.fontMetrics().horizontalAdvance("Record") + 48)
        self._snapshot = self._button(
            "fastlane.snapshot", "mdi6.camera-outline", "Save what is seen as a picture (PNG)"
        )
        for widget in (self._time, self._record, self._snapshot):
            bar.addWidget(widget)
        self._all.clicked.connect(lambda: self.frames.look_at(None))
        self._one.clicked.connect(self._look_at_one)
        self._fit.clicked.connect(lambda: self.frames.grid.fit())
        self._pixels.clicked.connect(lambda: self.frames.grid.show_pixels())
        self._record.clicked.connect(self._record_or_stop)
        self._snapshot.clicked.connect(self._ask_for_place)
        return bar

    def _button(self, name: str, icon: str, tip: str, is_checkable: bool = False) -> QToolButton:
        button = named(QToolButton(), name)
        button.setToolTip(tip)
        button.setAccessibleName(tip)
        button.setProperty("flat", not is_checkable)
        button.setCheckable(is_checkable)
        button.setProperty("icon_name", icon)
        return button

    def _theme(self) -> None:
        for button in self.findChildren(QToolButton):
            if name := button.property("icon_name"):
                button.setIcon(theme.icon(name))
        self._refresh()
        self._show_recording()

    # --- what is shown

    def show_run(self, run_id: str) -> None:
        if run_id == self._run_id:
            return
        self.stop_recording()
        self._run_id = run_id
        self._eval.hide()
        self.frames.show_run(run_id)
        self._run_changed({run_id})
        self._refresh()
        view = self._workbench.runs.get(run_id)
        if view is not None and view.get("kind") == "policy_eval":
            self._workbench.bridge.ask(lambda trainer: _last_summary(trainer, run_id), self._take_summary, owner=self)

    def _run_changed(self, run_ids: set[str]) -> None:
        """A run that was over before we looked has nothing to show but a way on."""
        view = self._workbench.runs.get(self._run_id) if self._run_id in run_ids and self._run_id else None
        if view is None:
            return
        is_over = view["stage"] == "finished" and not self.frames.grid.has_picture
        if is_over:
            self._over.say(f"The run has ended: {view['outcome']}", "Frames are live: they are seen while it runs.")
            is_evaluation = view.get("kind") == "policy_eval"
            rest = "Show its results" if is_evaluation else "Show its videos"
            self._next.setText("Evaluate its policy" if self._has_policy(view) else rest)
        self._stack.setCurrentWidget(self._over if is_over else self.frames)

    def _has_policy(self, view: Json) -> bool:
        return view.get("kind") != "policy_eval" and view.get("checkpoint_step") is not None

    def _go_on(self) -> None:
        view = self._workbench.runs.get(self._run_id) if self._run_id else None
        if view is not None and self._has_policy(view):
            self._workbench.page_wanted.emit("policy")
        else:
            is_evaluation = view is not None and view.get("kind") == "policy_eval"
            self._workbench.tab_wanted.emit("overview" if is_evaluation else "videos")

    def _refresh(self) -> None:
        lanes = self.frames.lanes
        state, text = lanes.standing
        name, colour = STATE_ICONS[state]
        self._state_icon.setPixmap(theme.icon(name, colour).pixmap(16, 16))
        shown = f"{state} by {text}" if state == CONNECTED else text if text.startswith(state) else f"{state}: {text}"
        self._state.setText(shown)
        self._state.setToolTip(
            f"{shown}\nTorn frames that were not shown: {lanes.torn}\nInvalid headers: {lanes.invalid}"
        )
        env = self.frames.env
        (self._all if env is None else self._one).setChecked(True)
        self._fill_envs(env)
        has_picture = self.frames.grid.has_picture
        for button in (self._snapshot, self._fit, self._pixels):
            button.setEnabled(has_picture)
        self._record.setEnabled(self._recording is not None or (has_picture and state != UNAVAILABLE))
        self._budget.setEnabled(state != UNAVAILABLE)
        self._show_zoom()

    def _fill_envs(self, env: int | None) -> None:
        if env is None:
            known = [cell.env for cell in self.frames.lanes.cells]
        else:
            known = [int(self._env.itemData(at)) for at in range(self._env.count())]
            known = known if env in known else sorted({*known, env})
        if known != [self._env.itemData(at) for at in range(self._env.count())]:
            self._env.clear()
            for each in known:
                self._env.addItem(f"Environment {each}", each)
        self._env.setCurrentIndex(known.index(env) if env in known else -1)
        for widget in (self._all, self._one, self._env):
            widget.setVisible(len(known) > 1)

    def _look_at_one(self) -> None:
        cells = self.frames.lanes.cells
        if self.frames.env is None and cells:
            self.frames.look_at(cells[0].env)

    def _show_zoom(self) -> None:
        grid = self.frames.grid
        with QSignalBlocker(self._fit):
            self._fit.setChecked(grid.is_fit)
        self._zoom.setText(f"{100 * grid.scale * grid.devicePixelRatioF():.0f} %" if grid.has_picture else "")
        if self._snapshot.isEnabled() != grid.has_picture or self._env.count() < len(self.frames.lanes.cells):
            self._refresh()

    # --- evaluations

    def _hear(self, events: list[Json]) -> None:
        for event in events:
            if event["kind"] == SUMMARY_EVENT and event["run_id"] == self._run_id:
                self._take_summary((event["run_id"], event["summary"]))

    def _take_summary(self, answer: tuple[str, Json | None]) -> None:
        run_id, summary = answer
        if run_id == self._run_id and summary is not None:
            self._eval.setText(eval_line(summary))
            self._eval.show()

    # --- keeping

    def _place(self, ending: str) -> Path:
        """Where exports of the run go, under a name that is not taken."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        env = "" if self.frames.env is None else f"-env{self.frames.env}"
        return self._workbench.workspace.root / "exports" / str(self._run_id) / f"frames{env}-{stamp}.{ending}"

    def _ask_for_place(self) -> None:
        cells = list(self.frames.lanes.cells)  # as they were at the click
        place = self._place("png")
        place.parent.mkdir(parents=True, exist_ok=True)
        dialog = named(QFileDialog(self, "Save snapshot", str(place), "Pictures (*.png *.jpg)"), "fastlane.place")
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix("png")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(lambda path: self.save_snapshot(cells, Path(path)))
        dialog.open()

    def save_snapshot(self, cells: list[Any], path: Path) -> None:
        self._workbench.bridge.work(
            lambda: save_picture(cells, path),
            lambda _: self._workbench.say(f"Saved {path}", "good"),
            self._workbench.tell_error,
            owner=self,
        )

    def _record_or_stop(self) -> None:
        if self._recording is not None:
            self.stop_recording()
            return
        recording = Recording(self._workbench.bridge, self._place("mp4"), self)
        recording.saved.connect(lambda path, frames: self._saved(recording, path, frames))
        recording.failed.connect(lambda why: self._not_saved(recording, why))
        self._recording = recording
        recording.add(self.frames.lanes.cells)
        self.frames.hold(True)
        self._clock.start()
        self._show_recording()

    def stop_recording(self) -> None:
        if self._recording is not None:
            self._recording.stop()
            self._recording = None
            self._clock.stop()
            self.frames.hold(False)
            self._show_recording()
            self._refresh()

    def _close(self) -> None:
        self.stop_recording()
        self.frames.rest()

    def _film(self) -> None:
        if self._recording is not None:
            self._recording.add(self.frames.lanes.cells)

    def _saved(self, recording: Recording, path: str, frames: int) -> None:
        self._workbench.say(f"Saved a film of {duration(frames / 30)} to {path}", "good")
        recording.deleteLater()

    def _not_saved(self, recording: Recording, why: str) -> None:
        if self._recording is recording:
            self.stop_recording()
        self._workbench.say(why, "bad")
        recording.deleteLater()

    def _show_recording(self) -> None:
        is_on = self._recording is not None
        icon = ("mdi6.stop-circle", "bad") if is_on else ("mdi6.record-circle-outline", "text")
        self._record.setIcon(theme.icon(*icon))
        self._record.setText("Stop" if is_on else "Record")
        self._time.setVisible(is_on)
        if self._recording is not None:
            minutes, seconds = divmod(int(self._recording.seconds), 60)
            red = theme.tokens().bad
            self._time.setText(f'<span style="color: {red}">&#9679;</span> {minutes}:{seconds:02d}')
        if self._recording is not None and self.frames.lanes.standing.state == UNAVAILABLE:
            self.stop_recording()


def _last_summary(trainer: Trainer, run_id: str) -> tuple[str, Json | None]:
    """The newest that was told before we listened."""
    for found in trainer.evaluations(run_id):
        return run_id, found["batches"][-1]
    return run_id, None
