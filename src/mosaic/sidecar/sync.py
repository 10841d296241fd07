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
from mosaic.sidecar import ledger
from mosaic.sidecar.ledger import Entry, SyncState
from mosaic.sidecar.reach import Trouble, trouble
from mosaic.sidecar.upload import MISSING, Result, Upload, is_installed
from mosaic.sidecar.wishes import extras_of, is_foreign, wishes

POLL_S = 0.2
RETRIES_S = (60.0, 300.0, 1200.0, 3600.0)
"""While a run goes on: how long after each failure W&B is looked for again, and no more; then once at its end."""
MOST_UPLOADS = 4
"""A script may write several runs of W&B at a time."""
SYNC_LIMIT_S = 3600.0
OnState = Callable[[SyncState], None]


def sync_run(
    run_folder: RunFolder | Path, env: Mapping[str, str], on_state: OnState | None = None, limit_s: float = SYNC_LIMIT_S
) -> SyncState:
    """Uploads what is not on W&B yet, after making anew what was not recorded to its end. Blocks; imports no wandb.

    `env` is the environment of the upload, with WANDB_API_KEY and proxies. How it went is in the state that is
    returned, and in the run's ledger; raises where there is nothing to upload, or where somebody else does.
    """
    folder = run_folder if isinstance(run_folder, RunFolder) else RunFolder(run_folder)
    payload = _payload(folder)
    if _is_active(folder):
        raise NotAllowed(
            f"Run {folder.run_id} is still at work and uploads by itself. Look: mosaic wandb status {folder.run_id}"
        )
    wanted = wishes(payload, folder.run_id).wandb is not None
    if not wanted and not ledger.wandb_folders(folder):
        raise BadInput(f"Run {folder.run_id} was not tracked with W&B: there is nothing to upload.")
    try:
        with ledger.locked(folder):
            state = ledger.claimed(ledger.read(folder) or SyncState(folder.run_id))
            if wanted and not is_foreign(payload) and not _has_whole(state):
                _record(folder, env, limit_s)
                state = ledger.claimed(ledger.read(folder) or state)
            upload_all(folder, env, state, on_state or _nobody, limit_s)
            return state
    except BlockingIOError:
        raise NotAllowed(
            f"Run {folder.run_id} is being uploaded already. Look: mosaic wandb status {folder.run_id}"
        ) from None


def upload_environment(folder: RunFolder, payload: Payload | None = None) -> tuple[dict[str, str], list[str]]:
    """Ours with the key and the proxies that this run's config and workspace name; and what was wrong with those."""
    payload = payload or _payload(folder)
    try:
        found, problems = wandb_environment(extras_of(payload), Workspace.of(folder).root)
    except MosaicError as error:  # a secret store that cannot be read
        found, problems = {}, [str(error)]
    return {**os.environ, **found}, problems


