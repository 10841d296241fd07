"""Writes keeper.jsonl so that a full disk loses samples, but never an event."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


class JournalWriter(Protocol):
    def append(self, kind: str, /, **fields: Any) -> int: ...


class ReportQueue:
    """Keeps events that could not be written, in order and with their original time."""

    def __init__(self, journal: JournalWriter) -> None:
        self._journal = journal
        self._pending: deque[tuple[str, dict[str, Any]]] = deque()

    def report(self, kind: str, **fields: Any) -> None:
        self._pending.append((kind, {"at": time.time(), **fields}))
        self.flush()

    def report_if_possible(self, kind: str, **fields: Any) -> None:
        """Write a sample, or drop it: the next one replaces it."""
        if self.flush():
            self.report(kind, **fields)
            self._pending.clear()

    def flush(self) -> bool:
        """Write pending events; return whether everything is written."""
        try:
            while self._pending:
                kind, fields = self._pending[0]
                self._journal.append(kind, **fields)
                self._pending.popleft()
        except OSError:
            return False
        return True

    def flush_until(self, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Retry until everything is written or the timeout has passed; return whether everything is written."""
        waited_s = 0.0
        while not self.flush():
            if waited_s >= timeout_s:
                return False
            sleep(0.5)
            waited_s += 0.5
        return True


def try_fsync(path: str | os.PathLike[str]) -> None:
    """Flush a file to the disk; a failure is ignored, as the file itself is written."""
    try:
        number = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(number)
    except OSError:
        pass
    finally:
        os.close(number)
