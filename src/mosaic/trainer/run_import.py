"""Imports a run: an exported zip, or a folder such as one in the trash.

The files come from someone else: what is not a plain file or a link inside the run folder is left out or refused, and
nothing is written before the number and the size of the files are known.
"""

from __future__ import annotations

import io
import lzma
import os
import shutil
import stat
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

import structlog
from pydantic import ValidationError

from mosaic.base.files import stays_inside, write_json, write_text
from mosaic.base.limited_json import decode_limited
from mosaic.base.secret_store import redact_secrets, store_secrets
from mosaic.contracts.errors import BadInput, NotAllowed
from mosaic.contracts.folder import RunFolder, validate_run_id
from mosaic.contracts.model import format_validation_error
from mosaic.contracts.options import LOCAL_EXECUTOR
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import MAX_PROBLEM_LENGTH, HistoryEntry, Outcome, RunRecord, Stage
from mosaic.contracts.views import RunView
from mosaic.trainer.intake import YIELD_S, Intake
from mosaic.trainer.records import Records

log = structlog.get_logger("mosaic.trainer.run_import")

MAX_FILES = 20_000
MAX_DEPTH = 32
"""Of folders in a run's folder."""
MAX_PATH_LENGTH = 1000
MAX_BYTES = 64 << 30
MAX_RATIO = 200
"""Unpacked bytes per byte of a zip; what a run writes is packed to a tenth at best."""
MIN_BYTES_OF_BOMB = 256 << 20
"""Below this a ratio does not matter: a log of equal lines is packed to almost nothing."""
MAX_CONFIG_BYTES = 8 << 20
"""Of config.json and record.json, which are read into memory."""
MAX_LINK_BYTES = 4096
_CONFIG, _RECORD = RunFolder("/").config.name, RunFolder("/").record.name


@dataclass(frozen=True)
class _Entry:
    """One file, folder or link of the run that is imported."""

    parts: tuple[str, ...]
    """Its path in the run folder."""
    size_bytes: int
    open: Callable[[], IO[bytes]]
    link_target: str | None = None
    is_folder: bool = False
    modified_at: float | None = None


def import_run(records: Records, source: str) -> RunView:
    """Imports a run under its own id and returns its view; refuses one that is in the workspace already.

    Its config is marked, so that programs that it names are not started.
    """
    if not source:  # it would be the folder that the daemon was started in
        raise BadInput("No path was given. Expected a run's folder, or a zip made by: mosaic export RUN --zip F.zip")
    path = Path(source)
    is_restored = path.is_dir() and path.parent == records.workspace.trash
    staging = records.workspace.runs / f".making-import-{os.getpid()}-{records.new_id()}"
    try:
        if path.is_dir():
            config = _place(list(_folder_entries(path, not is_restored)), staging, source, not is_restored)
        elif path.is_file():
            config = _unpack(path, staging)
        else:
            raise BadInput(f"{source}: no such file. Expected a zip made by: mosaic export RUN --zip F.zip")
        record = _read_record(staging, source, is_restored)
        if not is_restored:
            config["metadata"]["is_imported"] = True
            # Its modules are imported if its user trusts them, but from folders of the user's choice.
            imports = config["metadata"]["worker"].get("imports")
            config["metadata"]["worker"]["imports"] = None if imports is None else {**imports, "folders": []}
            entry = HistoryEntry(at=time.time(), stage=Stage.FINISHED, message=f"Imported from {path.name}.")
            # Resumed, it runs here: the cluster that it ran on is another machine's.
            marks = {"is_imported": True, "executor": LOCAL_EXECUTOR, "history": (*record.history, entry)}
            record = record.model_copy(update=marks)
        target = records.folder(record.run_id)
        _refuse_duplicate(target)
        write_json(staging / _CONFIG, store_secrets(config))  # a keyring may be slow: never under the lock
        with records.lock:
            _refuse_duplicate(target)
            if not is_restored:
                write_text(staging / target.record.name, record.model_dump_json(indent=2) + "\n")
            staging.rename(target.path)
            try:
                records.put(record)
            except BaseException:
                target.path.rename(staging)  # it was never acknowledged
                raise
        intake = Intake(records)
        while intake.read_next(record.run_id):
            time.sleep(YIELD_S)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if is_restored:
        shutil.rmtree(path, ignore_errors=True)
    records.notify_watchers()
    return records.view(record.run_id)


def _refuse_duplicate(target: RunFolder) -> None:
    if target.path.exists():
        raise NotAllowed(f"Run {target.run_id} is in this workspace already: {target.path}")


# --- what there is to import


def _check_path(parts: Sequence[str], source: str | Path) -> None:
    """Refuse what no run has, as soon as it is seen: each further level costs more than the one before."""
    length = sum(map(len, parts)) + len(parts)
    if len(parts) > MAX_DEPTH or length > MAX_PATH_LENGTH:
        raise BadInput(
            f"{source}: '{'/'.join(parts)[:100]}…' is {len(parts):,} folders deep and has {length:,} characters; a run "
            f"has at most {MAX_DEPTH} folders and {MAX_PATH_LENGTH:,} characters. Nothing was imported."
        )


