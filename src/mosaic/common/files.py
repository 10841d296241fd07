"""Writes files atomically and resolves names inside a folder. Standard library only."""

from __future__ import annotations

import errno
import json
import os
import posixpath
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from mosaic.contracts.errors import BadInput, MosaicError, StorageFailed

DISK_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)
"""Of a disk, whatever was to be written."""


def file_size(path: Path) -> int:
    """Return its size in bytes; 0 where it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def write_text(path: Path, text: str, mode: int = 0o600, is_durable: bool = False) -> None:
    """Replace the file at once: a reader sees the old text or the new one, never a part.

    A durable file is on the disk afterwards: it survives a power loss.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        if is_durable:
            fsync_path(temporary)
        os.replace(temporary, path)
        if is_durable:
            fsync_path(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def fsync_path(path: Path) -> None:
    """Flush a file or folder to the disk, so that it survives a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, data: Any, mode: int = 0o600) -> None:
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n", mode)


def write_error(path: str | Path, error: OSError) -> MosaicError:
    """Return what a user is told: a path that cannot be written is invalid input, a full or broken disk is not."""
    kind = StorageFailed if error.errno in DISK_ERRORS else BadInput
    return kind(f"{path} cannot be written: {error.strerror or error}.")


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when it is complete."""
    target = Path(path).absolute()
    part = target.with_name(f".{target.name}.part")
    try:
        with open(part, "wb") as file:
            yield file
        part.rename(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise write_error(path, error) from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def is_inner_path(name: str) -> bool:
    """Whether this is a relative path, written as simply as possible, that no file system lets lead out of a folder."""
    return name == posixpath.normpath(name) and "\0" not in name and name.split("/")[0] not in ("", ".", "..")


def stays_inside(parts: tuple[str, ...], link_target: str) -> bool:
    """Whether a link at this path of the run folder can only lead to something inside the folder.

    No `..` may follow a name, which could be a link to a folder less deep than its own place.
    """
    steps = PurePosixPath(link_target).parts
    up = next((count for count, step in enumerate(steps) if step != ".."), len(steps))
    return len(steps) > 0 and "\0" not in link_target and up < len(parts) and not {"..", "/"} & set(steps[up:])


def path_inside(folder: Path, name: str) -> Path:
    """Resolve a relative name to a path; raises BadInput where it leads out of the folder, also by a link."""
    root = folder.resolve()
    path = Path("/") if "\0" in name else (root / name).resolve()
    if not path.is_relative_to(root):
        raise BadInput(f"{name!r} is outside of the folder {folder.name}; expected a relative path inside it.")
    return path
