"""Distributes episodes over processes, with counters in shared memory."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence


class SharedWorkQueue:
    """A queue of episodes per row, from which every process takes the next. Create it before forking."""

    def __init__(self, rows: Sequence[Sequence[int]], is_shared: bool = False) -> None:
        self._rows = rows
        self._order = sorted((row for row in range(len(rows)) if rows[row]), key=lambda row: rows[row][0])
        memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._taken_counts = memoryview(memory)[: 8 * len(rows)].cast("q")
        """Number of episodes taken, by row."""
        self._words = memoryview(memory)[8 * len(rows) :].cast("d")
        # A kernel lock: the kernel releases it when the process that holds it is killed.
        self._lock = os.memfd_create("claims") if is_shared else None

    def row_order(self) -> list[int]:
        """Return the rows that have episodes, in the order of their first one."""
        return self._order

    def take(self, row: int) -> int | None:
        """Take and return the next episode of a row; None if all are taken."""
        if self._lock is None:
            return self._take_next(row)
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            return self._take_next(row)
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def _take_next(self, row: int) -> int | None:
        taken = self._taken_counts[row]
        if taken >= len(self._rows[row]):
            return None
        self._taken_counts[row] = taken + 1
        return self._rows[row][taken]

    def count_waiting(self) -> int:
        """Return the number of episodes not taken yet."""
        return sum(map(len, self._rows)) - sum(self._taken_counts)

    # --- from the main process to its helpers

    def heartbeat(self, now: float) -> None:
        """Record that the main process is running; the helpers wait while it is paused."""
        self._words[0] = now

    @property
    def last_heartbeat(self) -> float:
        return self._words[0]

    def stop(self) -> None:
        self._words[1] = 1.0

    @property
    def is_stopped(self) -> bool:
        return self._words[1] != 0.0

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