def _folder_entries(root: Path, has_limits: bool) -> Iterator[_Entry]:
    for parent, folders, names in os.walk(root):
        if has_limits:
            _check_path(Path(parent).relative_to(root).parts, root)
        for name in (*folders, *names):
            path = Path(parent, name)
            status = path.lstat()
            parts = path.relative_to(root).parts
            if stat.S_ISLNK(status.st_mode):
                yield _Entry(parts, 0, io.BytesIO, link_target=os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                yield _Entry(parts, 0, io.BytesIO, is_folder=True)
            elif stat.S_ISREG(status.st_mode):
                yield _Entry(parts, status.st_size, partial(io.FileIO, path), modified_at=status.st_mtime)


def _unpack(path: Path, staging: Path) -> Any:
    """Unpacks a zip; returns what `_place` returns."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [_zip_entry(archive, member, path) for member in archive.infolist()]
            tops = {entry.parts[0] for entry in entries if entry.parts}
            if len(tops) != 1:
                raise BadInput(f"{path}: expected one run folder inside, found {len(tops)} entries at the top.")
            size_bytes, packed_bytes = sum(entry.size_bytes for entry in entries), path.stat().st_size
            if size_bytes > max(MIN_BYTES_OF_BOMB, MAX_RATIO * packed_bytes):
                raise BadInput(
                    f"{path}: {size_bytes:,} bytes are packed into {packed_bytes:,}, more than {MAX_RATIO} to 1. "
                    "A run is not packed so tightly; nothing was unpacked."
                )
            inside = [replace(entry, parts=entry.parts[1:]) for entry in entries if len(entry.parts) > 1]
            return _place(inside, staging, str(path))
    except (zipfile.BadZipFile, EOFError, RuntimeError, ValueError, struct.error, zlib.error, lzma.LZMAError) as error:
        raise BadInput(f"{path}: this zip cannot be read ({error}).") from None


def _zip_entry(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> _Entry:
    parts = PurePosixPath(member.filename).parts
    _check_path(parts, path)
    if any(part in ("..", "/") or "\0" in part for part in parts) or "\\" in member.filename:
        raise BadInput(f"{path}: {member.filename!r} points outside of the run folder.")
    link_target = None
    if stat.S_ISLNK(member.external_attr >> 16):
        if member.file_size > MAX_LINK_BYTES:
            raise BadInput(f"{path}: the link {member.filename!r} is not a valid one.")
        link_target = archive.read(member).decode()
    # No more bytes are read of a member than it declares.
    return _Entry(parts, member.file_size, lambda: archive.open(member), link_target, member.is_dir())


# --- writing it


def _place(entries: list[_Entry], staging: Path, source: str, has_limits: bool = True) -> Any:
    """Writes the files into an empty folder; returns the config with its secrets, which its file does not have."""
    size_bytes = sum(entry.size_bytes for entry in entries)
    staging.parent.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(staging.parent).free
    if has_limits and len(entries) > MAX_FILES:
        raise BadInput(f"{source}: {len(entries):,} files are more than a run has; the limit is {MAX_FILES:,}.")
    if size_bytes > (min(MAX_BYTES, free_bytes) if has_limits else free_bytes):
        limit = f"the limit is {MAX_BYTES:,}, and {free_bytes:,} are free on the disk"
        raise BadInput(f"{source}: its files have {size_bytes:,} bytes; {limit}.")
    staging.mkdir()
    config = None
    for entry in entries:
        if entry.parts in ((_CONFIG,), (_RECORD,)) and (entry.size_bytes > MAX_CONFIG_BYTES or entry.link_target):
            raise BadInput(f"{source}: {entry.parts[0]} is not a file of at most {MAX_CONFIG_BYTES:,} bytes.")
        if entry.parts == (_CONFIG,):
            with entry.open() as file:
                config = decode_limited(file.read().decode(errors="replace"))
            write_json(staging / _CONFIG, redact_secrets(config))
        else:
            try:
                _write_entry(entry, staging, source)
            except OSError as error:
                name = "/".join(entry.parts)[:200]
                raise BadInput(f"{source}: {name!r} cannot be written: {error.strerror or error}.") from None
    return config


def _write_entry(entry: _Entry, staging: Path, source: str) -> None:
    target = staging.joinpath(*entry.parts)
    if any(parent.is_symlink() for parent in target.parents if staging in parent.parents) or target.is_symlink():
        raise BadInput(f"{source}: {'/'.join(entry.parts)!r} is inside a symbolic link.")
    target.parent.mkdir(parents=True, exist_ok=True)
    if entry.link_target is not None:
        if stays_inside(entry.parts, entry.link_target):
            target.symlink_to(entry.link_target)
        else:
            log.info("link_left_out", source=source, link="/".join(entry.parts), target=entry.link_target[:200])
    elif entry.is_folder:
        target.mkdir(exist_ok=True)
    else:
        with entry.open() as file, open(target, "xb") as copy:
            shutil.copyfileobj(file, copy)
        if entry.modified_at is not None:
            os.utime(target, (entry.modified_at, entry.modified_at))


def _read_record(staging: Path, source: str, is_restored: bool) -> RunRecord:
    folder = RunFolder(staging)
    try:
        read = RunRecord.read if is_restored else RunRecord.model_validate_json
        record = read(folder.record.read_bytes())
        if not is_restored:
            Payload.read(folder.config)
    except ValidationError as error:
        raise BadInput(
            f"{source}: its record.json cannot be used: {format_validation_error(error)[:MAX_PROBLEM_LENGTH]} It was "
            "written by a newer version of MOSAIC, or is damaged. Nothing was imported."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{source}: this is not a MOSAIC run ({str(error).splitlines()[0]}).") from None
    try:
        validate_run_id(record.run_id)
    except ValueError as error:
        raise BadInput(f"{source}: {record.run_id[:80]!r} is not a valid run id; {error}.") from None
    if record.is_active:
        # It was exported while it ran: none of its processes is here.
        changes = {"stage": Stage.FINISHED, "outcome": Outcome.LOST, "reason": "It was exported while it ran."}
        record = record.model_copy(update=changes)
    return record
