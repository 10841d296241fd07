"""`wandb/sync.json`: what of a run is on W&B's server, and what is not. Standard library only.

Every folder that wandb created in the run (`offline-run-…`) has an entry. Folders without an entry, such as those of a
script that was run without a key, are added as offline.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.base.files import write_json
from mosaic.base.processes import is_alive, own_identity
from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.keeper.worker import kill_with_descendants

if TYPE_CHECKING:
    from mosaic.features.tracking.sidecar.wandb_connection import WandbProblem

OFFLINE, SYNCING, SYNCED, FAILED = "offline", "syncing", "synced", "failed"
SUPERSEDED = "superseded"
"""A later folder contains all of it and more."""
ONLINE = "online"
"""A user's script talked to W&B by itself."""
INTERRUPTED_MESSAGE = "The upload was interrupted."
LOCK_NAME = ".sidecar.lock"
LOCK_POLL_S = 1.0
END_TIMEOUT_S = 5.0
END_POLL_S = 0.02
_STATE_PRIORITY = (SYNCING, FAILED, OFFLINE, SYNCED, ONLINE)
"""The first of these that an entry has is the state of the run."""


@dataclass
class SyncEntry:
    """One of wandb's folders."""

    state: str = OFFLINE
    size_bytes: int = 0
    sent_bytes: int = 0
    records: int | None = None
    """Rows of scalars in it; unknown for a folder of a script."""
    is_whole: bool = True
    """Whether the complete run is in it. If not, it is recorded again before it is uploaded."""
    error: str | None = None
    """Why the last upload failed."""
    url: str | None = None
    updated_at: float = 0.0

    def fail(self, problem: WandbProblem, state: str = FAILED) -> None:
        self.state, self.error, self.updated_at = state, problem.sentence, time.time()

    def apply_result(self, problem: WandbProblem | None, size_bytes: int) -> None:
        """Sets the result of an upload of `size_bytes`; `problem` is None where it succeeded."""
        self.size_bytes = size_bytes
        if problem is not None:
            self.fail(problem)
        else:
            self.state, self.error, self.sent_bytes, self.updated_at = SYNCED, None, size_bytes, time.time()


@dataclass
class SyncState:
    run_id: str
    entries: dict[str, SyncEntry] = field(default_factory=dict)
    """By the name of the folder, oldest first."""
    project: str | None = None
    """Of a run that MOSAIC records; a script's own recordings name theirs themselves."""
    entity: str | None = None
    process: ProcessIdentity | None = None
    """The process that is uploading."""

    @property
    def state(self) -> str:
        """The run's: `syncing`, `failed`, `offline`, `synced` or `online`."""
        states = {entry.state for entry in self.entries.values()}
        return next((state for state in _STATE_PRIORITY if state in states), OFFLINE)

    @property
    def url(self) -> str | None:
        return next((entry.url for entry in reversed(self.entries.values()) if entry.url), None)

    @property
    def error(self) -> str | None:
        errors = [entry.error for entry in self.entries.values() if entry.error and entry.state != SUPERSEDED]
        return errors[-1] if errors else None

    @property
    def pending_folders(self) -> list[str]:
        """The folders that are not on the server yet."""
        return [name for name, entry in self.entries.items() if entry.state in (OFFLINE, FAILED, SYNCING)]

    @property
    def has_complete_recording(self) -> bool:
        return any(entry.is_whole and entry.state != SUPERSEDED for entry in self.entries.values())

    def to_json(self) -> dict[str, Any]:
        """Returns the entries and what is derived from them."""
        data = asdict(self)
        runs = data.pop("entries")
        return {**data, "runs": runs, "state": self.state, "url": self.url, "error": self.error}


def read(folder: RunFolder) -> SyncState | None:
    """Returns None for a run without any W&B data."""
    state = _read_file(folder)
    known, state.entries = state.entries, {}
    for path in wandb_folders(folder):
        # A recorder that was killed while it started has listed the project, but not its folder.
        entry = known.get(path.name) or SyncEntry(state=detect_state(path), is_whole=state.project is None)
        entry.size_bytes = data_size_bytes(path)
        state.entries[path.name] = entry
    if state.process is not None and not is_alive(state.process):
        state.process = None
        for entry in state.entries.values():
            if entry.state == SYNCING:
                entry.state, entry.error = FAILED, INTERRUPTED_MESSAGE
    return state if state.entries or folder.wandb_ledger.exists() else None


