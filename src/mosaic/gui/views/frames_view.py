"""The live frames of a run, and the line of text with them. They are read only while they are visible."""

from __future__ import annotations

import time
from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from mosaic.fastlane import CONNECTED, UNAVAILABLE, WAITING, describe_cost
from mosaic.formatting import capitalize_first, format_si_number
from mosaic.gui.models.lanes import FrameCell, Lanes
from mosaic.gui.views.frame_grid import FrameGrid
from mosaic.gui.views.widgets import column, create_timer, with_object_name
from mosaic.gui.workbench import Workbench

POLL_MS = 16
IDLE_POLL_MS = 100
"""While there are no frames."""
SESSION_POLL_MS = 8
"""While a session is played: a frame is shown soon after the key that caused it."""
TEXT_INTERVAL_S = 0.1
SEPARATOR = "   "
FRAME_STATE_ICONS = {UNAVAILABLE: "mdi6.monitor-off", WAITING: "mdi6.timer-sand", CONNECTED: "mdi6.monitor-eye"}


def to_sentence(text: str) -> str:
    """Capitalize `the run has ended` and add the period."""
    sentence = capitalize_first(text)
    return sentence if not sentence or sentence[-1] in ".…!?)" else f"{sentence}."


def format_short_hud(cells: Sequence[FrameCell]) -> str:
    """Return what matters most of one environment or several."""
    huds = [cell.hud for cell in cells if cell.hud]
    if not huds:
        return ""
    mean = format_si_number(sum(hud.episodic_return for hud in huds) / len(huds))
    if len(cells) > 1:
        return SEPARATOR.join((f"{len(cells)} environments", f"mean return {mean}"))
    return SEPARATOR.join((f"episode {huds[0].episode:,}", f"return {mean}"))


def format_hud(
    cells: Sequence[FrameCell], frame_rate_hz: float, hovered_env: int | None = None, limit_hint: str = ""
) -> str:
    """Return the status of one environment, of the one under the pointer, or the range of several.

    `limit_hint`: how to have more frames, where their cost limits them.
    """
    huds = [cell.hud for cell in cells if cell.hud]
    if not huds:
        return ""
    one = huds[0] if len(cells) == 1 else next((hud for hud in huds if hud.env == hovered_env), None)
    if one is not None:
        parts = [f"environment {one.env}"] if len(cells) > 1 or one.env else []
        parts += [f"episode {one.episode:,}", f"step {one.step:,}"]
        parts += [f"reward {format_si_number(one.reward)}", f"return {format_si_number(one.episodic_return)}"]
    else:
        returns = [hud.episodic_return for hud in huds]
        episodes = _format_range([hud.episode for hud in huds])
        mean = format_si_number(sum(returns) / len(returns))
        parts = [f"{len(cells)} environments", f"episode {episodes}", f"return {_format_range(returns)}, mean {mean}"]
    hint = f": {limit_hint}" if limit_hint and any(hud.is_limited for hud in huds) else ""
    parts.append(f"{frame_rate_hz:.1f} frames/s, {describe_cost(huds)}".rstrip(", ") + hint)
    return SEPARATOR.join(parts)


def _format_range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return format_si_number(low) if low == high else f"{format_si_number(low)} to {format_si_number(high)}"


class FramesView(QWidget):
    """The frames of all environments; a click on one shows it alone, Esc shows all again."""

    changed = Signal()
    """The status line or the shown environment has changed."""
    frames_received = Signal()
    """New frames are in `lanes.cells`."""

    def __init__(self, workbench: Workbench, is_small: bool = False, is_session: bool = False) -> None:
        """`is_small`: next to other widgets, with the shortest line of text.

        `is_session`: of a play session, without a line of text, and polled often also while it waits for a key.
        """
        super().__init__()
        self._workbench = workbench
        self._is_small = is_small
        self._is_session = is_session
        self.lanes = Lanes(workbench.bridge, workbench.runs, workbench.events, workbench.is_remote, self)
        self.grid = with_object_name(FrameGrid(has_text=not is_session), "frames.grid")
        self.is_kept_active = False
        """Keeps reading while hidden, for a recording."""
        self.limit_hint = ""
        """How to have more frames, where their cost limits them."""
        self._hovered_env: int | None = None
        self._next_text_at = 0.0
        self._timer = create_timer(self, IDLE_POLL_MS, self._poll)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        column(self.grid, parent=self)
        self.lanes.changed.connect(self._update_status)
        self.grid.env_clicked.connect(self.show_env)
        self.grid.escape_pressed.connect(lambda: self.show_env(None))
        self.grid.env_step_requested.connect(self._step)
        self.grid.hovered_env_changed.connect(self._on_hover)

    # --- what is shown

    def show_run(self, run_id: str) -> None:
        if run_id == self.lanes.run_id:
            return
        self.lanes.show_run(run_id)
        self._refresh()
        if self.isVisible():
            self._poll()

    def show_env(self, env: int | None) -> None:
        """Show one environment alone; None: all of them."""
        if env == self.env:
            return
        self.lanes.select_envs(() if env is None else (env,))
        self.grid.fit()
        self._refresh()

    @property
    def env(self) -> int | None:
        """The environment that is shown alone."""
        return self.lanes.envs[0] if self.lanes.envs else None

    def _step(self, by: int) -> None:
        if self.env is not None and self.env + by >= 0:
            self.show_env(self.env + by)

    def _on_hover(self, env: int | None) -> None:
        self._hovered_env = env
        self.lanes.ask(self.lanes.request, env)
        self._update_text()

    def _refresh(self) -> None:
        self.grid.show_cells(self.lanes.cells)
        self._update_status()

    # --- reading while visible

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._timer.start()
        self._poll()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if not self.is_kept_active:
            self.suspend()

    def suspend(self) -> None:
        self._timer.stop()
        self.lanes.suspend()

    def keep_active(self, is_kept_active: bool) -> None:
        self.is_kept_active = is_kept_active
        if not is_kept_active and not self.isVisible():
            self.suspend()

    def _poll(self) -> None:
        if self.window().isMinimized() and not self.is_kept_active:
            self.lanes.suspend()
            return
        before = len(self.lanes.cells)
        new = self.lanes.poll()
        if new or len(self.lanes.cells) != before:
            if self.isVisible():
                self.grid.show_cells(self.lanes.cells, new)
            self.frames_received.emit()
        if time.monotonic() >= self._next_text_at:
            self._update_text()

    def _update_status(self) -> None:
        status = self.lanes.status
        interval = POLL_MS if status.state == CONNECTED else IDLE_POLL_MS
        if self._is_session and not self.lanes.is_suspended:
            interval = SESSION_POLL_MS
        if self._timer.interval() != interval:
            self._timer.setInterval(interval)
        self.grid.show_message(to_sentence(status.text), FRAME_STATE_ICONS[status.state])
        self._update_text()
        self.changed.emit()

    def _update_text(self) -> None:
        self._next_text_at = time.monotonic() + TEXT_INTERVAL_S
        status, cells = self.lanes.status, self.lanes.cells
        if self._is_session:
            return
        if status.state != CONNECTED and self.grid.has_image:
            self.grid.show_text(to_sentence(status.text))
        elif self._is_small:
            self.grid.show_text(format_short_hud(cells))
        else:
            self.grid.show_text(format_hud(cells, self.lanes.frame_rate_hz(), self._hovered_env, self.limit_hint))
