"""In which order a run wrote to stdout and stderr, which are two files: the sizes of both at some moments.

The keeper appends a mark when stderr has grown. Between two marks, stdout comes first, then stderr; so the two files
are one sequence, in which a byte has an offset that never changes. What follows the last mark is on stdout only, until
the run has ended. Marks have a fixed width, so that one is found without reading the file. Standard library only.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MARK_FORMAT = "{at:017.6f} {stdout:015d} {stderr:015d}\n"
_MARK_BYTES = 50


class LogMark(NamedTuple):
    at: float
    """Seconds since the epoch."""
    stdout: int
    stderr: int
    """Sizes in bytes."""

    @property
    def offset(self) -> int:
        """In the sequence of both."""
        return self.stdout + self.stderr

    def format(self) -> bytes:
        return _MARK_FORMAT.format(at=self.at, stdout=self.stdout, stderr=self.stderr).encode()


class LogSpan(NamedTuple):
    """Some bytes of one of the two files."""

    is_stderr: bool
    begin: int
    end: int


START = LogMark(0.0, 0, 0)


def append_mark(path: Path, mark: LogMark) -> None:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(file).st_size
        if size % _MARK_BYTES:  # the disk was full
            os.ftruncate(file, size - size % _MARK_BYTES)
        os.write(file, mark.format())
    finally:
        os.close(file)


class LogOrder:
    """The marks in a file, as far as it is written."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            self._file, self.count = -1, 0
            return
        self.count = os.fstat(self._file).st_size // _MARK_BYTES

    def __enter__(self) -> LogOrder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def mark(self, index: int) -> LogMark:
        """The marks from 0 on; before the first, both files are empty."""
        if index < 0:
            return START
        try:
            at, stdout, stderr = os.pread(self._file, _MARK_BYTES, index * _MARK_BYTES).split()
            return LogMark(float(at), int(stdout), int(stderr))
        except ValueError:  # of an imported run: its logs are shown, in whichever order
            return START

    def spans(self, offset: int, stdout_size: int, stderr_size: int, has_ended: bool) -> Iterator[LogSpan]:
        """Yield what follows an offset in the sequence of both files, whose sizes are given."""
        index = self._first_above(offset, "offset")
        while True:
            before = self.mark(index - 1)
            if index < self.count:
                after = self.mark(index)
            else:  # what was written to stderr since may belong before what stdout gets next
                after = LogMark(0.0, max(before.stdout, stdout_size), stderr_size if has_ended else before.stderr)
            skipped = max(0, offset - before.offset)
            begin, end = before.stdout + skipped, after.stdout
            if begin < end:
                yield LogSpan(False, begin, end)
            begin = before.stderr + max(0, skipped - (after.stdout - before.stdout))
            if begin < after.stderr:
                yield LogSpan(True, begin, after.stderr)
            if index >= self.count:
                return
            index += 1

    def size(self, stdout_size: int, stderr_size: int, has_ended: bool) -> int:
        """The size of the sequence of both."""
        last = self.mark(self.count - 1)
        return max(last.stdout, stdout_size) + (max(last.stderr, stderr_size) if has_ended else last.stderr)

    def offset_in_both(self, is_stderr: bool, offset: int, stdout_size: int, has_ended: bool) -> int | None:
        """Where a byte of one file is in the sequence of both; None where that is not known yet."""
        index = self._first_above(offset, "stderr" if is_stderr else "stdout")
        if not is_stderr:
            return offset + self.mark(index - 1).stderr
        if index < self.count:
            return offset + self.mark(index).stdout
        return offset + max(self.mark(self.count - 1).stdout, stdout_size) if has_ended else None

    def _first_above(self, offset: int, field: str) -> int:
        """The index of the first mark at which a size, or both together, is above `offset`."""
        return bisect.bisect_right(range(self.count), offset, key=lambda index: int(getattr(self.mark(index), field)))
