"""Files: written atomically, resolved inside a folder; the user's own folders; a full disk. Standard library only."""

from __future__ import annotations

import errno
import fcntl
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


# --- Detects and describes a full disk. Standard library only.


_SQLITE_FULL = 13
_MIN_FREE_BYTES = 16 << 20
_MIN_FREE_FRACTION = 0.05
"""Of a small disk: less than the bytes above."""


def describe_full_disk(folder: Path) -> str | None:
    """Return a sentence with the bytes that are free if the disk of a folder is full or nearly so, otherwise None."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None  # it does not exist yet
    free = disk.f_bavail * disk.f_frsize
    needed = int(min(_MIN_FREE_BYTES, _MIN_FREE_FRACTION * disk.f_blocks * disk.f_frsize))
    if free >= needed:
        return None
    return (
        f"The disk of {folder} is full: {free:,} bytes are free, and {needed:,} are needed to start a run. "
        "Runs that are active keep their results in memory until there is space. Free some, then try again."
    )


def is_disk_full_error(error: BaseException) -> bool:
    if getattr(error, "sqlite_errorcode", None) == _SQLITE_FULL:
        return True
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


# --- The user's own folders, outside of every workspace. Standard library only.


def config_folder() -> Path:
    """Ignores a relative XDG_CONFIG_HOME, as its specification demands: it could be inside a workspace."""
    config_home = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(config_home) if os.path.isabs(config_home) else Path.home() / ".config"
    return base / "mosaic"


@contextmanager
def lock_private_folder(folder: Path) -> Iterator[None]:
    """Creates a folder that only its owner may enter, and serializes those who write in it: no change is lost."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
