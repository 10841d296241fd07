"""Feeds a tracker. One that fails is told of once and dropped; the run and other trackers go on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from mosaic.contracts.folder import RunFolder
from mosaic.sidecar import ledger
from mosaic.sidecar.feed import Feed, checkpoints
from mosaic.sidecar.ledger import Entry, SyncState
from mosaic.sidecar.tracker import Tracker
from mosaic.sidecar.wandb_tracker import WandbTracker
from mosaic.sidecar.wishes import Facts


class Says(Protocol):
    def __call__(self, kind: str, /, **facts: object) -> None:
        """Writes an event to the sidecar's journal."""


class Recorder:
    """Of one tracker: tells it the run from its first point on, whenever it is started."""

    def __init__(self, folder: RunFolder, tracker: Tracker, facts: Facts, feed: Feed, say: Says) -> None:
        self._folder = folder
        self._tracker = tracker
        self._facts = facts
        self._feed = feed
        self._say = say
        self.is_started = False
        self._is_dropped = False

    def start(self) -> bool:
        """Whether it could be."""
        self.is_started = True
        if self._guarded(partial(self._tracker.start, self._facts)):
            self._say("tracking_started", tracker=self._tracker.name)
        return not self._is_dropped

    def follow(self, is_over: bool = False) -> None:
        """Gives it what is new. What a dropped one is not told stays in the run's files."""
        for item in self._feed.read(is_over) if not self._is_dropped else ():
            if not self._guarded(partial(item.give, self._tracker)):
                return

    def finish(self) -> bool:
        """Whether everything of the run was recorded."""
        for path, names in checkpoints(self._folder).items():
            step = int(path.name) if path.name.isdigit() else 0
            self._guarded(partial(self._tracker.checkpoint, path, step, names))
        if self._guarded(partial(self._tracker.finish, self._feed.outcome)):
            self._say("tracking_ended", tracker=self._tracker.name, rows=self._tracker.rows)
        return not self._is_dropped

    def _guarded(self, call: Callable[[], None]) -> bool:
        if self._is_dropped:
            return False
        try:
            call()
        except (Exception, SystemExit) as error:
            self._is_dropped = True
            self._say("warning", text=_told(self._tracker.name, error, self._folder.run_id), code="tracking_failed")
        return not self._is_dropped


class WandbRecorder(Recorder):
    """Enters what it makes into the W&B ledger's `state`."""

    def __init__(self, folder: RunFolder, facts: Facts, feed: Feed, say: Says, state: SyncState) -> None:
        self._wandb = WandbTracker(folder)
        super().__init__(folder, self._wandb, facts, feed, say)
        self._state = state
        self._entry = Entry(is_whole=False)

    def start(self) -> bool:
        if not super().start():
            return False
        # What was recorded before is in this one, too: it begins with the run's first point.
        for entry in self._state.entries.values():
            entry.state = ledger.SUPERSEDED
        self._state.entries[self._wandb.path.name] = self._entry
        self._state.project, self._state.entity = self._facts.project, self._facts.entity
        ledger.write(self._folder, self._state)
        return True

    def follow(self, is_over: bool = False) -> None:
        super().follow(is_over)
        self._entry.records = self._wandb.rows

    def finish(self) -> bool:
        self._entry.is_whole = super().finish()
        self._entry.records = self._wandb.rows
        if self._state.entries:
            ledger.write(self._folder, self._state)
        return self._entry.is_whole


def _told(name: str, error: BaseException, run_id: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == name:
        later = f" Then: mosaic wandb sync {run_id}" if name == "wandb" else ""
        command = f"pip install 'mosaic-rl[{name}]'"
        return f"The run is not recorded for {name}, which is not installed. Install it: {command}.{later}"
    said = " ".join(str(error).split())[:300] or type(error).__name__
    return f"{name} failed, so the run is no longer recorded for it ({type(error).__name__}: {said}). The run goes on."
