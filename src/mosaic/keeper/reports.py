"""Writes keeper.jsonl so that a full disk loses samples, but never an event."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mosaic.journal import Outbox


class ReportQueue(Outbox):
    def report(self, kind: str, **fields: Any) -> None:
        self.put(kind, fields)
        self.try_flush()

    def report_if_possible(self, kind: str, **fields: Any) -> None:
        """Write a sample, or drop it: the next one replaces it."""
        if self.try_flush():
            self.put(kind, fields)
            if not self.try_flush():
                self._lines.clear()

    def flush_until(self, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Retry until everything is written or the timeout has passed; return whether everything is written."""
        waited_s = 0.0
        while not self.try_flush():
            if waited_s >= timeout_s:
                return False
            sleep(0.5)
            waited_s += 0.5
        return True
