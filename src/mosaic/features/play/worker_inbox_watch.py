"""Waits until a file is changed by another process: through inotify on Linux, elsewhere by looking at it."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import time
from pathlib import Path

POLL_S = 0.004
_IN_CLOEXEC, _IN_NONBLOCK = 0o2000000, 0o4000
_IN_MODIFY, _IN_MOVED_TO, _IN_CREATE = 0x2, 0x80, 0x100
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 16


class FileWatch:
    """Watches one file of a folder, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = os.fsencode(path.name)
        self._descriptor = _watch_folder(path.parent)
        self._stat = self._read_stat()

    def wait(self, seconds: float) -> bool:
        """Return whether the file was changed within this time, or since the last call."""
        deadline = time.monotonic() + seconds
        while True:
            if self._descriptor is None:
                stat, changed = self._read_stat(), False
                changed, self._stat = stat != self._stat, stat
            else:
                changed = self._read_events()
            left = deadline - time.monotonic()
            if changed or left <= 0:
                return changed
            if self._descriptor is None:
                time.sleep(min(POLL_S, left))
            else:
                select.select([self._descriptor], [], [], left)

    def _read_events(self) -> bool:
        assert self._descriptor is not None
        try:
            data = os.read(self._descriptor, _BUFFER_BYTES)
        except BlockingIOError:
            return False
        begin, found = 0, False
        while begin < len(data):
            _, _, _, length = _EVENT.unpack_from(data, begin)
            begin += _EVENT.size + length
            found |= data[begin - length : begin].rstrip(b"\0") == self._name
        return found

    def _read_stat(self) -> tuple[int, int]:
        try:
            stat = os.stat(self._path)
        except OSError:
            return 0, 0
        return stat.st_size, stat.st_mtime_ns

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _watch_folder(folder: Path) -> int | None:
    """Return a descriptor that is readable when a file of the folder changes; None where there is no inotify."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        descriptor = library.inotify_init1(_IN_CLOEXEC | _IN_NONBLOCK)
    except (OSError, AttributeError):
        return None
    if descriptor < 0:
        return None
    if library.inotify_add_watch(descriptor, os.fsencode(folder), _IN_MODIFY | _IN_MOVED_TO | _IN_CREATE) < 0:
        os.close(descriptor)
        return None
    return int(descriptor)
