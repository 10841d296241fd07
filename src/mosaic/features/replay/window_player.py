"""Play, pause, step, scrub and speed of one replay, or of two together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from PySide6.QtCore import (
    QAbstractTableModel,
    QElapsedTimer,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QProcess,
    QSignalBlocker,
    Qt,
    Signal,
)
from PySide6.QtGui import QImage, QKeyEvent
from PySide6.QtWidgets import QSlider, QToolButton, QWidget

from mosaic.base.formatting import format_si_number
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.replays import EpisodeSummary, FrameShape, ReplayFailed, ReplayOpened, ReplayRequest, ReplayStep
from mosaic.features.replay.api import REPLAY_COMMAND
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.child_process import ChildProcess

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
TICK_MS = 16
MAX_CATCH_UP_S = 0.25
"""After a pause of the window it does not jump further than it would have played in this time."""


class ReplayTransport(QWidget):
    step_requested = Signal(int)

    def __init__(self, name: str, is_busy: Callable[[], bool]) -> None:
        """While `is_busy`, playing waits, so that a slow environment is played slowly."""
        super().__init__()
        self.setObjectName(name)
        self._is_busy = is_busy
        self.position = 0
        self._rate_hz = 30.0
        self._owed_steps = 0.0
        """Steps that are due and not requested yet, with a fraction."""
        self._clock = QElapsedTimer()
        self._timer = ui.create_timer(self, TICK_MS, self._tick)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._first = self._button("first", "mdi6.skip-backward", "To the start (Home)", lambda: self._go_to(0))
        self._back = self._button("back", "mdi6.step-backward", "One step back (Left)", lambda: self.step_by(-1))
        self.play_button = self._button("play", "mdi6.play", "Play or pause (Space)", self.toggle)
        self._next = self._button("next", "mdi6.step-forward", "One step forward (Right)", lambda: self.step_by(1))
        self.slider = ui.with_object_name(QSlider(Qt.Orientation.Horizontal), f"{name}.slider")
        self.slider.setToolTip("Step of the episode")
        self.slider.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # arrow keys are steps, wherever the focus is
        self.slider.valueChanged.connect(self._go_to)
        self._label = ui.PlainLabel(name=f"{name}.position")
        self.speed = ui.combo_box(f"{name}.speed", [(f"{speed:g}×", speed) for speed in SPEEDS], "Playing speed")
        self.speed.setCurrentIndex(SPEEDS.index(1.0))
        buttons = (self._first, self._back, self.play_button, self._next)
        self.buttons = ui.row(*buttons, self._label, ui.Stretch(), self.speed)
        ui.column(self.slider, self.buttons, parent=self, spacing=4)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.set_steps(0)

    def _button(self, name: str, icon: str, tip: str, on_click: Callable[[], object]) -> QToolButton:
        return ui.tool_button(f"{self.objectName()}.{name}", icon, tip, on_click, is_flat=False)

    # --- what is shown

    @property
    def steps(self) -> int:
        return self.slider.maximum()

    def set_steps(self, steps: int, rate_hz: float = 30.0) -> None:
        """Show an episode of this length from its start; 0: nothing to play."""
        self.pause()
        self._rate_hz = rate_hz
        self._set_range(steps)
        self.show_position(0)
        self.setEnabled(steps > 0)

    def _set_range(self, steps: int) -> None:
        with QSignalBlocker(self.slider):
            self.slider.setRange(0, steps)
            self.slider.setPageStep(max(1, steps // 20))

    def show_position(self, step: int) -> None:
        self.position = min(step, self.steps)
        if not self.slider.isSliderDown():
            with QSignalBlocker(self.slider):
                self.slider.setValue(self.position)
        digits = len(f"{self.steps:,}")
        self._label.setText(f"{self.position:,} / {self.steps:,}")
        self._label.setMinimumWidth(self._label.fontMetrics().horizontalAdvance("0" * (2 * digits) + " / "))

    # --- playing

    @property
    def is_playing(self) -> bool:
        return self._timer.isActive()

    def toggle(self) -> None:
        if self.is_playing:
            self.pause()
        else:
            self.play()

    def play(self) -> None:
        if not self.steps or not self.isVisible():
            return
        if self.position >= self.steps:
            self._go_to(0)
        self._owed_steps = 0.0
        self._clock.start()
        self._timer.start()
        self._show_playing()

    def pause(self) -> None:
        self._timer.stop()
        self._show_playing()

    def _show_playing(self) -> None:
        self.play_button.setIcon(theme.icon("mdi6.pause" if self.is_playing else "mdi6.play"))

    def step_by(self, count: int) -> None:
        self.pause()
        self._go_to(min(max(self.position + count, 0), self.steps))

    def _go_to(self, step: int) -> None:
        self.show_position(step)
        self.step_requested.emit(step)

    def _tick(self) -> None:
        elapsed_s = min(self._clock.restart() / 1000, MAX_CATCH_UP_S)
        self._owed_steps += elapsed_s * self._rate_hz * float(self.speed.currentData())
        if self._is_busy():
            self._owed_steps = min(self._owed_steps, MAX_CATCH_UP_S * self._rate_hz * float(self.speed.currentData()))
            return
        if self._owed_steps < 1:
            return
        count = int(self._owed_steps)
        self._owed_steps -= count
        self._go_to(min(self.position + count, self.steps))
        if self.position >= self.steps:
            self.pause()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not self.handle_key(event):
            super().keyPressEvent(event)

    def handle_key(self, event: QKeyEvent) -> bool:
        """Space, arrows, Home and End; return whether it was one of them."""
        keys: dict[int, Callable[[], object]] = {
            Qt.Key.Key_Space: self.toggle,
            Qt.Key.Key_Left: lambda: self.step_by(-1),
            Qt.Key.Key_Right: lambda: self.step_by(1),
            Qt.Key.Key_Home: lambda: self.step_by(-self.position),
            Qt.Key.Key_End: lambda: self.step_by(self.steps),
        }
        call = keys.get(event.key())
        if call is None or not self.isEnabled() or event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier:
            return False
        call()
        return True


# --- A replay player as a process: requests are written to it, and steps with their frames arrive as signals.


MAX_BUFFERED_BYTES = 64 << 20
"""More than any reply: what sends more is not a player."""


class ReplayProcess(ChildProcess):
    opened = Signal(object)
    """A `ReplayOpened`: at the start, and after a `refresh` if there is anything new."""
    step_shown = Signal(object, object)
    """A `ReplayStep`, and its frame as a QImage or None."""
    failed = Signal(str)
    """Why there is no reply. The process may have ended."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._buffer = bytearray()
        self._last_id = 0
        self._last_reply = 0

    @property
    def is_busy(self) -> bool:
        """Whether the reply to the last request has not arrived."""
        return self.is_running and self._last_reply != self._last_id

    def open(self, path: Path) -> None:
        self.stop()
        self._buffer.clear()
        self._last_id = self._last_reply = 0
        self._launch([*REPLAY_COMMAND, "play", str(path)], QProcess.ProcessChannelMode.SeparateChannels)

    def seek(self, episode: int, step: int) -> None:
        """Request a step. It replaces an earlier request that has no reply yet."""
        self._last_id += 1
        self._send(ReplayRequest(id=self._last_id, episode=episode, step=step))

    def refresh(self) -> bool:
        """Look for new episodes; return False while a reply is expected, and nothing is done."""
        if self.is_busy:
            return False
        self._send(ReplayRequest(kind="refresh"))
        return True

    def _send(self, request: ReplayRequest) -> None:
        if self._process is not None:
            self._process.write(request.model_dump_json().encode() + b"\n")

    def _on_output(self, output: bytes) -> None:
        self._buffer += output
        try:
            while self.is_running and self._read_reply():
                pass
        except (ValueError, ValidationError, MosaicError) as error:
            self._fail(f"The replay sent something that is not a reply: {error}")
        if len(self._buffer) > MAX_BUFFERED_BYTES:
            self._fail("The replay sent something that is not a reply.")

    def _fail(self, reason: str) -> None:
        self.stop()
        self._buffer.clear()
        self.failed.emit(reason)

    def _read_reply(self) -> bool:
        """Handle the first reply in the buffer; return False while it is incomplete."""
        end = self._buffer.find(b"\n") + 1
        if not end:
            return False
        reply = json.loads(bytes(self._buffer[:end]))
        if "error" in reply:
            problem = ReplayFailed.model_validate(reply)
            del self._buffer[:end]
            self._last_reply = problem.id
            self.failed.emit(problem.message)
        elif "columns" in reply:
            del self._buffer[:end]
            self.opened.emit(ReplayOpened.model_validate(reply))
        else:
            step = ReplayStep.model_validate(reply)
            size = step.frame.size_bytes if step.frame is not None else 0
            if len(self._buffer) < end + size:
                return False
            pixels = bytes(self._buffer[end : end + size])
            del self._buffer[: end + size]
            self._last_reply = step.id
            self.step_shown.emit(step, None if step.frame is None else _to_image(step.frame, pixels))
        return True

    def _on_exit(self, how: str) -> None:
        """It ends by itself only after a failure, which it has reported unless it crashed."""
        if how != "exit code 2":
            self.failed.emit(f"The replay ended unexpectedly with {how}. The recording was not changed.")

    def _on_failed_start(self, reason: str) -> None:
        self.failed.emit(f"The replay cannot be started: {reason}.")


