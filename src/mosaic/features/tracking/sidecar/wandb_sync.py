"""Uploads offline runs of W&B, while a run is active and afterwards, with W&B's own program as a child process."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from mosaic.base.worker_registry import discover_workers
from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import RunRecord, Stage
from mosaic.features.tracking.sidecar import sync_state
from mosaic.features.tracking.sidecar.sync_state import SyncEntry, SyncState
from mosaic.features.tracking.sidecar.wandb_connection import (
    NOT_INSTALLED_PROBLEM,
    WandbProblem,
    check_connection,
    problem_from_output,
)
from mosaic.features.tracking.sidecar.wandb_environment import is_wandb_installed, server_url, wandb_environment
from mosaic.probe.script_env import wandb_variables

POLL_S = 0.2
RETRY_DELAYS_S = (60.0, 300.0, 1200.0, 3600.0)
"""While a run is active: the delay after each failure. After the last one W&B is tried again when the run has ended."""
MAX_LIVE_UPLOADS = 4
"""A script may write several runs of W&B at the same time."""
LIVE_UPLOAD_TIMEOUT_S = 60.0
"""How long live uploads may take to finish after the run."""
SYNC_TIMEOUT_S = 3600.0
_CLIENT_SETTINGS = {
    f"WANDB__{part}_{name}": value
    for part in ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")
    for name, value in (("RETRY_MAX", "3"), ("RETRY_WAIT_MIN_SECONDS", "1"), ("RETRY_WAIT_MAX_SECONDS", "5"))
} | {
    "WANDB__GRAPHQL_TIMEOUT_SECONDS": "20",
    "WANDB__FILE_STREAM_TIMEOUT_SECONDS": "30",
    "WANDB_ERROR_REPORTING": "false",
    "PYTHONUNBUFFERED": "1",
}
"""By default the client retries for minutes to days. A failed upload is tried again by us or by the user."""
_REMOVED_VARIABLES = re.compile(
    r"WANDB_(?:SERVICE|MODE|MONITOR_GYM|RUN_ID|RESUME|NAME|DISABLED|SILENT|QUIET|_.*)|MOSAIC_TOKEN"
)
"""Variables that would direct the client to another process, another run, or no server at all."""
_ERROR = re.compile(r"^wandb: (?:ERROR|error)\s+(.*)$", re.MULTILINE)
_URL = re.compile(r"^wandb: .*View run .* at (\S+)\s*$", re.MULTILINE)
_ANSI_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_TAIL_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
_CLIENT = f"""
import ctypes, os, runpy, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit("The program that started this upload has ended.")
runpy.run_module("wandb", run_name="__main__", alter_sys=True)
"""
"""W&B's program, killed by the kernel when its parent ends: a live upload would otherwise never end."""
OnState = Callable[[SyncState], None]


def client_environment(env: Mapping[str, str], folder: RunFolder) -> dict[str, str]:
    """Returns the environment of W&B's client for this run."""
    inherited = {name: value for name, value in env.items() if not _REMOVED_VARIABLES.fullmatch(name)}
    # The server is resolved before the folders are set: the user's settings file is found with the original ones.
    return {**inherited, **_CLIENT_SETTINGS, "WANDB_BASE_URL": server_url(env), **wandb_variables(folder)}


