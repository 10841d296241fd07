"""Makes the run folder here equal to that of a node: what is sent, in which order, and how it is put in place.

Journals, logs and event files only grow: what is new is appended, so that the size here is all there is to remember.
Everything else is copied whole once it no longer changes, with its modification time, which says later that it is the
same. A checkpoint appears by one rename, complete. The daemon's own files are never sent.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from mosaic.contracts.folder import RECORDING_NAME, RunFolder

CHUNK_BYTES = 4 << 20
"""The largest part of a file in one message: others take their turn in between."""
MAX_PATH = 1000
MAX_FILES = 20_000
KEEPER_NAME = "keeper.jsonl"
_CHECKPOINTS = "checkpoints"
_DAEMON_FILES = frozenset(("config.json", "record.json", "inbox.jsonl"))
_EXITED = b'"kind":"exited"'
_OUTPUT_FOLDERS = frozenset(("tensorboard", "tensorboard_eval", "videos", "runs", "hub", "wandb"))
"""What a worker writes and does not read again when it continues."""


class FileEntry(NamedTuple):
    path: str
    """Relative to the run folder, with slashes."""
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Listing:
    """A run folder at one moment."""

    files: dict[str, FileEntry] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    """Targets of symbolic links, such as `checkpoints/last`."""

    def units(self) -> dict[str, list[FileEntry]]:
        """Return the checkpoints by their folder's path, each with its files."""
        units: dict[str, list[FileEntry]] = {}
        for entry in self.files.values():
            if unit := checkpoint_of(entry.path):
                units.setdefault(unit, []).append(entry)
        return units


@dataclass(frozen=True)
class Plan:
    """What is to be transferred to make the folder here equal."""

    appended: tuple[str, ...]
    """Files that have grown."""
    whole: tuple[FileEntry, ...]
    checkpoints: dict[str, list[FileEntry]]
    """The newest first: the run deletes the oldest, perhaps while it is being copied."""
    links: dict[str, str]
    removed_checkpoints: tuple[str, ...]
    removed_links: tuple[str, ...]


class BadPath(ValueError):
    """A path from another machine that does not stay in the run folder."""


def check_path(path: str) -> str:
    """Return a relative path that stays inside of the folder and is not hidden; raise BadPath."""
    parts = PurePosixPath(path).parts
    is_inside = bool(parts) and not path.startswith("/") and "\0" not in path and len(path) <= MAX_PATH
    if not is_inside or any(part.startswith(".") for part in parts) or "/".join(parts) != path:
        raise BadPath(f"{path[:200]!r} is not a path inside of the run folder.")
    return path


def check_link(path: str, target: str) -> str:
    """Return the target of a link, which has to be a neighbour; raise BadPath."""
    check_path(path)
    if "/" in check_path(target):
        raise BadPath(f"The link {path!r} leads to {target[:200]!r}, which is not next to it.")
    return target


def is_appended(path: str) -> bool:
    """Whether a file only ever grows."""
    name = path.rpartition("/")[2]
    return path.endswith(".jsonl") or path.startswith("logs/") or "tfevents" in name or path == RECORDING_NAME


def checkpoint_of(path: str) -> str | None:
    """Return the checkpoint's folder that a file belongs to; None where it belongs to none."""
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == _CHECKPOINTS and len(parts) > 2 else None


def is_needed_to_resume(path: str) -> bool:
    """Whether a worker that continues needs the file, or appends to it."""
    return is_appended(path) or path.partition("/")[0] not in _OUTPUT_FOLDERS


def list_folder(folder: Path) -> Listing:
    """List what a run has written so far, without the daemon's files and those that are incomplete (`.name`)."""
    listing = Listing()
    for base, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not name.startswith("."))
        for name in (*names, *sorted(files)):
            path = os.path.join(base, name)
            relative = os.path.relpath(path, folder).replace(os.sep, "/")
            if name.startswith(".") or relative in _DAEMON_FILES or len(listing.files) >= MAX_FILES:
                continue
            with suppress(OSError):  # a rotation may have deleted it
                if os.path.islink(path):
                    listing.links[relative] = os.readlink(path)
                elif name in files:
                    status = os.stat(path)
                    listing.files[relative] = FileEntry(relative, status.st_size, status.st_mtime_ns)
    return listing


def make_plan(there: Listing, here: Listing, earlier: Listing | None, is_final: bool) -> Plan:
    """Compare two folders. `earlier` is the previous listing: a file is whole when it has not changed since.

    Nothing is waited for when the run has ended (`is_final`). Pure.
    """
    entries = [entry for entry in there.files.values() if checkpoint_of(entry.path) is None]
    changed = [entry for entry in entries if here.files.get(entry.path) != entry]
    steady = earlier.files if earlier is not None else {}
    local_units, units = here.units(), there.units()
    return Plan(
        appended=tuple(
            entry.path
            for entry in changed
            if is_appended(entry.path) and entry.size > (here.files[entry.path].size if entry.path in here.files else 0)
        ),
        whole=tuple(
            entry for entry in changed if not is_appended(entry.path) and (is_final or steady.get(entry.path) == entry)
        ),
        checkpoints={
            unit: units[unit]
            for unit in sorted(units, key=_step, reverse=True)
            if sorted(units[unit]) != sorted(local_units.get(unit, ()))
        },
        links={path: target for path, target in there.links.items() if here.links.get(path) != target},
        removed_checkpoints=tuple(unit for unit in local_units if unit not in units),
        removed_links=tuple(path for path in here.links if path not in there.links),
    )


