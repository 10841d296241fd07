"""Where lanes live, and what is left of those whose writers are dead.

A writer holds a lock on its lane's file for as long as it lives, however it ends: a lane that can be locked is dead.
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
"""Another place for all lanes, where /dev/shm is too small. Writers and readers must agree on it."""
LANE_SUFFIX = ".lane"
HEARTBEAT_SUFFIX = ".beat"
_MAX_ATTEMPTS = 100


def lanes_root() -> str:
    told = os.environ.get(LANES_VARIABLE)
    if told:
        return os.path.abspath(told)
    shared = "/dev/shm"
    return os.path.join(shared if os.path.isdir(shared) else tempfile.gettempdir(), f"mosaic-{os.getuid()}")


def lanes_folder(run_dir: StrPath) -> str:
    """The folder of one run's lanes. It need not exist."""
    named = os.path.realpath(os.fspath(run_dir)).encode("utf-8", "surrogateescape")
    return os.path.join(lanes_root(), hashlib.sha256(named).hexdigest()[:24])


def lane_path(folder: StrPath, index: int) -> str:
    return os.path.join(os.fspath(folder), f"env-{index:04d}{LANE_SUFFIX}")


def heartbeat_path(folder: StrPath, index: int) -> str:
    return os.path.join(os.fspath(folder), f"env-{index:04d}{HEARTBEAT_SUFFIX}")


def lane_indices(folder: StrPath) -> list[int]:
    """Which environments of a run have a lane."""
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
    """Whether a folder is one that nobody else can have put there or look into."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


@contextmanager
def create_and_lock(folder: StrPath) -> Iterator[None]:
    """Makes the folder, and keeps whoever tidies up out of it for a moment. Raises OSError."""
    for _ in range(_MAX_ATTEMPTS):
        for path in (os.path.dirname(os.fspath(folder)), os.fspath(folder)):
            with suppress(FileExistsError, FileNotFoundError):
                os.mkdir(path, 0o700)
        try:
            held = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # it was tidied away between two of our steps
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            if not os.fstat(held).st_nlink or not os.path.isdir(folder):
                continue
            if not is_private_folder(folder) or not is_private_folder(os.path.dirname(os.fspath(folder))):
                raise PermissionError(13, "It belongs to somebody else, or others may read it", os.fspath(folder))
            yield
            return
        finally:
            os.close(held)
    raise OSError(f"{os.fspath(folder)} cannot be made")


def reap(folder: StrPath) -> int:
    """Removes the lanes of a folder whose writers are dead, and the folder where none is left; how many they were."""
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return 0
    removed = 0
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        for name in os.listdir(folder):
            if not name.endswith(HEARTBEAT_SUFFIX) and _is_dead(os.path.join(os.fspath(folder), name)):
                removed += name.endswith(LANE_SUFFIX)
                with suppress(OSError):
                    os.unlink(os.path.join(os.fspath(folder), name))
        _remove_if_empty(folder)
    except OSError:
        pass  # somebody else tidies up too
    finally:
        os.close(held)
    return removed


def reap_all() -> int:
    """`reap` for every run of this user, of whatever workspace."""
    root = lanes_root()
    if not is_private_folder(root):
        return 0
    removed = 0
    with suppress(OSError):
        removed = sum(reap(os.path.join(root, name)) for name in os.listdir(root))
        os.rmdir(root)
    return removed


def remove_lane(folder: StrPath, index: int) -> None:
    """What a writer leaves when it closes: nothing."""
    with suppress(OSError):
        held = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            os.unlink(lane_path(folder, index))
            _remove_if_empty(folder)
        finally:
            os.close(held)
    with suppress(OSError):
        os.rmdir(os.path.dirname(os.fspath(folder)))


def _remove_if_empty(folder: StrPath) -> None:
    """Beats of lanes that are gone do not count."""
    left = os.listdir(folder)
    for name in left:
        if name.endswith(HEARTBEAT_SUFFIX) and name[: -len(HEARTBEAT_SUFFIX)] + LANE_SUFFIX not in left:
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
