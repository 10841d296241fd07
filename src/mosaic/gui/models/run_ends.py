"""Runs that have ended since the user looked: which are worth a notification, and its text."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.contracts.options import RunKind
from mosaic.contracts.states import Stage
from mosaic.contracts.views import RunView
from mosaic.formatting import count_noun, format_duration, format_number, run_title
from mosaic.gui.gui_settings import GuiSettings
from mosaic.gui.models.runs_model import RunsModel

COLLECT_MS = 2000
"""Runs that end within this time of each other are reported together."""
LONG_RUN_S = 60.0
FAILURES = ("failed", "lost", "rejected")
NOTIFY_SETTING = "notify"


class NotifyMode(StrEnum):
    ALWAYS = "always"
    LONG = "long"
    NEVER = "never"


NOTIFY_TITLES = {NotifyMode.ALWAYS: "Always", NotifyMode.LONG: "Long runs (1 min)", NotifyMode.NEVER: "Never"}


def notify_mode(settings: GuiSettings) -> NotifyMode:
    value = settings.get(NOTIFY_SETTING, NotifyMode.LONG)
    return NotifyMode(value) if value in list(NotifyMode) else NotifyMode.LONG


class Notification(NamedTuple):
    title: str
    text: str
    run_id: str
    """What a click on it shows."""


def is_notable(view: RunView, mode: NotifyMode) -> bool:
    if mode is NotifyMode.NEVER or view.kind == RunKind.PLAY:
        return False
    return mode is NotifyMode.ALWAYS or (view.active_s or 0.0) > LONG_RUN_S


def summarize_ends(views: Sequence[RunView]) -> Notification:
    """One text for all of them; a click shows the first that failed, else the last."""
    failed = [view for view in views if view.outcome in FAILURES]
    if len(views) > 1:
        names = "\n".join(run_title(view) for view in (*failed, *views)[:3])
        parts = [f"{count_noun(len(views), 'run')} ended", *([f"{len(failed):,} failed"] if failed else [])]
        return Notification(", ".join(parts), names, (failed or views)[-1].run_id)
    view = views[0]
    parts = [f"{view.status.capitalize()} after {format_duration(view.active_s or 0.0)}"]
    if failed and view.reason:
        parts.append(view.reason)
    elif view.episodic_return is not None:
        parts.append(f"return {format_number(view.episodic_return)}")
    return Notification(run_title(view), ", ".join(parts), view.run_id)


class RunEnds(QObject):
    """Collects runs that end while this program watches them."""

    ended = Signal(list)
    """Views of runs that ended within a short time."""

    def __init__(self, runs: RunsModel, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._runs = runs
        self._active: set[str] = set()
        self._ended: list[str] = []
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._emit)
        runs.changed.connect(self._follow)
        runs.reset.connect(self._on_reset)

    def _on_reset(self) -> None:
        """Follow the active runs, and those that were active: there may be thousands of others."""
        finished = Stage.FINISHED
        self._follow({*self._active, *(view.run_id for view in self._runs.all() if view.stage is not finished)})

    def _follow(self, run_ids: set[str]) -> None:
        for view in filter(None, map(self._runs.get, run_ids)):
            if view.stage != "finished":
                self._active.add(view.run_id)
            elif view.run_id in self._active:
                self._active.discard(view.run_id)
                self._ended.append(view.run_id)
        if self._ended and not self._timer.isActive():
            self._timer.start(COLLECT_MS)

    def _emit(self) -> None:
        views = [view for view in map(self._runs.get, self._ended) if view is not None and view.stage == "finished"]
        self._ended = []
        if views:
            self.ended.emit(views)