def _step(unit: str) -> int:
    """Return the step of a checkpoint's folder; those that were moved aside come last."""
    name = unit.rpartition("/")[2]
    return int(name) if name.isdecimal() else -1


def read_chunk(folder: Path, path: str, offset: int, limit: int = CHUNK_BYTES) -> bytes:
    """Return a part of a file; empty at its end, and where it is gone."""
    try:
        with open(folder / check_path(path), "rb") as file:
            file.seek(offset)
            return file.read(min(limit, CHUNK_BYTES))
    except OSError:
        return b""


def write_chunk(folder: Path, path: str, offset: int, data: bytes) -> int:
    """Append a part that starts at the end of the file, and return the new size; another part changes nothing."""
    target = folder / check_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "ab") as file:
        if file.tell() == offset:
            file.write(data)
        return file.tell()


def split_before_exit(data: bytes) -> tuple[bytes, bytes]:
    """Divide lines of a keeper before the one that reports the exit, which is written when all else is here."""
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if _EXITED in line or not line.endswith(b"\n"):
            return b"".join(lines[:number]), b"".join(lines[number:])
    return data, b""


class LocalFolder:
    """The run folder here: knows what it holds, and puts what comes from the node in place."""

    def __init__(self, folder: RunFolder, may_write: Callable[[], bool] = lambda: True) -> None:
        """`may_write`: false once another attempt of the run has begun; what comes then is dropped."""
        self._folder = folder
        self._may_write = may_write
        self.listing = list_folder(folder.path)

    def size(self, path: str) -> int:
        return self.listing.files[path].size if path in self.listing.files else 0

    def append(self, path: str, offset: int, data: bytes) -> None:
        if self._may_write():
            size = write_chunk(self._folder.path, path, offset, data)
            self.listing.files[path] = FileEntry(path, size, 0)

    def begin_file(self, entry: FileEntry) -> Path | None:
        """Return where to write a file that is copied whole; None where it was linked to an equal one."""
        check_path(entry.path)
        draft = self._draft(entry.path)
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)
        if checkpoint_of(entry.path):
            for equal in self._equal_files(entry):
                with suppress(OSError):
                    os.link(self._folder.path / equal.path, draft)
                    return None
        return draft

    def _equal_files(self, entry: FileEntry) -> Iterator[FileEntry]:
        """Yield files of other checkpoints that are this one: parts of replay buffers are shared by checkpoints."""
        name = entry.path.rpartition("/")[2]
        for other in self.listing.files.values():
            is_same = (other.size, other.mtime_ns) == (entry.size, entry.mtime_ns)
            if is_same and checkpoint_of(other.path) and other.path.rpartition("/")[2] == name:
                yield other

    def _draft(self, path: str) -> Path:
        """Where a file is written before it is in its place: hidden, in the folder that is renamed."""
        unit = checkpoint_of(path)
        if unit is None:
            target = self._folder.path / path
            return target.with_name(f".{target.name}.tmp")
        return self._unit_draft(unit) / path.removeprefix(f"{unit}/")

    def _unit_draft(self, unit: str) -> Path:
        target = self._folder.path / unit
        return target.with_name(f".{target.name}.tmp")

    def put_file(self, entry: FileEntry) -> None:
        """Rename a file that was written completely to its name."""
        if self._may_write():
            draft = self._draft(entry.path)
            os.utime(draft, ns=(entry.mtime_ns, entry.mtime_ns))
            os.replace(draft, self._folder.path / entry.path)
            self.listing.files[entry.path] = entry

    def put_checkpoint(self, unit: str, files: Iterable[FileEntry]) -> None:
        """Rename a checkpoint whose files were all written to its name."""
        if not self._may_write():
            return
        draft, target = self._unit_draft(unit), self._folder.path / unit
        for entry in files:
            os.utime(self._draft(entry.path), ns=(entry.mtime_ns, entry.mtime_ns))
        if target.exists():
            replaced = target.with_name(f".{target.name}.replaced.tmp")
            target.rename(replaced)
            draft.rename(target)
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            draft.rename(target)
        self._forget(unit)
        self.listing.files.update((entry.path, entry) for entry in files)

    def remove_checkpoint(self, unit: str) -> None:
        if self._may_write():
            shutil.rmtree(self._folder.path / check_path(unit), ignore_errors=True)
            self._forget(unit)

    def _forget(self, unit: str) -> None:
        for path in [path for path in self.listing.files if checkpoint_of(path) == unit]:
            del self.listing.files[path]

    def set_links(self, links: Mapping[str, str], removed: Iterable[str]) -> None:
        if not self._may_write():
            return
        for path, target in links.items():
            link = self._folder.path / check_path(path)
            link.parent.mkdir(parents=True, exist_ok=True)
            draft = link.with_name(f".{link.name}.tmp")
            draft.unlink(missing_ok=True)
            draft.symlink_to(check_link(path, target))
            os.replace(draft, link)
            self.listing.links[path] = target
        for path in removed:
            (self._folder.path / check_path(path)).unlink(missing_ok=True)
            self.listing.links.pop(path, None)
