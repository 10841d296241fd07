"""The live frames of a run, ready to be put anywhere: looks only while it is seen."""

from __future__ import annotations

import time
from collections.abc import Sequence

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from mosaic.gui.models.lanes import CONNECTED, UNAVAILABLE, Cell, Lanes
from mosaic.gui.views import hud
from mosaic.gui.views.frame import FrameGrid
from mosaic.gui.views.made import named
from mosaic.gui.views.words import number
from mosaic.gui.workbench import Workbench

FAST_MS = 16
SLOW_MS = 100
"""While there is nothing to see."""
TEXT_S = 0.1
ICONS = {UNAVAILABLE: "mdi6.monitor-off", "waiting": "mdi6.timer-sand", CONNECTED: "mdi6.monitor-eye"}


def sentence(text: str) -> str:
    """`the run has ended` as people write it."""
    begun = text[:1].upper() + text[1:]
    return begun if not begun or begun[-1] in ".…!?)" else f"{begun}."


def short_line(cells: Sequence[Cell]) -> str:
    """What matters most, for one environment or several."""
    seen = [cell.hud for cell in cells if cell.hud]
    if not seen:
        return ""
    mean = sum(float(told["return"]) for told in seen) / len(seen)
    if len(cells) > 1:
        return hud.SPACE.join((f"{len(cells)} environments", f"mean return {number(mean)}"))
    return hud.SPACE.join((f"episode {seen[0]['episode']:,}", f"return {number(mean)}"))


class FramesView(QWidget):
    """`show_run(run_id)`; a click on a cell looks at it alone, Esc at all again."""

    changed = Signal()
    """How it stands, or what is looked at."""
    came = Signal()
    """New frames are in `lanes.cells`."""

    def __init__(self, workbench: Workbench, is_small: bool = False) -> None:
        """`is_small`: beside other things, with the shortest line of text."""
        super().__init__()
        self._workbench = workbench
        self._is_small = is_small
        self.lanes = Lanes(workbench.bridge, workbench.runs, workbench.events, workbench.is_remote, self)
        self.grid = named(FrameGrid(), "frames.grid")
        self.is_held = False
        """Looks although nobody sees it, for a film."""
        self._pointed: int | None = None
        self._text_at = 0.0
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._look)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.grid)
        self.lanes.changed.connect(self._judge)
        self.grid.chosen.connect(self.look_at)
        self.grid.left.connect(lambda: self.look_at(None))
        self.grid.stepped.connect(self._step)
        self.grid.pointed.connect(self._point)
        workbench.theme_changed.connect(self.grid.update)

    # --- what is looked at

    def show_run(self, run_id: str) -> None:
        if run_id == self.lanes.run_id:
            return
        self.lanes.show(run_id)
        self._refresh()
        if self.isVisible():
            self._look()

    def look_at(self, env: int | None) -> None:
        """One environment alone; None: all of them."""
        if env == self.env:
            return
        self.lanes.watch(() if env is None else (env,))
        self.grid.fit()
        self._refresh()

    @property
    def env(self) -> int | None:
        """The one that is looked at alone."""
        return self.lanes.envs[0] if self.lanes.envs else None

    def _step(self, by: int) -> None:
        if self.env is not None and self.env + by >= 0:
            self.look_at(self.env + by)

    def _point(self, env: int | None) -> None:
        self._pointed = env
        self._say()

    def _refresh(self) -> None:
        self.grid.show_cells(self.lanes.cells)
        self._judge()

    # --- while it is seen

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._timer.start(SLOW_MS)
        self._look()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        if not self.is_held:
            self.rest()

    def rest(self) -> None:
        self._timer.stop()
        self.lanes.rest()

    def hold(self, is_held: bool) -> None:
        self.is_held = is_held
        if not is_held and not self.isVisible():
            self.rest()

    def _look(self) -> None:
        before = len(self.lanes.cells)
        new = self.lanes.look()
        if new or len(self.lanes.cells) != before:
            if self.isVisible():
                self.grid.show_cells(self.lanes.cells, new)
            self.came.emit()
        if time.monotonic() >= self._text_at:
            self._say()

    def _judge(self) -> None:
        standing = self.lanes.standing
        interval = FAST_MS if standing.state == CONNECTED else SLOW_MS
        if self._timer.interval() != interval:
            self._timer.setInterval(interval)
        self.grid.show_message(sentence(standing.text), ICONS[standing.state])
        self._say()
        self.changed.emit()

    def _say(self) -> None:
        self._text_at = time.monotonic() + TEXT_S
        standing, cells = self.lanes.standing, self.lanes.cells
        if standing.state != CONNECTED and self.grid.has_picture:
            self.grid.show_text(sentence(standing.text))
        elif self._is_small:
            self.grid.show_text(short_line(cells))
        else:
            self.grid.show_text(hud.line_of(cells, self.lanes.shown_hz(), self._pointed))
