"""Getting what is offline to W&B: while a run goes on, and afterwards."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import RunRecord, Stage
from mosaic.secrets import wandb_environment
from mosaic.sidecar import sync_state
from mosaic.sidecar.sync_state import SyncEntry, SyncState
from mosaic.sidecar.tracking_request import is_user_program, parse_tracking_request, worker_extras
from mosaic.sidecar.wandb_connection import WandbProblem, check_connection
from mosaic.sidecar.wandb_upload import NOT_INSTALLED_PROBLEM, UploadResult, WandbUpload, is_wandb_installed

POLL_S = 0.2
RETRY_DELAYS_S = (60.0, 300.0, 1200.0, 3600.0)
"""While a run goes on: how long after each failure W&B is looked for again, and no more; then once at its end."""
MAX_PARALLEL_UPLOADS = 4
"""A script may write several runs of W&B at a time."""
SYNC_TIMEOUT_S = 3600.0
OnState = Callable[[SyncState], None]


def sync_run(
    run_folder: RunFolder | Path,
    env: Mapping[str, str],
    on_state: OnState | None = None,
    timeout_s: float = SYNC_TIMEOUT_S,
) -> SyncState:
    """Uploads what is not on W&B yet, after making anew what was not recorded to its end. Blocks; imports no wandb.

    `env` is the environment of the upload, with WANDB_API_KEY and proxies. How it went is in the state that is
    returned, and in the run's ledger; raises where there is nothing to upload, or where somebody else does.
    """
    folder = run_folder if isinstance(run_folder, RunFolder) else RunFolder(run_folder)
    payload = _read_payload(folder)
    if _is_active(folder):
        raise NotAllowed(
            f"Run {folder.run_id} is still at work and uploads by itself. Look: mosaic wandb status {folder.run_id}"
        )
    wanted = parse_tracking_request(payload, folder.run_id).wandb is not None
    if not wanted and not sync_state.wandb_folders(folder):
        raise BadInput(f"Run {folder.run_id} was not tracked with W&B: there is nothing to upload.")
    try:
        with sync_state.acquire_lock(folder):
            state = sync_state.claim(sync_state.read(folder) or SyncState(folder.run_id))
            if wanted and not is_user_program(payload) and not _has_complete_recording(state):
                _record_in_subprocess(folder, env, timeout_s)
                state = sync_state.claim(sync_state.read(folder) or state)
            upload_all(folder, env, state, on_state or _ignore_state, timeout_s)
            return state
    except BlockingIOError:
        raise NotAllowed(
            f"Run {folder.run_id} is being uploaded already. Look: mosaic wandb status {folder.run_id}"
        ) from None


def upload_environment(folder: RunFolder, payload: Payload | None = None) -> tuple[dict[str, str], list[str]]:
    """Ours with the key and the proxies that this run's config and workspace name; and what was wrong with those."""
    payload = payload or _read_payload(folder)
    try:
        found, problems = wandb_environment(worker_extras(payload), Workspace.containing(folder).root)
    except MosaicError as error:  # a secret store that cannot be read
        found, problems = {}, [str(error)]
    return {**os.environ, **found}, problems


def upload_all(
    folder: RunFolder,
    env: Mapping[str, str],
    state: SyncState,
    on_state: OnState,
    timeout_s: float,
    should_continue: Callable[[], bool] = lambda: True,
) -> WandbProblem | None:
    """One after the other, until one fails, or nobody wants it any more. By whoever holds the ledger's lock."""
    deadline = time.monotonic() + timeout_s

    def may_go_on() -> bool:
        return time.monotonic() < deadline and should_continue()

    found: WandbProblem | None = None
    try:
        names = _uploadable_folders(folder, state)
        if names:
            found = (None if is_wandb_installed() else NOT_INSTALLED_PROBLEM) or check_connection(env)
            if found is not None:
                _mark_failed(state, names, found)
        for name in names if found is None else []:
            found = _upload_folder(folder, env, state, name, on_state, may_go_on)
            if found is not None:
                break
    finally:
        state.process = None
        _save_and_notify(folder, state, on_state)
    return found


def _upload_folder(
    folder: RunFolder,
    env: Mapping[str, str],
    state: SyncState,
    name: str,
    on_state: OnState,
    should_continue: Callable[[], bool],
) -> WandbProblem | None:
    entry = state.entries[name]
    upload = WandbUpload(folder, folder.wandb / name, env)
    try:
        entry.state, entry.error = sync_state.SYNCING, None
        _save_and_notify(folder, state, on_state)
        while (result := upload.poll()) is None:
            if not should_continue():
                upload.kill()
                result = UploadResult(WandbProblem("W&B took too long"), entry.url)
                break
            if upload.url != entry.url:
                entry.url = upload.url
                _save_and_notify(folder, state, on_state)
            time.sleep(POLL_S)
    except BaseException:
        upload.kill()
        entry.state, entry.error = sync_state.FAILED, sync_state.INTERRUPTED_MESSAGE
        raise
    apply_result(entry, result, sync_state.data_size_bytes(folder.wandb / name))
    return result.problem


