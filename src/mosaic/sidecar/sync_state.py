"""`wandb/sync.json`: what of a run is on W&B's server, and what is not. Standard library only.

Every folder that wandb made in the run (`offline-run-…`) has an entry. Folders that nobody wrote an entry for, such as
those of a script that was run without a key, are found and counted as offline.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mosaic.contracts.files import write_json
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.processes import ProcessIdentity, is_alive, own_identity

OFFLINE, SYNCING, SYNCED, FAILED = "offline", "syncing", "synced", "failed"
SUPERSEDED = "superseded"
"""A later folder holds all of it and more."""
ONLINE = "online"
"""A script of the user's talked to W&B by itself."""
INTERRUPTED_MESSAGE = "The upload was interrupted."
_STATE_PRIORITY = (SYNCING, FAILED, OFFLINE, SYNCED, ONLINE)
"""Of several entries the first of these speaks for the run."""


@dataclass
class SyncEntry:
    """One folder of wandb's."""

    state: str = OFFLINE
    size_bytes: int = 0
    sent_bytes: int = 0
    records: int | None = None
    """Rows of scalars in it; unknown where somebody else wrote it."""
    is_whole: bool = True
    """Whether everything of the run is in it. One that is not is made again before it is uploaded."""
    error: str | None = None
    """Why the last upload failed, in plain words."""
    url: str | None = None
    updated_at: float = 0.0


@dataclass
class SyncState:
    run_id: str
    entries: dict[str, SyncEntry] = field(default_factory=dict)
    """By the name of the folder, oldest first."""
    project: str | None = None
    entity: str | None = None
    process: ProcessIdentity | None = None
    """Who uploads, while somebody does."""

    @property
    def state(self) -> str:
        """The run's: `syncing`, `failed`, `offline`, `synced` or `online`."""
        found = {entry.state for entry in self.entries.values()}
        return next((state for state in _STATE_PRIORITY if state in found), OFFLINE)

    @property
    def url(self) -> str | None:
        return next((entry.url for entry in reversed(self.entries.values()) if entry.url), None)

    @property
    def error(self) -> str | None:
        return next((entry.error for entry in reversed(self.entries.values()) if entry.error), None)

    @property
    def pending_folders(self) -> list[str]:
        """The folders that are not on the server yet."""
        return [name for name, entry in self.entries.items() if entry.state in (OFFLINE, FAILED, SYNCING)]

    def to_json(self) -> dict[str, Any]:
        """As it is shown: the entries and what they come to."""
        return {
            "run_id": self.run_id,
            "state": self.state,
            "url": self.url,
            "error": self.error,
            "project": self.project,
            "entity": self.entity,
            "process": self.process,
            "runs": {name: asdict(entry) for name, entry in self.entries.items()},
        }


def read(run_folder: RunFolder | str | os.PathLike[str]) -> SyncState | None:
    """How a run stands with W&B; none where there is nothing of W&B's in it."""
    folder = run_folder if isinstance(run_folder, RunFolder) else RunFolder(run_folder)
    state = _read_file(folder) or SyncState(folder.run_id)
    known = dict(state.entries)
    state.entries = {}
    for path in wandb_folders(folder):
        entry = known.get(path.name) or SyncEntry(state=detect_state(path))
        entry.size_bytes = data_size_bytes(path)
        state.entries[path.name] = entry
    if state.process is not None and not is_alive(state.process):
        state.process = None
        for entry in state.entries.values():
            if entry.state == SYNCING:
                entry.state, entry.error = FAILED, INTERRUPTED_MESSAGE
    return state if state.entries or folder.wandb_ledger.exists() else None


def write(folder: RunFolder, state: SyncState) -> None:
    """By whoever holds the lock."""
    folder.wandb.mkdir(exist_ok=True)  # not its parents: a run that was deleted is not to come back
    for entry in state.entries.values():
        entry.updated_at = entry.updated_at or time.time()
    write_json(folder.wandb_ledger, state.to_json() | {"updated_at": time.time()})


@contextmanager
def acquire_lock(folder: RunFolder) -> Iterator[None]:
    """One recorder or uploader at a time; BlockingIOError where there is one. Held for as long as its process lives."""
    descriptor = os.open(folder.path / ".sidecar.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def wandb_folders(folder: RunFolder) -> list[Path]:
    """wandb's own, oldest first: their names begin with the time."""
    found = [path for path in folder.wandb.glob("*run-*") if path.is_dir() and not path.is_symlink()]
    named = [path for path in found if path.name.startswith(("offline-run-", "run-"))]
    return sorted(named, key=lambda path: path.name.removeprefix("offline-"))


def data_file(path: Path) -> Path | None:
    """The one file in a folder of wandb's that holds everything."""
    return next(iter(sorted(path.glob("*.wandb"))), None)


def data_size_bytes(path: Path) -> int:
    file = data_file(path)
    try:
        return file.stat().st_size if file is not None else 0
    except OSError:
        return 0


def claim(state: SyncState) -> SyncState:
    """The same, with us as who uploads."""
    state.process = own_identity()
    return state


def detect_state(path: Path) -> str:
    if not path.name.startswith("offline-"):
        return ONLINE
    return SYNCED if any(path.glob("*.wandb.synced")) else OFFLINE


def _read_file(folder: RunFolder) -> SyncState | None:
    """None where it is missing or damaged: the folders themselves tell the rest."""
    try:
        told = json.loads(folder.wandb_ledger.read_text())
        entries = {name: SyncEntry(**entry) for name, entry in told["runs"].items()}
        return SyncState(folder.run_id, entries, told["project"], told["entity"], told["process"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def artifact_summary(state: SyncState) -> dict[str, Any]:
    """What a list of a run's artifacts says of it."""
    return {"state": state.state, "url": state.url, "project": state.project, "ledger": "wandb/sync.json"}