def write(folder: RunFolder, state: SyncState) -> None:
    """Requires the lock."""
    folder.wandb.mkdir(exist_ok=True)  # without parents: a deleted run must not reappear
    for entry in state.entries.values():
        entry.updated_at = entry.updated_at or time.time()
    write_json(folder.wandb_ledger, state.to_json() | {"updated_at": time.time()})


@contextmanager
def acquire_lock(folder: RunFolder, timeout_s: float = 0.0, is_sidecar: bool = False) -> Iterator[None]:
    """Admits one recorder or uploader at a time, as long as its process lives; raises BlockingIOError otherwise.

    FileNotFoundError: the run was deleted, also while this waited. The file names the process of a sidecar, which may
    be ended.
    """
    deadline = time.monotonic() + timeout_s
    path = folder.path / LOCK_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(LOCK_POLL_S)
        if not os.path.samestat(os.fstat(descriptor), os.stat(path)):
            raise FileNotFoundError(errno.ENOENT, "The run was deleted meanwhile", str(path))
        os.ftruncate(descriptor, 0)
        if is_sidecar:
            os.write(descriptor, json.dumps(own_identity()).encode())
        yield
    finally:
        os.close(descriptor)


@contextmanager
def hold_for_move(folder: RunFolder) -> Iterator[bool]:
    """Ends the sidecar of a run whose folder is about to be moved, and keeps others from recording or uploading.

    W&B's client would create the folder again under its old path. What a sidecar has not recorded or uploaded is in the
    journal, for `mosaic wandb sync`. Yields whether there was one; raises NotAllowed where a user's command uploads.
    """
    has_ended_one = False
    deadline = time.monotonic() + END_TIMEOUT_S
    with ExitStack() as stack:
        while folder.wandb.is_dir():
            try:
                stack.enter_context(acquire_lock(folder))
                break
            except BlockingIOError:
                has_ended_one = _kill_sidecar(folder) or has_ended_one
            if time.monotonic() > deadline:
                raise NotAllowed(
                    f"Run {folder.run_id} is being uploaded to W&B, so its folder cannot be moved. Wait until that has "
                    f"ended, or stop it. Check: mosaic wandb status {folder.run_id}"
                )
            time.sleep(END_POLL_S)
        yield has_ended_one


def _kill_sidecar(folder: RunFolder) -> bool:
    """Kills the sidecar that holds the lock; returns False where it is held by another process."""
    try:
        process: ProcessIdentity = json.loads((folder.path / LOCK_NAME).read_bytes())
    except (OSError, ValueError):
        return False
    if is_alive(process):
        kill_with_descendants(process["pid"])
    return True


def claim(folder: RunFolder) -> SyncState:
    """Reads the state and marks this process as the one that uploads."""
    state = read(folder) or SyncState(folder.run_id)
    state.process = own_identity()
    return state


def wandb_folders(folder: RunFolder) -> list[Path]:
    """Lists wandb's own folders, oldest first: their names start with the time."""
    folders = [path for path in folder.wandb.glob("*run-*") if path.is_dir() and not path.is_symlink()]
    named = [path for path in folders if path.name.startswith(("offline-run-", "run-"))]
    return sorted(named, key=lambda path: path.name.removeprefix("offline-"))


def data_size_bytes(path: Path) -> int:
    """Returns the size of the one file in wandb's folder that holds everything; 0 where there is none."""
    try:
        return min(path.glob("*.wandb")).stat().st_size
    except (OSError, ValueError):
        return 0


def detect_state(path: Path) -> str:
    if not path.name.startswith("offline-"):
        return ONLINE
    return SYNCED if any(path.glob("*.wandb.synced")) else OFFLINE


def _read_file(folder: RunFolder) -> SyncState:
    """Returns an empty state where the file is missing or damaged: it is rebuilt from the folders."""
    try:
        data = json.loads(folder.wandb_ledger.read_text(encoding="utf-8"))
        entries = {name: SyncEntry(**entry) for name, entry in data["runs"].items()}
        return SyncState(folder.run_id, entries, data["project"], data["entity"], data["process"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return SyncState(folder.run_id)


def uploader_command() -> list[str]:
    """Returns the command that uploads runs and prints their states, for the window."""
    return [sys.executable, "-P", "-m", "mosaic.features.tracking.sidecar", "sync"]


def upload_request(folders: Iterable[RunFolder]) -> str:
    """For the standard input of the command."""
    return json.dumps([str(folder.path) for folder in folders])
