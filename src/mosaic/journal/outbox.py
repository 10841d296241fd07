"""Lines for a journal that wait while it cannot be written, as on a full disk."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

from mosaic.journal.write import Journal

MAX_BUFFERED_POINTS = 500_000
"""Points (about 100 MB) kept while the disk is full; beyond that the oldest are dropped."""


class _PendingLine(NamedTuple):
    kind: str
    fields: dict[str, Any]
    points: int


class Outbox:
    """Writes lines in order. Those that cannot be written stay for the next `flush`, with their original time."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._lines: deque[_PendingLine] = deque()
        self._buffered_points = 0
        self._lost_points = 0

    @property
    def has_lines(self) -> bool:
        return bool(self._lines)

    def put(self, kind: str, fields: dict[str, Any], points: int = 0) -> None:
        self._lines.append(_PendingLine(kind, {"at": time.time(), **fields}, points))
        self._buffered_points += points
        while self._buffered_points > MAX_BUFFERED_POINTS:
            oldest = next(line for line in self._lines if line.points)
            self._lines.remove(oldest)
            self._buffered_points -= oldest.points
            self._lost_points += oldest.points

    def flush(self) -> None:
        """Write all lines, or raise OSError and keep the rest."""
        while self._lines:
            kind, fields, points = self._lines[0]
            self.journal.append(kind, **fields)
            self._lines.popleft()
            self._buffered_points -= points
        if self._lost_points:
            text = (
                f"{self._lost_points} points were lost while the journal could not be written. Make room on the disk."
            )
            self.journal.append("warning", text=text, code="points_lost")
            self._lost_points = 0

    def try_flush(self) -> bool:
        """Write all lines that can be written; return whether all are."""
        try:
            self.flush()
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.journal.close()
