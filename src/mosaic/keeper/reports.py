"""keeper.jsonl, written so that a full disk costs samples and never a fact."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


class JournalWriter(Protocol):
    def append(self, kind: str, /, **facts: Any) -> int: ...


class ReportQueue:
    """Events that could not be written wait, in order and with the time at which they happened."""

    def __init__(self, journal: JournalWriter) -> None:
        self._journal = journal
        self._pending: deque[tuple[str, dict[str, Any]]] = deque()

    def report(self, kind: str, **facts: Any) -> None:
        self._pending.append((kind, {"at": time.time(), **facts}))
        self.flush()

    def report_if_possible(self, kind: str, **facts: Any) -> None:
        """For samples: the next one is as good."""
        if self.flush():
            self.report(kind, **facts)
            self._pending.clear()

    def flush(self) -> bool:
        """Whether everything is written."""
        try:
            while self._pending:
                kind, facts = self._pending[0]
                self._journal.append(kind, **facts)
                self._pending.popleft()
        except OSError:
            return False
        return True

    def flush_until(self, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Tries until everything is written, for a while."""
        tries_s = 0.0
        while not self.flush():
            if tries_s >= timeout_s:
                return False
            sleep(0.5)
            tries_s += 0.5
        return True


def try_fsync(path: str | os.PathLike[str]) -> None:
    """Onto the disk; where that cannot be, the file is still as good as the system keeps it."""
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
