"""Adds up the steps of all processes of a run, in a file with one slot per process."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from typing import NamedTuple

_FILE = ".steps"
_SLOT = struct.Struct("<qqdd")
_FRESH_S = 3.0
"""A process that has not written for this long adds nothing to the speed of the run."""


class ProcessCount(NamedTuple):
    """The fields of a slot."""

    steps: int
    total_timesteps: int
    """The number of steps that it is going to take, 0 if unknown."""
    sps: float
    at: float
    """When it was written, by the monotonic clock."""


def add_counts(own: ProcessCount, others: list[ProcessCount]) -> ProcessCount:
    """Return the count of the run.

    Totals of processes that take steps are added. One of a process that takes none, such as their parent, is that of
    the whole run, and counts if they have none.
    """
    counts = [own, *others]
    stepping = [count for count in counts if count.steps] or [own]
    total = sum(count.total_timesteps for count in stepping) or max(count.total_timesteps for count in counts)
    sps = sum(count.sps for count in stepping if own.at - count.at < _FRESH_S)
    return ProcessCount(sum(count.steps for count in counts), total, sps, own.at)


class SharedCounts:
    def __init__(self, run_dir: str) -> None:
        self._path = os.path.join(run_dir, _FILE)
        self._offset: int | None = None
        """Of the slot of this process."""

    def exchange(self, own: ProcessCount) -> ProcessCount:
        """Write the count of this process and return that of the run; its own if the file cannot be used."""
        others: list[ProcessCount] = []
        with suppress(OSError):
            if own.steps or own.total_timesteps:
                self._write(_SLOT.pack(*own))
            others = self._read_others()
        return add_counts(own, others)

    def _write(self, slot: bytes) -> None:
        flags = os.O_WRONLY | (os.O_CREAT | os.O_APPEND if self._offset is None else 0)
        file = os.open(self._path, flags, 0o600)
        try:
            if self._offset is not None:
                os.pwrite(file, slot, self._offset)
            elif os.write(file, slot) == _SLOT.size:
                self._offset = os.lseek(file, 0, os.SEEK_CUR) - _SLOT.size
        finally:
            os.close(file)

    def _read_others(self) -> list[ProcessCount]:
        with open(self._path, "rb") as file:
            data = file.read()
        offsets = range(0, len(data) - _SLOT.size + 1, _SLOT.size)
        return [ProcessCount(*_SLOT.unpack_from(data, offset)) for offset in offsets if offset != self._offset]
