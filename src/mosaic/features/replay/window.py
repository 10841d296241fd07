"""The recorded episodes of a run: a list, and a player that simulates them again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import QEvent, QItemSelectionModel, QModelIndex, QObject, QRectF, QSignalBlocker, QSize, Qt, Signal
from PySide6.QtGui import QColor, QHideEvent, QImage, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QMenu, QSizePolicy, QTableView, QToolButton, QWidget

from mosaic.base.formatting import format_number, short_id
from mosaic.contracts.replays import EpisodeSummary, ReplayOpened, ReplayStep
from mosaic.contracts.views import SeatState
from mosaic.features.replay.api import export_recording, fetch_recording
from mosaic.features.replay.window_player import ReplayEpisodes, ReplayProcess, ReplayTransport
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.frames import FrameGrid
from mosaic.window.lanes import FrameCell
from mosaic.window.run_dialogs import write_export
from mosaic.window.specs import RunTab
from mosaic.window.workbench import Workbench

# --- The rewards of an episode as a small chart with the current position; a click goes there.


HEIGHT_PX = 36
BAR_ALPHA = 170


class RewardStrip(QWidget):
    step_chosen = Signal(int)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.setToolTip("Reward of each step. A click goes to that step.")
        self.setAccessibleName("Rewards of the episode")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._parts: Sequence[tuple[float, float]] = ()
        self._steps = 0
        self._position = 0
        self._different_step: int | None = None

    def sizeHint(self) -> QSize:
        return QSize(200, HEIGHT_PX)

    def show_rewards(self, parts: Sequence[tuple[float, float]], steps: int) -> None:
        """`parts`: the lowest and highest reward in equal parts of the episode."""
        self._parts = parts
        self._steps = steps
        self._different_step = None
        self.update()

    def show_position(self, step: int, different_step: int | None = None) -> None:
        if (step, different_step) != (self._position, self._different_step):
            self._position, self._different_step = step, different_step
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        t = theme.tokens()
        painter.fillRect(self.rect(), QColor(t.surface))
        finite = [value for part in self._parts for value in part if math.isfinite(value)]
        if not finite:
            return
        low, high = min(0.0, *finite), max(0.0, *finite)
        room = QRectF(self.rect()).adjusted(0, 3, 0, -3)
        scale = room.height() / ((high - low) or 1.0)
        zero_y = room.bottom() + low * scale
        width = room.width() / len(self._parts)
        painter.setPen(Qt.PenStyle.NoPen)
        for place, (lowest, highest) in enumerate(self._parts):
            if not (math.isfinite(lowest) and math.isfinite(highest)):
                continue
            top, bottom = min(zero_y, zero_y - highest * scale), max(zero_y, zero_y - lowest * scale)
            bar = QRectF(room.left() + place * width, top, max(1.0, width - (1 if width > 4 else 0)), bottom - top)
            color = QColor(t.bad if highest <= 0 else t.accent)
            color.setAlpha(BAR_ALPHA)
            painter.fillRect(bar, color)
        painter.fillRect(QRectF(room.left(), zero_y, room.width(), 1), QColor(t.line))
        if self._different_step is not None:
            self._paint_marker(painter, self._different_step, QColor(t.warning))
        self._paint_marker(painter, self._position, QColor(t.text))

    def _paint_marker(self, painter: QPainter, step: int, color: QColor) -> None:
        x = step / max(1, self._steps) * (self.width() - 2)
        painter.fillRect(QRectF(x, 0, 2, self.height()), color)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._choose(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._choose(event)

    def _choose(self, event: QMouseEvent) -> None:
        if self._steps and event.buttons() & Qt.MouseButton.LeftButton:
            share = event.position().x() / max(1, self.width())
            self.step_chosen.emit(min(self._steps, max(0, round(share * self._steps))))


# --- One replay: the frame of a step, what happened in it, and whether it is what was recorded.


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


# --- The recorded episodes of a run: a list, and a player that simulates them again.


EXPORTS = (
    ("This episode as a video…", ".mp4", "Videos (*.mp4)", True),
    ("This episode as a GIF…", ".gif", "Animated images (*.gif)", True),
    ("This episode as JSONL…", ".jsonl", "One JSON object per step (*.jsonl)", True),
    ("All episodes as JSONL…", ".jsonl", "One JSON object per step (*.jsonl)", False),
)
"""Title, suffix and filter of the file, and whether it is of one episode."""


class ReplayView(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self.setObjectName("replay.view")
        self._workbench = workbench
        self._episodes = ReplayEpisodes(self)
        self.table = ui.plain_table(QTableView(), "replay.episodes")
        self.table.setModel(self._episodes)
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.table.setWordWrap(False)
        self.table.setMinimumWidth(180)
        header = self.table.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setResizeContentsPrecision(20)  # a training may have a hundred thousand episodes
        header.setSectionResizeMode(self._episodes.columnCount() - 1, QHeaderView.ResizeMode.Stretch)
        self.table.selectionModel().currentRowChanged.connect(self._choose_row)
        self.table.installEventFilter(self)
        self.player = ReplayScreen(workbench, "replay.screen")
        self.transport = ReplayTransport("replay.transport", lambda: self.player.is_busy)
        self.transport.step_requested.connect(self.player.seek)
        self.player.step_requested.connect(self._go_to)
        self.player.step_shown.connect(self._on_step_shown)
        self.player.episodes_changed.connect(self._show_episodes)
        self.player.failed.connect(lambda _: self.transport.set_steps(0))
        self.export_button = ui.tool_button(
            "replay.export", "mdi6.export-variant", "Export", text="Export", is_flat=False
        )
        self.export_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.export_button.setMenu(self._build_menu())
        self.transport.buttons.addWidget(self.export_button)
        right = ui.widget_column((self.player, 1), self.transport, margins=(theme.GAP, 0, 0, 0))
        self._split = ui.splitter(
            Qt.Orientation.Horizontal, self.table, right, sizes=[320, 640], stretch=1, name="replay.split"
        )
        self._empty = ui.EmptyState(
            "No recording", "Every play session records its episodes, and a training does with “Record episodes”."
        )
        self._stack = ui.stack(self._empty, self._split)
        ui.column(self._stack, parent=self, margins=ui.TAB_MARGINS)

    def _build_menu(self) -> QMenu:
        menu = ui.with_object_name(QMenu(self), "replay.export.menu")
        for title, suffix, file_filter, is_single in EXPORTS:
            menu.addAction(title, partial(self._ask_path, suffix, file_filter, is_single))
        return menu

    def show_run(self, run_id: str | None) -> None:
        """Show the recording of a run; None: nothing."""
        if run_id != self.player.run_id:
            self._episodes.show(())
            self.transport.set_steps(0)
        self._stack.setCurrentIndex(0 if run_id is None else 1)
        self.player.show_run(run_id)

    # --- episodes

    def _show_episodes(self) -> None:
        chosen = self.player.episode
        with QSignalBlocker(self.table.selectionModel()):
            self._episodes.show(self.player.episodes)
        if chosen is not None:
            self._select(self._episodes.row_of(chosen.number), is_quiet=True)
            if chosen.steps != self.transport.steps:  # the episode in progress has grown
                position, is_playing = self.transport.position, self.transport.is_playing
                self.transport.set_steps(chosen.steps, self.player.rate_hz)
                self.transport.show_position(position)
                if is_playing:
                    self.transport.play()
        elif self._episodes.rows:
            self._select(0)

    def _select(self, row: int, is_quiet: bool = False) -> None:
        model = self.table.selectionModel()
        flags = QItemSelectionModel.SelectionFlag.ClearAndSelect | QItemSelectionModel.SelectionFlag.Rows
        index = self._episodes.index(row, 0)
        if is_quiet:
            with QSignalBlocker(model):
                model.setCurrentIndex(index, flags)
            self.table.viewport().update()
        else:
            model.setCurrentIndex(index, flags)

    def _choose_row(self, current: QModelIndex, _: QModelIndex) -> None:
        if not current.isValid():
            return
        episode = self._episodes.rows[current.row()]
        self.transport.set_steps(episode.steps, self.player.rate_hz)
        self.player.choose_episode(episode.number)

    # --- steps

    def _go_to(self, step: int) -> None:
        self.transport.show_position(step)
        self.player.seek(step)

    def _on_step_shown(self, step: int) -> None:
        if not self.transport.is_playing and not self.player.is_busy:
            self.transport.show_position(step)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not self.transport.handle_key(event):
            super().keyPressEvent(event)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """In the list of episodes, Up and Down choose one; the other keys are those of the player."""
        if watched is self.table and isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress:
            return self.transport.handle_key(event)
        return False

    def hideEvent(self, event: QHideEvent) -> None:
        self.transport.pause()
        super().hideEvent(event)

    # --- export

    def _ask_path(self, suffix: str, file_filter: str, is_single: bool) -> None:
        run_id, episode = self.player.run_id, self.player.episode
        if run_id is None or episode is None:
            return
        number = episode.number if is_single else None
        folder = Path(self._workbench.settings.get("export.folder", str(Path.home())))
        name = f"{short_id(run_id)}-episode-{number}" if is_single else f"{short_id(run_id)}-episodes"
        ui.open_save_dialog(
            self._workbench.window,
            "export.file",
            "Export the replay",
            folder / f"{name}{suffix}",
            file_filter,
            partial(self.export, number),
        )

    def export(self, number: int | None, path: Path) -> None:
        """Write one episode, or all of them, to a file whose suffix says how."""
        view = self._workbench.runs.get_or_placeholder(self.player.run_id or "")
        write_export(self._workbench, partial(export_recording, number=number), view, path)


RUN_TABS = (RunTab("replay", "Replay", ReplayView, is_available=lambda view: view.has_recording, position=9),)
