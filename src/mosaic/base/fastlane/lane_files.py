"""Where lanes are stored, and how lanes of dead writers are removed.

A writer holds a lock on its lane's file until its process exits, however that happens: a lane that can be locked is
dead.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Union

StrPath = Union[str, "os.PathLike[str]"]

LANES_VARIABLE = "MOSAIC_LANES"
"""Overrides the folder of all lanes where /dev/shm is too small. Writers and readers must use the same value."""
LANE_SUFFIX = ".lane"
HEARTBEAT_SUFFIX = ".beat"
_MAX_ATTEMPTS = 100


def lanes_root() -> str:
    override = os.environ.get(LANES_VARIABLE)
    if override:
        return os.path.abspath(override)
    shared = "/dev/shm"
    return os.path.join(shared if os.path.isdir(shared) else tempfile.gettempdir(), f"mosaic-{os.getuid()}")


def lanes_folder(run_dir: StrPath) -> str:
    """Return the folder of one run's lanes, which need not exist."""
    path = os.path.realpath(os.fspath(run_dir)).encode("utf-8", "surrogateescape")
    return os.path.join(lanes_root(), hashlib.sha256(path).hexdigest()[:24])


def lane_path(folder: StrPath, index: int) -> str:
    return os.path.join(os.fspath(folder), f"env-{index:04d}{LANE_SUFFIX}")


def heartbeat_path(folder: StrPath, index: int) -> str:
    return os.path.join(os.fspath(folder), f"env-{index:04d}{HEARTBEAT_SUFFIX}")


def lane_indices(folder: StrPath) -> list[int]:
    """Return the indices of the environments that have a lane."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(
        int(name[4 : -len(LANE_SUFFIX)])
        for name in names
        if name.startswith("env-") and name.endswith(LANE_SUFFIX) and name[4 : -len(LANE_SUFFIX)].isdigit()
    )


def is_private_folder(folder: StrPath) -> bool:
    """Return whether a folder belongs to this user and is accessible to no other."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


@contextmanager
def create_and_lock(folder: StrPath) -> Iterator[None]:
    """Create the folder and hold its lock, so that no `reap` runs meanwhile. Raises OSError."""
    for _ in range(_MAX_ATTEMPTS):
        for path in (os.path.dirname(os.fspath(folder)), os.fspath(folder)):
            with suppress(FileExistsError, FileNotFoundError):
                os.mkdir(path, 0o700)
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # removed by a `reap` in between
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not os.fstat(descriptor).st_nlink or not os.path.isdir(folder):
                continue
            if not is_private_folder(folder) or not is_private_folder(os.path.dirname(os.fspath(folder))):
                raise PermissionError(13, "It belongs to another user or is accessible to others", os.fspath(folder))
            yield
            return
        finally:
            os.close(descriptor)
    raise OSError(f"{os.fspath(folder)} cannot be created")


@contextmanager
def _lock_existing(folder: StrPath) -> Iterator[None]:
    """Hold the lock of a folder that exists. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def reap(folder: StrPath) -> int:
    """Remove the lanes of dead writers, and the folder if it is then empty; return the number of lanes removed."""
    removed = 0
    with suppress(OSError), _lock_existing(folder):  # another process may be removing it too
        for name in os.listdir(folder):
            if not name.endswith(HEARTBEAT_SUFFIX) and _is_dead(os.path.join(os.fspath(folder), name)):
                removed += name.endswith(LANE_SUFFIX)
                with suppress(OSError):
                    os.unlink(os.path.join(os.fspath(folder), name))
        _remove_if_empty(folder)
    return removed


def reap_all() -> int:
    """Call `reap` for every run of this user, in all workspaces."""
    root = lanes_root()
    if not is_private_folder(root):
        return 0
    removed = 0
    with suppress(OSError):
        removed = sum(reap(os.path.join(root, name)) for name in os.listdir(root))
        os.rmdir(root)
    return removed


def remove_lane(folder: StrPath, index: int) -> None:
    """Remove the lane of a writer that closes."""
    with suppress(OSError), _lock_existing(folder):
        os.unlink(lane_path(folder, index))
        _remove_if_empty(folder)
    with suppress(OSError):
        os.rmdir(os.path.dirname(os.fspath(folder)))


def _remove_if_empty(folder: StrPath) -> None:
    """Remove the folder unless it holds a lane; heartbeats of removed lanes are deleted first."""
    names = os.listdir(folder)
    for name in names:
        if name.endswith(HEARTBEAT_SUFFIX) and name[: -len(HEARTBEAT_SUFFIX)] + LANE_SUFFIX not in names:
            os.unlink(os.path.join(os.fspath(folder), name))
    with suppress(OSError):
        os.rmdir(folder)


def _is_dead(path: str) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(file)
