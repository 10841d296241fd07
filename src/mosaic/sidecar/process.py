"""The process of a sidecar: record, upload, exit."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mosaic.common.files import write_json
from mosaic.contracts.events import Finished
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import Payload
from mosaic.hub.hub_client import push_after_training
from mosaic.journal import Follower, Journal
from mosaic.sidecar import sync_state
from mosaic.sidecar.recorder import Recorder, WandbRecorder
from mosaic.sidecar.run_monitor import RUN_POLL_S, RunMonitor
from mosaic.sidecar.sync_state import SyncState
from mosaic.sidecar.tracker_feed import TrackerFeed
from mosaic.sidecar.tracking_request import parse_tracking_request
from mosaic.sidecar.trackio_tracker import TrackioTracker
from mosaic.sidecar.wandb_connection import WandbProblem
from mosaic.sidecar.wandb_sync import UploadQueue, offline_warning, upload_all, upload_environment

SHUTDOWN_LIMIT_S = 600.0
"""The sidecar exits this long after the run, even with work left."""
LIVE_UPLOAD_TIMEOUT_S = 60.0
"""How long live uploads may take to finish after the run."""


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
        self._has_warned_offline = False

    def run(self, repo: str | None = None) -> None:
        """Records and uploads; pushes the policy to `repo` on the Hugging Face Hub in the end."""
        deadline = time.monotonic() + SHUTDOWN_LIMIT_S
        while True:
            try:
                with sync_state.acquire_lock(self._folder):
                    self._record_and_upload(repo)
                    return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RUN_POLL_S)

    def push(self, repo: str) -> None:
        """Pushes the policy if the run has succeeded."""
        exit_after(SHUTDOWN_LIMIT_S)
        if not self._monitor.is_superseded:
            push_after_training(
                self._folder, repo, _read_last_outcome(self._folder.journal, self._journal_from), self._emit_event
            )

    def _record_and_upload(self, repo: str | None) -> None:
        state = sync_state.claim(sync_state.read(self._folder) or SyncState(self._folder.run_id))
        payload = Payload.read(self._folder.config)
        env = self._upload_environment(payload)
        uploads = UploadQueue(self._folder, env, state)
        recorders = self._build_recorders(payload, state)
        try:
            self._follow(recorders, uploads)
            if not self._monitor.is_superseded:  # else the next attempt's sidecar records and uploads everything
                # In parallel: either server may use up all the time.
                pushing = threading.Thread(target=self.push, args=(repo,)) if repo else None
                if pushing:
                    pushing.start()
                self._finish_recorders(recorders)
                is_current = self._is_current_attempt
                problem = uploads.wait(LIVE_UPLOAD_TIMEOUT_S, is_current)
                problem = upload_all(self._folder, env, state, lambda _: None, SHUTDOWN_LIMIT_S, is_current) or problem
                self._warn_offline_once(problem if is_current() else None)
                if state.entries and not state.pending_folders:
                    self._emit_event("wandb_synced", url=state.url)
                if pushing:
                    pushing.join()
        finally:
            uploads.stop()
            state.process = None
            if state.entries:
                sync_state.write(self._folder, state)
        if state.entries and self._is_current_attempt():
            add_wandb_to_analytics(self._folder, state)

    def _build_recorders(self, payload: Payload, state: SyncState) -> list[Recorder]:
        if self._is_upload_only:
            return []
        started_at = _read_started_at(self._folder) or time.time()
        request = parse_tracking_request(payload, self._folder.run_id, os.environ, started_at)
        recorders: list[Recorder] = []
        if request.wandb is not None:
            feed = TrackerFeed(self._folder, self._journal_from)
            recorders.append(WandbRecorder(self._folder, request.wandb, feed, self._emit_event, state))
        if request.trackio is not None:
            feed = TrackerFeed(self._folder, self._journal_from)
            tracker = TrackioTracker(self._folder)
            recorders.append(Recorder(self._folder, tracker, request.trackio, feed, self._emit_event))
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
            self._warn_offline_once(uploads.tick(is_needed=has_started and needs_server))
            time.sleep(RUN_POLL_S)
        exit_after(SHUTDOWN_LIMIT_S)

    def _finish_recorders(self, recorders: list[Recorder]) -> None:
        """Records the rest, or everything."""
        for recorder in recorders if self._has_output() else []:
            if recorder.is_started or recorder.start():
                recorder.follow(is_over=True)
                recorder.finish()

    def _is_current_attempt(self) -> bool:
        self._monitor.is_over()  # reads the keeper's file
        return not self._monitor.is_superseded

    def _upload_environment(self, payload: Payload) -> dict[str, str]:
        """Must run before this process imports wandb, which adds variables of its own."""
        env, problems = upload_environment(self._folder, payload)
        for problem in problems:
            self._emit_event("warning", text=problem, code="wandb_settings")
        return env

    def _has_output(self) -> bool:
        """Returns False for a worker that has written nothing to its journal."""
        try:
            return self._folder.journal.stat().st_size > self._journal_from
        except OSError:
            return False

    def _warn_offline_once(self, problem: WandbProblem | None) -> None:
        if problem is not None and not self._has_warned_offline:
            self._has_warned_offline = True
            self._emit_event("warning", text=offline_warning(problem, self._folder.run_id), code="wandb_offline")

    def _emit_event(self, kind: str, /, **fields: object) -> None:
        with suppress(OSError):  # a full disk
            self._journal.append(kind, **fields)


def record_finished_run(folder: RunFolder) -> None:
    """Creates the complete W&B recording of a finished run. The caller holds the lock of the sync state."""
    payload = Payload.read(folder.config)
    journal = Journal(folder.sidecar)
    problems: list[str] = []

    def emit_event(kind: str, /, **fields: object) -> None:
        journal.append(kind, **fields)
        if kind == "warning":
            problems.append(str(fields["text"]))

    run_info = parse_tracking_request(payload, folder.run_id, os.environ, _read_started_at(folder)).wandb
    if run_info is not None:
        state = sync_state.read(folder) or SyncState(folder.run_id)
        recorder = WandbRecorder(folder, run_info, TrackerFeed(folder), emit_event, state)
        if recorder.start():
            recorder.follow(is_over=True)
            recorder.finish()
    journal.close()
    if problems:
        raise SystemExit(problems[-1])


def _read_started_at(folder: RunFolder) -> float | None:
    try:
        with open(folder.journal, "rb") as file:
            return float(json.loads(file.readline())["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read_last_outcome(journal: Path, offset: int) -> str | None:
    """Returns the outcome that the worker reported in the attempt that starts at this offset of its journal."""
    outcome = None
    follower = Follower(journal, offset)
    while lines := follower.read():
        for line in lines:
            if line.body["kind"] == Finished.KIND:
                outcome = str(line.body.get("outcome"))
    return outcome


def add_wandb_to_analytics(folder: RunFolder, state: SyncState) -> None:
    """Adds the state to analytics.json, whose writer has ended with the run."""
    try:
        body: dict[str, Any] = json.loads(folder.analytics.read_text())
        body["wandb"] = sync_state.artifact_summary(state)
        write_json(folder.analytics, body)
    except (OSError, ValueError, TypeError):
        return


def exit_after(seconds: float) -> None:
    """Exits after a delay even if something hangs, and kills all child processes."""

    def end() -> None:
        for pid in _child_pids():
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _child_pids() -> list[int]:
    with suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []
