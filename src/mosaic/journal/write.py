"""The writer of a journal; each file has exactly one."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from functools import partial
from io import FileIO
from typing import Any, Protocol

from mosaic.journal.follow import parse_event

_TAIL_BYTES = 1 << 16


class EventSink(Protocol):
    """`Journal.append`, or what stands in for it."""

    def __call__(self, kind: str, /, **fields: Any) -> object: ...


class Journal:
    """Appends `{"seq": n, "at": seconds, "kind": …}` lines; each is one write, so a crash truncates at most the last.

    An existing file is continued: `seq` goes up from there, and a truncated last line is terminated, not removed. If it
    is deleted while it is open, it is created again; OSError while its folder does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._file = self._open()
        self._lock = threading.Lock()
        self.seq = _last_seq(self._file)

    def append(self, kind: str, /, **fields: Any) -> int:
        """Write one event and return its `seq`."""
        with self._lock:
            seq = self.seq + 1
            line = json.dumps({"seq": seq, "at": time.time(), "kind": kind, **fields}, separators=(",", ":"))
            self._write(line.encode() + b"\n")
            self.seq = seq
            return seq

    def _write(self, data: bytes) -> None:
        """Write all of `data` or nothing: a partial write on a full disk is undone, so the next line starts cleanly."""
        if os.fstat(self._file.fileno()).st_nlink == 0:
            deleted, self._file = self._file, self._open()
            deleted.close()
        end = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, "The line could not be written completely. Is the disk full?", self._path)
        except OSError:
            self._file.truncate(end)
            raise

    def _open(self) -> FileIO:
        return open(self._path, "ab+", buffering=0, opener=partial(os.open, mode=0o600))

    def sync(self) -> None:
        """Flush the file to the disk, so that it survives a power loss."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        with self._lock:
            self._file.close()


def _last_seq(file: Any) -> int:
    """Return the last `seq`, searching further back while no line can be parsed."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) != b"\n":
        file.write(b"\n")
    span = _TAIL_BYTES
    while True:
        file.seek(max(0, size - span))
        for line in reversed(file.read().splitlines()):
            event = parse_event(line)
            if event is not None:
                return int(event["seq"])
        if span >= size:
            return 0
        span *= 8