class LiveUpload:
    """Uploads while the run goes on: never waits for long, and gives up until the end after a few tries."""

    def __init__(self, folder: RunFolder, env: Mapping[str, str], state: SyncState) -> None:
        self._folder = folder
        self._env = env
        self._state = state
        self._uploads: dict[str, WandbUpload] = {}
        self._failures = 0
        self._next_attempt_at = 0.0
        self.is_reachable = False
        """When it was last looked for."""

    def tick(self, is_needed: bool = False) -> WandbProblem | None:
        """What is in the way, when something newly is. `is_needed`: somebody would record, if it could be sent."""
        found = self._poll_uploads()
        self._discover_folders()
        names = [name for name in _uploadable_folders(self._folder, self._state) if name not in self._uploads]
        free = MAX_PARALLEL_UPLOADS - len(self._uploads)
        if found is None and (names or is_needed) and free > 0 and time.monotonic() >= self._next_attempt_at:
            found = (None if is_wandb_installed() else NOT_INSTALLED_PROBLEM) or check_connection(self._env)
            self.is_reachable = found is None
            if found is not None and names:
                _mark_failed(self._state, names, found)
                sync_state.write(self._folder, self._state)
            for name in names[:free] if found is None else []:
                self._start_upload(name)
        if found is not None:
            self._schedule_retry(found)
        return found

    def stop(self, timeout_s: float = 0.0, should_continue: Callable[[], bool] = lambda: True) -> WandbProblem | None:
        """The run is over: who follows it comes to its end by itself, or is ended."""
        deadline = time.monotonic() + timeout_s
        found = None
        while self._uploads and time.monotonic() < deadline and should_continue():
            found = self._poll_uploads() or found
            time.sleep(POLL_S)
        for name, upload in self._uploads.items():
            upload.kill()
            self._state.entries[name].state = sync_state.OFFLINE
        self._uploads.clear()
        return found

    def _schedule_retry(self, problem: WandbProblem) -> None:
        is_enough = problem.is_permanent or self._failures >= len(RETRY_DELAYS_S)
        self._next_attempt_at = math.inf if is_enough else time.monotonic() + RETRY_DELAYS_S[self._failures]
        self._failures += 1

    def _discover_folders(self) -> None:
        """A script's own runs of W&B."""
        for path in sync_state.wandb_folders(self._folder):
            if path.name not in self._state.entries and sync_state.data_size_bytes(path):
                self._state.entries[path.name] = SyncEntry(state=sync_state.detect_state(path))

    def _start_upload(self, name: str) -> None:
        entry = self._state.entries[name]
        self._uploads[name] = WandbUpload(self._folder, self._folder.wandb / name, self._env, is_live=True)
        entry.state, entry.error = sync_state.SYNCING, None
        sync_state.write(self._folder, self._state)

    def _poll_uploads(self) -> WandbProblem | None:
        found = None
        for name, upload in list(self._uploads.items()):
            entry, url = self._state.entries[name], upload.url
            result = upload.poll()
            if result is not None:
                del self._uploads[name]
                apply_result(entry, result, sync_state.data_size_bytes(self._folder.wandb / name))
                found = result.problem
            if result is not None or url != entry.url:
                entry.url = url or entry.url
                sync_state.write(self._folder, self._state)
        return found


def apply_result(entry: SyncEntry, result: UploadResult, size_bytes: int) -> None:
    entry.url = result.url or entry.url
    entry.size_bytes = size_bytes
    entry.updated_at = time.time()
    if result.problem is None:
        entry.state, entry.error, entry.sent_bytes = sync_state.SYNCED, None, size_bytes
    else:
        entry.state, entry.error = sync_state.FAILED, error_sentence(result.problem)


def error_sentence(problem: WandbProblem) -> str:
    return f"{problem.message}. {problem.advice}".strip()


def offline_warning(problem: WandbProblem, run_id: str) -> str:
    """The one sentence that a run says of it."""
    return f"{error_sentence(problem)} The run is kept offline; sync it later with: mosaic wandb sync {run_id}"


def _uploadable_folders(folder: RunFolder, state: SyncState) -> list[str]:
    """Those that wait and hold something: a file that is just being opened is nothing yet."""
    return [name for name in state.pending_folders if sync_state.data_size_bytes(folder.wandb / name)]


def _mark_failed(state: SyncState, names: list[str], problem: WandbProblem) -> None:
    for name in names:
        entry = state.entries[name]
        entry.state = sync_state.FAILED if problem.is_from_server else sync_state.OFFLINE
        entry.error, entry.updated_at = error_sentence(problem), time.time()


def _save_and_notify(folder: RunFolder, state: SyncState, on_state: OnState) -> None:
    if state.entries:
        sync_state.write(folder, state)
    on_state(state)


def _ignore_state(_: SyncState) -> None:
    pass


def _has_complete_recording(state: SyncState) -> bool:
    return any(entry.is_whole and entry.state != sync_state.SUPERSEDED for entry in state.entries.values())


def _record_in_subprocess(folder: RunFolder, env: Mapping[str, str], timeout_s: float) -> None:
    """In a process of its own: wandb is imported there."""
    if not is_wandb_installed():
        raise BadInput(error_sentence(NOT_INSTALLED_PROBLEM))
    command = [sys.executable, "-m", "mosaic.sidecar", "record", str(folder.path)]
    try:
        subprocess.run(
            command, env=dict(env), timeout=timeout_s, stdin=subprocess.DEVNULL, capture_output=True, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MosaicError(
            f"Run {folder.run_id} could not be recorded for W&B: {_subprocess_error_text(error)}."
        ) from None


def _subprocess_error_text(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"exit code {error.returncode}"
    return str(error)[:300]


def _read_payload(folder: RunFolder) -> Payload:
    try:
        return Payload.model_validate_json(folder.config.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder.config} cannot be read, so nobody knows what to upload: {error}") from None


def _is_active(folder: RunFolder) -> bool:
    try:
        return RunRecord.model_validate_json(folder.record.read_text()).stage is not Stage.FINISHED
    except (OSError, ValueError):
        return False
