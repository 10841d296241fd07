"""The process of a sidecar: record, upload, push, exit."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from mosaic.base.files import file_size, write_json
from mosaic.base.journal import Follower, Journal
from mosaic.contracts.events import Finished
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.payload import Payload
from mosaic.features.hub.core_push import push_after_training
from mosaic.features.tracking.sidecar import sync_state
from mosaic.features.tracking.sidecar.recorder import Recorder, TrackioRecorder, WandbRecorder
from mosaic.features.tracking.sidecar.run_monitor import RUN_POLL_S, RunMonitor
from mosaic.features.tracking.sidecar.sync_state import SyncState
from mosaic.features.tracking.sidecar.wandb_connection import WandbProblem
from mosaic.features.tracking.sidecar.wandb_environment import wandb_environment
from mosaic.features.tracking.sidecar.wandb_sync import UploadQueue, offline_warning

SHUTDOWN_LIMIT_S = 600.0
"""The sidecar exits this long after the run, even with work left."""
_MODES_WITHOUT_UPLOAD = ("offline", "dryrun", "disabled")
"""Of WANDB_MODE: what was recorded waits for `mosaic wandb sync`."""


class SidecarProcess:
    """Tracks one attempt, which starts at the offset `journal_from` of the journal.

    `is_upload_only`: the run is a user's program, which tracks itself.
    """

    def __init__(self, folder: RunFolder, monitor: RunMonitor, journal_from: int, is_upload_only: bool) -> None:
        self._folder = folder
        self._monitor = monitor
        self._journal_from = journal_from
        self._is_upload_only = is_upload_only
        self._journal = Journal(folder.sidecar)
        self._may_upload = os.environ.get("WANDB_MODE", "").lower() not in _MODES_WITHOUT_UPLOAD
        self._has_warned_offline = False

    def run(self, repo: str | None = None) -> None:
        """Records and uploads; pushes the policy to `repo` on the Hugging Face Hub in the end."""
        with sync_state.acquire_lock(self._folder, SHUTDOWN_LIMIT_S, is_sidecar=True):
            state = sync_state.claim(self._folder)
            payload = Payload.read(self._folder.config)
            # Before wandb is imported, which adds variables of its own.
            env, problems = wandb_environment(payload.artifacts.wandb, Workspace.containing(self._folder).root)
            for problem in problems:
                self._emit_event("warning", text=problem, code="wandb_settings")
            uploads = UploadQueue(self._folder, env, state)
            recorders = [] if self._is_upload_only else self._build_recorders(payload, state)
            try:
                self._follow(recorders, uploads)
                if not self._monitor.is_superseded:  # else the next attempt's sidecar records and uploads everything
                    self._finish(recorders, uploads, repo)
            finally:
                uploads.close()
            if state.entries and self._is_current_attempt():
                self._add_to_analytics(state)

    def push(self, repo: str) -> None:
        """Pushes the policy if the run has succeeded."""
        exit_after(SHUTDOWN_LIMIT_S)
        if not self._monitor.is_superseded:
            push_after_training(self._folder, repo, self._read_outcome(), self._emit_event)

    def _build_recorders(self, payload: Payload, state: SyncState) -> list[Recorder]:
        recorders: list[Recorder] = []
        if payload.artifacts.wandb.enabled:
            recorders.append(WandbRecorder(self._folder, payload, self._journal_from, self._emit_event, state))
        if payload.artifacts.trackio.enabled:
            recorders.append(TrackioRecorder(self._folder, payload, self._journal_from, self._emit_event))
        return recorders

    def _follow(self, recorders: list[Recorder], uploads: UploadQueue) -> None:
        """Records and uploads until the end of the run.

        For W&B nothing is recorded before it can be uploaded: everything is in the run's files, and recording with
        wandb costs more than everything else here.
        """
        while not self._monitor.is_over():
            has_started = self._has_output()
            for recorder in recorders if has_started else []:
                if not recorder.is_started and (uploads.is_reachable or not isinstance(recorder, WandbRecorder)):
                    recorder.start()
                if recorder.is_started:
                    recorder.follow()
            needs_server = any(isinstance(one, WandbRecorder) and not one.is_started for one in recorders)
            if self._may_upload:
                self._warn_offline_once(uploads.tick(is_needed=has_started and needs_server))
            time.sleep(RUN_POLL_S)
        exit_after(SHUTDOWN_LIMIT_S)

    def _finish(self, recorders: list[Recorder], uploads: UploadQueue, repo: str | None) -> None:
        """Records and uploads the rest, or everything."""
        # In parallel: either server may use up all the time.
        pushing = threading.Thread(target=self.push, args=(repo,)) if repo else None
        if pushing:
            pushing.start()
        for recorder in recorders if self._has_output() else []:
            recorder.finish()
        if self._may_upload:
            problem = uploads.finish(SHUTDOWN_LIMIT_S, self._is_current_attempt)
            self._warn_offline_once(problem if self._is_current_attempt() else None)
        if uploads.state.entries and not uploads.state.pending_folders:
            self._emit_event("wandb_synced", url=uploads.state.url)
        if pushing:
            pushing.join()

    def _is_current_attempt(self) -> bool:
        self._monitor.is_over()  # reads the keeper's file
        return not self._monitor.is_superseded

    def _has_output(self) -> bool:
        """Returns False for a worker that has written nothing to its journal."""
        return file_size(self._folder.journal) > self._journal_from

    def _read_outcome(self) -> str | None:
        """Returns the last outcome that the worker reported in this attempt."""
        events = (line.body for line in Follower(self._folder.journal, self._journal_from).read_rest())
        outcomes = [str(event.get("outcome")) for event in events if event["kind"] == Finished.KIND]
        return outcomes[-1] if outcomes else None

    def _add_to_analytics(self, state: SyncState) -> None:
        """Adds the state to analytics.json, whose writer has ended with the run."""
        wandb = {"state": state.state, "url": state.url, "project": state.project, "ledger": "wandb/sync.json"}
        with suppress(OSError, ValueError, TypeError):
            write_json(
                self._folder.analytics,
                {**json.loads(self._folder.analytics.read_text(encoding="utf-8")), "wandb": wandb},
            )

    def _warn_offline_once(self, problem: WandbProblem | None) -> None:
        if problem is not None and not self._has_warned_offline:
            self._has_warned_offline = True
            self._emit_event("warning", text=offline_warning(problem, self._folder.run_id), code="wandb_offline")

    def _emit_event(self, kind: str, /, **fields: object) -> None:
        with suppress(OSError):  # a full disk
            self._journal.append(kind, **fields)


def record_finished_run(folder: RunFolder) -> None:
    """Creates the complete W&B recording of a finished run. The caller holds the lock of the sync state."""
    journal = Journal(folder.sidecar)
    state = sync_state.read(folder) or SyncState(folder.run_id)
    recorder = WandbRecorder(folder, Payload.read(folder.config), None, journal.append, state)
    recorder.finish()
    journal.close()
    if recorder.problem:
        raise SystemExit(recorder.problem)


def exit_after(seconds: float) -> None:
    """Exits after a delay even if something hangs, and kills all child processes."""

    def end() -> None:
        with suppress(OSError):
            for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split():
                with suppress(OSError):
                    os.killpg(int(pid), signal.SIGKILL)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