def upload_all(
    folder: RunFolder,
    env: Mapping[str, str],
    state: SyncState,
    on_state: OnState,
    limit_s: float,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Trouble | None:
    """One after the other, until one fails, or nobody wants it any more. By whoever holds the ledger's lock."""
    deadline = time.monotonic() + limit_s

    def may_go_on() -> bool:
        return time.monotonic() < deadline and is_wanted()

    found: Trouble | None = None
    try:
        names = _filled(folder, state)
        if names:
            found = (None if is_installed() else MISSING) or trouble(env)
            if found is not None:
                _fail(state, names, found)
        for name in names if found is None else []:
            found = _upload(folder, env, state, name, on_state, may_go_on)
            if found is not None:
                break
    finally:
        state.process = None
        _note(folder, state, on_state)
    return found


def _upload(
    folder: RunFolder,
    env: Mapping[str, str],
    state: SyncState,
    name: str,
    on_state: OnState,
    may_go_on: Callable[[], bool],
) -> Trouble | None:
    entry = state.entries[name]
    upload = Upload(folder, folder.wandb / name, env)
    try:
        entry.state, entry.error = ledger.SYNCING, None
        _note(folder, state, on_state)
        while (result := upload.poll()) is None:
            if not may_go_on():
                upload.end()
                result = Result(Trouble("W&B took too long"), entry.url)
                break
            if upload.url != entry.url:
                entry.url = upload.url
                _note(folder, state, on_state)
            time.sleep(POLL_S)
    except BaseException:
        upload.end()
        entry.state, entry.error = ledger.FAILED, ledger.INTERRUPTED
        raise
    settle(entry, result, ledger.data_size(folder.wandb / name))
    return result.trouble


class LiveUpload:
    """Uploads while the run goes on: never waits for long, and gives up until the end after a few tries."""

    def __init__(self, folder: RunFolder, env: Mapping[str, str], state: SyncState) -> None:
        self._folder = folder
        self._env = env
        self._state = state
        self._uploads: dict[str, Upload] = {}
        self._failures = 0
        self._next_at = 0.0
        self.is_reachable = False
        """When it was last looked for."""

    def tick(self, is_needed: bool = False) -> Trouble | None:
        """What is in the way, when something newly is. `is_needed`: somebody would record, if it could be sent."""
        found = self._collect()
        self._discover()
        names = [name for name in _filled(self._folder, self._state) if name not in self._uploads]
        free = MOST_UPLOADS - len(self._uploads)
        if found is None and (names or is_needed) and free > 0 and time.monotonic() >= self._next_at:
            found = (None if is_installed() else MISSING) or trouble(self._env)
            self.is_reachable = found is None
            if found is not None and names:
                _fail(self._state, names, found)
                ledger.write(self._folder, self._state)
            for name in names[:free] if found is None else []:
                self._start(name)
        if found is not None:
            self._wait(found)
        return found

    def end(self, patience_s: float = 0.0, is_wanted: Callable[[], bool] = lambda: True) -> Trouble | None:
        """The run is over: who follows it comes to its end by itself, or is ended."""
        deadline = time.monotonic() + patience_s
        found = None
        while self._uploads and time.monotonic() < deadline and is_wanted():
            found = self._collect() or found
            time.sleep(POLL_S)
        for name, upload in self._uploads.items():
            upload.end()
            self._state.entries[name].state = ledger.OFFLINE
        self._uploads.clear()
        return found

    def _wait(self, found: Trouble) -> None:
        is_enough = found.is_lasting or self._failures >= len(RETRIES_S)
        self._next_at = math.inf if is_enough else time.monotonic() + RETRIES_S[self._failures]
        self._failures += 1

    def _discover(self) -> None:
        """A script's own runs of W&B."""
        for path in ledger.wandb_folders(self._folder):
            if path.name not in self._state.entries and ledger.data_size(path):
                self._state.entries[path.name] = Entry(state=ledger.unlisted_state(path))

    def _start(self, name: str) -> None:
        entry = self._state.entries[name]
        self._uploads[name] = Upload(self._folder, self._folder.wandb / name, self._env, is_live=True)
        entry.state, entry.error = ledger.SYNCING, None
        ledger.write(self._folder, self._state)

    def _collect(self) -> Trouble | None:
        found = None
        for name, upload in list(self._uploads.items()):
            entry, url = self._state.entries[name], upload.url
            result = upload.poll()
            if result is not None:
                del self._uploads[name]
                settle(entry, result, ledger.data_size(self._folder.wandb / name))
                found = result.trouble
            if result is not None or url != entry.url:
                entry.url = url or entry.url
                ledger.write(self._folder, self._state)
        return found


def settle(entry: Entry, result: Result, size_bytes: int) -> None:
    entry.url = result.url or entry.url
    entry.size_bytes = size_bytes
    entry.updated_at = time.time()
    if result.trouble is None:
        entry.state, entry.error, entry.sent_bytes = ledger.SYNCED, None, size_bytes
    else:
        entry.state, entry.error = ledger.FAILED, told(result.trouble)


def told(trouble: Trouble) -> str:
    return f"{trouble.words}. {trouble.advice}".strip()


def kept_offline(trouble: Trouble, run_id: str) -> str:
    """The one sentence that a run says of it."""
    return f"{told(trouble)} The run is kept offline; sync it later with: mosaic wandb sync {run_id}"


def _filled(folder: RunFolder, state: SyncState) -> list[str]:
    """Those that wait and hold something: a file that is just being opened is nothing yet."""
    return [name for name in state.waiting if ledger.data_size(folder.wandb / name)]


def _fail(state: SyncState, names: list[str], trouble: Trouble) -> None:
    for name in names:
        entry = state.entries[name]
        entry.state = ledger.FAILED if trouble.is_answer else ledger.OFFLINE
        entry.error, entry.updated_at = told(trouble), time.time()


def _note(folder: RunFolder, state: SyncState, on_state: OnState) -> None:
    if state.entries:
        ledger.write(folder, state)
    on_state(state)


def _nobody(_: SyncState) -> None:
    pass


def _has_whole(state: SyncState) -> bool:
    return any(entry.is_whole and entry.state != ledger.SUPERSEDED for entry in state.entries.values())


def _record(folder: RunFolder, env: Mapping[str, str], limit_s: float) -> None:
    """In a process of its own: wandb is imported there."""
    if not is_installed():
        raise BadInput(told(MISSING))
    command = [sys.executable, "-m", "mosaic.sidecar", "record", str(folder.path)]
    try:
        subprocess.run(
            command, env=dict(env), timeout=limit_s, stdin=subprocess.DEVNULL, capture_output=True, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MosaicError(f"Run {folder.run_id} could not be recorded for W&B: {_reason(error)}.") from None


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"exit code {error.returncode}"
    return str(error)[:300]


def _payload(folder: RunFolder) -> Payload:
    try:
        return Payload.model_validate_json(folder.config.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder.config} cannot be read, so nobody knows what to upload: {error}") from None


def _is_active(folder: RunFolder) -> bool:
    try:
        return RunRecord.model_validate_json(folder.record.read_text()).stage is not Stage.FINISHED
    except (OSError, ValueError):
        return False
