"""The live frames of a run, ready to be put anywhere: looks only while it is seen."""

from __future__ import annotations

import time
from collections.abc import Sequence

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from mosaic.fastlane import CONNECTED, UNAVAILABLE, WAITING
from mosaic.formatting import format_si_number
from mosaic.gui.models.lanes import FrameCell, Lanes
from mosaic.gui.views import hud_line
from mosaic.gui.views.frame_grid import FrameGrid
from mosaic.gui.views.widgets import with_object_name
from mosaic.gui.workbench import Workbench

POLL_MS = 16
IDLE_POLL_MS = 100
"""While there is nothing to see."""
TEXT_INTERVAL_S = 0.1
FRAME_STATE_ICONS = {UNAVAILABLE: "mdi6.monitor-off", WAITING: "mdi6.timer-sand", CONNECTED: "mdi6.monitor-eye"}


def to_sentence(text: str) -> str:
    """`the run has ended` as people write it."""
    begun = text[:1].upper() + text[1:]
    return begun if not begun or begun[-1] in ".…!?)" else f"{begun}."


def format_short_hud(cells: Sequence[FrameCell]) -> str:
    """What matters most, for one environment or several."""
    seen = [cell.hud for cell in cells if cell.hud]
    if not seen:
        return ""
    mean = sum(float(hud["return"]) for hud in seen) / len(seen)
    if len(cells) > 1:
        return hud_line.SEPARATOR.join((f"{len(cells)} environments", f"mean return {format_si_number(mean)}"))
    return hud_line.SEPARATOR.join((f"episode {seen[0]['episode']:,}", f"return {format_si_number(mean)}"))


class FramesView(QWidget):
    """`show_run(run_id)`; a click on a cell looks at it alone, Esc at all again."""

    changed = Signal()
    """The status line or the shown environment has changed."""
    frames_received = Signal()
    """New frames are in `lanes.cells`."""

    def __init__(self, workbench: Workbench, is_small: bool = False) -> None:
        """`is_small`: next to other widgets, with the shortest line of text."""
        super().__init__()
        self._workbench = workbench
        self._is_small = is_small
        self.lanes = Lanes(workbench.bridge, workbench.runs, workbench.events, workbench.is_remote, self)
        self.grid = with_object_name(FrameGrid(), "frames.grid")
        self.is_kept_active = False
        """Keeps reading while hidden, for a recording."""
        self._hovered_env: int | None = None
        self._next_text_at = 0.0
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._poll)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.grid)
        self.lanes.changed.connect(self._update_status)
        self.grid.env_clicked.connect(self.show_env)
        self.grid.escape_pressed.connect(lambda: self.show_env(None))
        self.grid.env_step_requested.connect(self._step)
        self.grid.hovered_env_changed.connect(self._on_hover)
        workbench.theme_changed.connect(self.grid.update)

    # --- what is looked at

    def show_run(self, run_id: str) -> None:
        if run_id == self.lanes.run_id:
            return
        self.lanes.show_run(run_id)
        self._refresh()
        if self.isVisible():
            self._poll()

    def show_env(self, env: int | None) -> None:
        """One environment alone; None: all of them."""
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
        self._update_text()

    def _refresh(self) -> None:
        self.grid.show_cells(self.lanes.cells)
        self._update_status()

    # --- while it is seen

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._timer.start(IDLE_POLL_MS)
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
        before = len(self.lanes.cells)
        new = self.lanes.poll()
        if new or len(self.lanes.cells) != before:
            if self.isVisible():
                self.grid.show_cells(self.lanes.cells, new)
            self.frames_received.emit()
        if time.monotonic() >= self._next_text_at:
            self._update_text()

    def _update_status(self) -> None:
        standing = self.lanes.status
        interval = POLL_MS if standing.state == CONNECTED else IDLE_POLL_MS
        if self._timer.interval() != interval:
            self._timer.setInterval(interval)
        self.grid.show_message(to_sentence(standing.text), FRAME_STATE_ICONS[standing.state])
        self._update_text()
        self.changed.emit()

    def _update_text(self) -> None:
        self._next_text_at = time.monotonic() + TEXT_INTERVAL_S
        standing, cells = self.lanes.status, self.lanes.cells
        if standing.state != CONNECTED and self.grid.has_image:
            self.grid.show_text(to_sentence(standing.text))
        elif self._is_small:
            self.grid.show_text(format_short_hud(cells))
        else:
            self.grid.show_text(hud_line.format_hud(cells, self.lanes.frame_rate_hz(), self._hovered_env))