class WandbUpload:
    """The upload of one offline folder; `is_live` follows a folder that is still being written."""

    def __init__(self, folder: RunFolder, path: Path, env: Mapping[str, str], is_live: bool) -> None:
        self.path = path
        self._remove_markers()
        self._log: IO[bytes] = open(folder.wandb / f"{path.name}.sync.log", "wb")  # noqa: SIM115 - closed by `end`
        command = [sys.executable, "-P", "-c", _CLIENT, str(os.getpid())]
        live = ["--live"] if is_live else []
        try:
            self._process = subprocess.Popen(
                [*command, "beta", "sync", *live, "--no-skip-synced", str(path)],
                cwd=folder.path,
                env=client_environment(env, folder),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        except OSError:
            self._log.close()
            raise

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def url(self) -> str | None:
        """The run's page, once W&B has reported it."""
        return next(reversed(_URL.findall(self._read_output())), None)

    def end(self) -> WandbProblem | None:
        """Returns why an upload that has ended failed."""
        self._log.close()
        # Even after giving up, the exit code is 0 and the marker is set: only reported errors show it.
        output = self._read_output()
        errors = _ERROR.findall(output)
        if not errors and self._process.returncode == 0 and any(self.path.glob("*.wandb.synced")):
            return None
        self._remove_markers()
        return problem_from_output(" ".join(errors or output.strip().splitlines()[-1:]))

    def kill(self) -> None:
        """Kills it with its child processes."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        self._remove_markers()

    def _remove_markers(self) -> None:
        """What an interrupted upload believes to have sent would be left out of the next one."""
        for pattern in ("*.wandb.synced", "*.wandb.syncstate"):
            for marker in self.path.glob(pattern):
                with suppress(OSError):
                    marker.unlink()

    def _read_output(self) -> str:
        try:
            with open(self._log.name, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                return _ANSI_ESCAPE.sub("", file.read().decode(errors="replace"))
        except OSError:
            return ""


class UploadQueue:
    """Uploads the folders of a run that are not on W&B yet. The caller holds the lock of the sync state.

    While the run is active, `tick` uploads several at a time, with retries; `finish` uploads the rest.
    """

    def __init__(
        self, folder: RunFolder, env: Mapping[str, str], state: SyncState, on_state: OnState = lambda _: None
    ) -> None:
        self.state = state
        self._folder = folder
        self._env = env
        self._on_state = on_state
        self._uploads: dict[str, WandbUpload] = {}
        self._failure_count = 0
        self._next_attempt_at = 0.0
        self.is_reachable = False
        """As of the last check."""

    def tick(self, is_needed: bool = False) -> WandbProblem | None:
        """Returns a new problem, soon. `is_needed`: check the connection even if there is nothing to upload yet."""
        problem = self._poll_uploads()
        for path in sync_state.wandb_folders(self._folder):  # a script adds its own
            if path.name not in self.state.entries and self._size_bytes(path.name):
                self.state.entries[path.name] = SyncEntry(state=sync_state.detect_state(path))
        if problem is None and time.monotonic() >= self._next_attempt_at:
            problem = self._start_uploads(MAX_LIVE_UPLOADS, is_live=True, is_needed=is_needed)
        if problem is not None:
            is_last = problem.is_permanent or self._failure_count >= len(RETRY_DELAYS_S)
            self._next_attempt_at = math.inf if is_last else time.monotonic() + RETRY_DELAYS_S[self._failure_count]
            self._failure_count += 1
        return problem

    def finish(self, timeout_s: float, should_continue: Callable[[], bool] = lambda: True) -> WandbProblem | None:
        """Waits for live uploads, then uploads one folder after the other until one fails; returns the problem."""
        live_deadline = time.monotonic() + LIVE_UPLOAD_TIMEOUT_S
        live_problem = None
        while self._uploads and time.monotonic() < live_deadline and should_continue():
            live_problem = self._poll_uploads() or live_problem
            time.sleep(POLL_S)
        self._stop_uploads(sync_state.OFFLINE)
        deadline = time.monotonic() + timeout_s
        try:
            while (problem := self._poll_uploads() or self._start_uploads(1)) is None and self._uploads:
                if time.monotonic() >= deadline or not should_continue():
                    problem = WandbProblem("The upload to W&B took too long")
                    self._stop_uploads(sync_state.FAILED, problem.sentence)
                    break
                time.sleep(POLL_S)
        finally:
            self._stop_uploads(sync_state.FAILED, sync_state.INTERRUPTED_MESSAGE)
            self.close()
        return problem or live_problem

    def close(self) -> None:
        """Stops all uploads and releases the state."""
        self._stop_uploads(sync_state.OFFLINE)
        self.state.process = None
        self._save()

    def _start_uploads(self, limit: int, is_live: bool = False, is_needed: bool = False) -> WandbProblem | None:
        names = [name for name in self.state.pending_folders if name not in self._uploads and self._size_bytes(name)]
        free = limit - len(self._uploads)
        if not (names or is_needed) or free <= 0:
            return None
        problem = check_connection(self._env) if is_wandb_installed() else NOT_INSTALLED_PROBLEM
        self.is_reachable = problem is None
        for name in names if problem else names[:free]:
            entry = self.state.entries[name]
            if problem is not None:
                entry.fail(problem, sync_state.FAILED if problem.is_from_server else sync_state.OFFLINE)
            else:
                self._uploads[name] = WandbUpload(self._folder, self._folder.wandb / name, self._env, is_live)
                entry.state, entry.error = sync_state.SYNCING, None
        if names:
            self._save()
        return problem

    def _poll_uploads(self) -> WandbProblem | None:
        problem = None
        for name, upload in list(self._uploads.items()):
            entry, has_ended = self.state.entries[name], not upload.is_running
            url = upload.url or entry.url
            if has_ended:
                del self._uploads[name]
                failure = upload.end()
                entry.apply_result(failure, self._size_bytes(name))
                problem = failure or problem
            if has_ended or url != entry.url:
                entry.url = url
                self._save()
        return problem

    def _stop_uploads(self, state: str, error: str | None = None) -> None:
        for name, upload in self._uploads.items():
            upload.kill()
            entry = self.state.entries[name]
            entry.state, entry.error = state, error or entry.error
        self._uploads.clear()

    def _save(self) -> None:
        if self.state.entries:
            sync_state.write(self._folder, self.state)
        self._on_state(self.state)

    def _size_bytes(self, name: str) -> int:
        """0 for a folder whose file is just being created: it is not uploaded yet."""
        return sync_state.data_size_bytes(self._folder.wandb / name)


def sync_run(
    folder: RunFolder,
    env: Mapping[str, str],
    on_state: OnState = lambda _: None,
    timeout_s: float = SYNC_TIMEOUT_S,
) -> SyncState:
    """Uploads what is not on W&B yet, after recording again what was not recorded completely. Blocks.

    `env` is the environment of the upload, with WANDB_API_KEY and proxies. The returned state, which is in the run's
    folder too, holds the result; raises where there is nothing to upload, or an upload is in progress.
    """
    payload = _read_payload(folder)
    check_hint = f"Check: mosaic wandb status {folder.run_id}"
    if _is_active(folder):
        raise NotAllowed(f"Run {folder.run_id} is active and uploads by itself. {check_hint}")
    is_tracked = payload.artifacts.wandb.enabled
    if not is_tracked and not sync_state.wandb_folders(folder):
        raise BadInput(f"Run {folder.run_id} was not tracked with W&B: there is nothing to upload.")
    try:
        with sync_state.acquire_lock(folder):
            state = sync_state.claim(folder)
            if is_tracked and not is_user_program(payload) and not state.has_complete_recording:
                _record_in_subprocess(folder, env, timeout_s)
                state = sync_state.claim(folder)
            UploadQueue(folder, env, state, on_state).finish(timeout_s)
            return state
    except BlockingIOError:
        raise NotAllowed(f"Run {folder.run_id} is being uploaded already. {check_hint}") from None


def sync_runs(folders: Iterable[RunFolder], on_message: Callable[[dict[str, Any]], None]) -> None:
    """Uploads runs one after the other and reports each change, as `SyncState.to_json`.

    The last message of a run has `is_last` and, if its upload was tried, `problems`.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # runs `finally`, which ends the child processes
    for folder in folders:
        try:
            wandb = _read_payload(folder).artifacts.wandb
            env, problems = wandb_environment(wandb, Workspace.containing(folder).root)
            state = sync_run(folder, env, lambda state: on_message(state.to_json()))
            on_message({**state.to_json(), "is_last": True, "problems": problems})
        except (MosaicError, OSError, ValueError) as error:
            on_message({"run_id": folder.run_id, "state": "failed", "error": str(error), "is_last": True})


def sync_from_stdin() -> None:
    """Uploads the run folders listed on stdin, and prints each message as one JSON line."""
    sync_runs(map(RunFolder, json.load(sys.stdin)), lambda message: print(json.dumps(message), flush=True))


def is_user_program(payload: Payload) -> bool:
    """Returns whether the run is a user's program, which tracks itself."""
    choice = payload.metadata.worker
    known = discover_workers().get(choice.id)
    return known is not None and any(choice.config.get(key) is not None for key in known.programs)


def offline_warning(problem: WandbProblem, run_id: str) -> str:
    return f"{problem.sentence} The run is stored offline; sync it later with: mosaic wandb sync {run_id}"


def _record_in_subprocess(folder: RunFolder, env: Mapping[str, str], timeout_s: float) -> None:
    """In a child process, because it imports wandb."""
    if not is_wandb_installed():
        raise BadInput(NOT_INSTALLED_PROBLEM.sentence)
    command = [sys.executable, "-P", "-m", "mosaic.features.tracking.sidecar", "record", str(folder.path)]
    try:
        subprocess.run(
            command, env=dict(env), timeout=timeout_s, stdin=subprocess.DEVNULL, capture_output=True, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
        reason = (lines or [str(error)])[-1][:300]
        raise MosaicError(f"Run {folder.run_id} could not be recorded for W&B: {reason}.") from None


def _read_payload(folder: RunFolder) -> Payload:
    try:
        return Payload.read(folder.config)
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder.config} cannot be read, so the run cannot be uploaded: {error}") from None


def _is_active(folder: RunFolder) -> bool:
    try:
        return RunRecord.model_validate_json(folder.record.read_text(encoding="utf-8")).stage is not Stage.FINISHED
    except (OSError, ValueError):
        return False
