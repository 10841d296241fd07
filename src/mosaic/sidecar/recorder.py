"""Logs a run to a tracker. A tracker that fails is reported once and dropped; the run and other trackers continue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from mosaic.contracts.folder import RunFolder
from mosaic.sidecar import sync_state
from mosaic.sidecar.sync_state import SyncEntry, SyncState
from mosaic.sidecar.tracker import Tracker
from mosaic.sidecar.tracker_feed import TrackerFeed, find_checkpoints
from mosaic.sidecar.tracking_request import TrackedRunInfo
from mosaic.sidecar.wandb_tracker import WandbTracker


class EventSink(Protocol):
    def __call__(self, kind: str, /, **fields: object) -> None:
        """Writes an event to the sidecar's journal."""


class Recorder:
    """Logs the run to one tracker from its first point on, whenever it is started."""

    def __init__(
        self, folder: RunFolder, tracker: Tracker, run_info: TrackedRunInfo, feed: TrackerFeed, emit_event: EventSink
    ) -> None:
        self._folder = folder
        self._tracker = tracker
        self._run_info = run_info
        self._feed = feed
        self._emit_event = emit_event
        self.is_started = False
        self._has_failed = False

    def start(self) -> bool:
        """Returns whether it succeeded."""
        self.is_started = True
        if self._call_guarded(partial(self._tracker.start, self._run_info)):
            self._emit_event("tracking_started", tracker=self._tracker.name)
        return not self._has_failed

    def follow(self, is_over: bool = False) -> None:
        """Logs what is new."""
        for item in self._feed.read(is_over) if not self._has_failed else ():
            if not self._call_guarded(partial(item.send_to, self._tracker)):
                return

    def finish(self) -> bool:
        """Returns whether the complete run was recorded."""
        for path, names in find_checkpoints(self._folder).items():
            step = int(path.name) if path.name.isdigit() else 0
            self._call_guarded(partial(self._tracker.log_checkpoint, path, step, names))
        if self._call_guarded(partial(self._tracker.finish, self._feed.outcome)):
            self._emit_event("tracking_ended", tracker=self._tracker.name, rows=self._tracker.row_count)
        return not self._has_failed

    def _call_guarded(self, call: Callable[[], None]) -> bool:
        if self._has_failed:
            return False
        try:
            call()
        except (Exception, SystemExit) as error:
            self._has_failed = True
            self._emit_event(
                "warning", text=_failure_message(self._tracker.name, error, self._folder.run_id), code="tracking_failed"
            )
        return not self._has_failed


class WandbRecorder(Recorder):
    """Adds the recorded folder to the sync state."""

    def __init__(
        self, folder: RunFolder, run_info: TrackedRunInfo, feed: TrackerFeed, emit_event: EventSink, state: SyncState
    ) -> None:
        self._wandb_tracker = WandbTracker(folder)
        super().__init__(folder, self._wandb_tracker, run_info, feed, emit_event)
        self._state = state
        self._entry = SyncEntry(is_whole=False)

    def start(self) -> bool:
        if not super().start():
            return False
        # Earlier recordings are contained in this one, which starts with the run's first point.
        for entry in self._state.entries.values():
            entry.state = sync_state.SUPERSEDED
        self._state.entries[self._wandb_tracker.path.name] = self._entry
        self._state.project, self._state.entity = self._run_info.project, self._run_info.entity
        sync_state.write(self._folder, self._state)
        return True

    def follow(self, is_over: bool = False) -> None:
        super().follow(is_over)
        self._entry.records = self._wandb_tracker.row_count

    def finish(self) -> bool:
        self._entry.is_whole = super().finish()
        self._entry.records = self._wandb_tracker.row_count
        if self._state.entries:
            sync_state.write(self._folder, self._state)
        return self._entry.is_whole


def _failure_message(name: str, error: BaseException, run_id: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == name:
        later = f" Then: mosaic wandb sync {run_id}" if name == "wandb" else ""
        command = f"pip install 'mosaic-rl[{name}]'"
        return f"The run is not recorded for {name}, which is not installed. Install it: {command}.{later}"
    details = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return f"{name} failed and no longer records the run ({details}). The run continues."