def _to_image(shape: FrameShape, pixels: bytes) -> QImage:
    kind = QImage.Format.Format_RGB888 if shape.channels == 3 else QImage.Format.Format_RGB32
    image = QImage(pixels, shape.width, shape.height, shape.width * shape.channels, kind)
    return image.copy()  # the image outlives the bytes


# --- The recorded episodes of a run as a table.


Index = QModelIndex | QPersistentModelIndex
COLUMNS = ("No.", "Return", "Steps", "Actor", "Ending")
_RIGHT_ALIGNED = (0, 1, 2)
ENDINGS = {"running": "left", "terminated": "terminated", "truncated": "truncated"}
"""How an episode ended, in a word: one that is `running` was left, or the session was killed."""


class ReplayEpisodes(QAbstractTableModel):
    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.rows: Sequence[EpisodeSummary] = ()

    def show(self, rows: Sequence[EpisodeSummary]) -> None:
        self.beginResetModel()
        self.rows = rows
        self.endResetModel()

    def row_of(self, number: int) -> int:
        """Return the row of an episode; -1 if there is none."""
        return next((row for row, episode in enumerate(self.rows) if episode.number == number), -1)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's signature
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's signature
        return len(COLUMNS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return COLUMNS[section]
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.TextAlignmentRole:
            return self._alignment(section)
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.ToolTipRole and not section:
            return "Number of the episode, from 0"
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return self._alignment(index.column())
        if role not in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return None
        episode = self.rows[index.row()]
        if role == Qt.ItemDataRole.ToolTipRole:
            return describe_episode(episode)
        return (
            str(episode.number),
            format_si_number(episode.total_reward),
            f"{episode.steps:,}",
            episode.actors,
            ENDINGS.get(episode.ending, episode.ending),
        )[index.column()]

    def _alignment(self, column: int) -> Qt.AlignmentFlag:
        side = Qt.AlignmentFlag.AlignRight if column in _RIGHT_ALIGNED else Qt.AlignmentFlag.AlignLeft
        return side | Qt.AlignmentFlag.AlignVCenter


def describe_episode(episode: EpisodeSummary) -> str:
    parts = [
        f"Episode {episode.number}",
        f"return {format_si_number(episode.total_reward)}",
        f"{episode.steps:,} steps",
        ENDINGS.get(episode.ending, episode.ending),
    ]
    return " · ".join([*parts, *([episode.actors] if episode.actors else [])])
