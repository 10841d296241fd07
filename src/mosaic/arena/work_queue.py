"""Who plays which episode, where several processes play: counters in memory that they share."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence


class SharedWorkQueue:
    """For each row a queue of episodes, from which every process takes the next. Made before the processes are."""

    def __init__(self, rows: Sequence[Sequence[int]], is_shared: bool = False) -> None:
        self._rows = rows
        self._order = sorted((row for row in range(len(rows)) if rows[row]), key=lambda row: rows[row][0])
        memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._taken_counts = memoryview(memory)[: 8 * len(rows)].cast("q")
        """How many of each row are taken."""
        self._words = memoryview(memory)[8 * len(rows) :].cast("d")
        # A lock of the kernel's: one that a killed process held is free again.
        self._lock = os.memfd_create("claims") if is_shared else None

    def row_order(self) -> list[int]:
        """Those that have episodes, in the order of their first one."""
        return self._order

    def take(self, row: int) -> int | None:
        """The next episode of that row, now the caller's; none where all are taken."""
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
        """How many nobody has taken yet."""
        return sum(map(len, self._rows)) - sum(self._taken_counts)

    # --- what the first process tells the others

    def heartbeat(self, now: float) -> None:
        """It goes on. Where it is paused, the others wait."""
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
