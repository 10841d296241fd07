"""Queues lines for the journal and retries writes while the disk is full."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from mosaic.journal import Journal
from mosaic.run.metric_buffer import MAX_BUFFERED_POINTS


class _PendingLine(NamedTuple):
    kind: str
    fields: dict[str, Any]
    points: int


class Outbox:
    """Writes lines in order. Those that cannot be written stay for the next `flush`, with their original time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._journal = Journal(path)
        self._lines: deque[_PendingLine] = deque()
        self._buffered_points = 0
        self._lost_points = 0

    def put(self, kind: str, fields: dict[str, Any], points: int = 0) -> None:
        self._lines.append(_PendingLine(kind, {"at": time.time(), **fields}, points))
        self._buffered_points += points
        while self._buffered_points > MAX_BUFFERED_POINTS:
            oldest = next(line for line in self._lines if line.points)
            self._lines.remove(oldest)
            self._buffered_points -= oldest.points
            self._lost_points += oldest.points

    def flush(self) -> None:
        while self._lines:
            kind, fields, points = self._lines[0]
            self._journal.append(kind, **fields)
            self._lines.popleft()
            self._buffered_points -= points
        if self._lost_points:
            text = (
                f"{self._lost_points} points were lost while the journal could not be written. Make room on the disk."
            )
            self._journal.append("warning", text=text, code="points_lost")
            self._lost_points = 0

    def close(self) -> None:
        self._journal.close()


class RetryingWriter:
    """Runs a write that must not stop the training, and reports once on stderr that it fails."""

    def __init__(self) -> None:
        self._failing: set[str] = set()

    def __call__(self, what: str, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            if what not in self._failing:
                self._failing.add(what)
                # stderr may be on the same full disk
                with contextlib.suppress(OSError):
                    print(f"{what} cannot be written ({error}). The run continues and retries.", file=sys.stderr)
            return False
        self._failing.discard(what)
        return True
