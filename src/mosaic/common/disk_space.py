"""Detects and describes a full disk. Standard library only."""

from __future__ import annotations

import errno
import os
from pathlib import Path

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
