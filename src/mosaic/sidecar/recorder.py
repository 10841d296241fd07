"""Feeds the trackers. One that fails is told of once and dropped; the others go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from mosaic.contracts.folder import RunFolder
from mosaic.sidecar import ledger
from mosaic.sidecar.feed import checkpoints
from mosaic.sidecar.ledger import Entry, SyncState
from mosaic.sidecar.tracker import Item, Tracker
from mosaic.sidecar.trackio_tracker import TrackioTracker
from mosaic.sidecar.wandb_tracker import WandbTracker
from mosaic.sidecar.wishes import Facts, Wishes


class Says(Protocol):
    def __call__(self, kind: str, /, **facts: object) -> None:
        """Writes an event to the sidecar's journal."""


class Recorder:
    """`state` is the W&B ledger's, which the W&B tracker's folder is entered into."""

    def __init__(self, folder: RunFolder, wishes: Wishes, state: SyncState, say: Says) -> None:
        self._folder = folder
        self._state = state
        self._say = say
        self._wanted: list[tuple[Tracker, Facts]] = []
        if wishes.wandb is not None:
            self._wanted.append((WandbTracker(folder), wishes.wandb))
        if wishes.trackio is not None:
            self._wanted.append((TrackioTracker(folder), wishes.trackio))
        self._trackers: list[Tracker] = []
        self._entry: Entry | None = None

    @property
    def wandb_folder(self) -> str | None:
        """The name of the folder that is being written."""
        return next((tracker.path.name for tracker in self._trackers if isinstance(tracker, WandbTracker)), None)

    def start(self) -> None:
        for tracker, facts in self._wanted:
            if self._guarded(tracker, partial(tracker.start, facts)):
                self._trackers.append(tracker)
                self._say("tracking_started", tracker=tracker.name)
                if isinstance(tracker, WandbTracker):
                    self._enter(tracker, facts)

    def give(self, items: Iterable[Item]) -> None:
        for item in items:
            for tracker in self._trackers[:]:
                self._guarded(tracker, partial(item.give, tracker))
        if self._entry is not None:
            self._entry.records = sum(tracker.rows for tracker in self._trackers if isinstance(tracker, WandbTracker))

    def finish(self, outcome: str | None) -> None:
        for path, names in checkpoints(self._folder).items():
            step = int(path.name) if path.name.isdigit() else 0
            for tracker in self._trackers[:]:
                self._guarded(tracker, partial(tracker.checkpoint, path, step, names))
        for tracker in self._trackers[:]:
            if self._guarded(tracker, partial(tracker.finish, outcome)):
                self._say("tracking_ended", tracker=tracker.name, rows=tracker.rows)
                if isinstance(tracker, WandbTracker) and self._entry is not None:
                    self._entry.is_whole, self._entry.records = True, tracker.rows
                    ledger.write(self._folder, self._state)

    def _enter(self, tracker: WandbTracker, facts: Facts) -> None:
        """What was recorded before is in this one, too: it begins with the run's first point."""
        for entry in self._state.entries.values():
            entry.state = ledger.SUPERSEDED
        self._entry = Entry(is_whole=False)
        self._state.entries[tracker.path.name] = self._entry
        self._state.project, self._state.entity = facts.project, facts.entity
        ledger.write(self._folder, self._state)

    def _guarded(self, tracker: Tracker, call: Callable[[], None]) -> bool:
        try:
            call()
        except (Exception, SystemExit) as error:
            if tracker in self._trackers:
                self._trackers.remove(tracker)
            self._say("warning", text=_told(tracker.name, error, self._folder.run_id), code="tracking_failed")
            return False
        return True


def _told(name: str, error: BaseException, run_id: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == name:
        later = f" Then: mosaic wandb sync {run_id}" if name == "wandb" else ""
        command = f"pip install 'mosaic-rl[{name}]'"
        return f"The run is not recorded for {name}, which is not installed. Install it: {command}.{later}"
    said = " ".join(str(error).split())[:300] or type(error).__name__
    return f"{name} failed, so the run is no longer recorded for it ({type(error).__name__}: {said}). The run goes on."
