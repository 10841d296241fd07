"""Play, pause, step, scrub and speed of one replay, or of two together."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QElapsedTimer, QSignalBlocker, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QSlider, QToolButton, QWidget

from mosaic.gui import theme
from mosaic.gui.views import widgets as ui

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
