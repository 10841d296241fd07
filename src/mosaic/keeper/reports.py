"""keeper.jsonl, written so that a full disk costs samples and never a fact."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


class Appends(Protocol):
    def append(self, kind: str, /, **facts: Any) -> int: ...


class Reports:
    """Events that could not be written wait, in order and with the time at which they happened."""

    def __init__(self, journal: Appends) -> None:
        self._journal = journal
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()

    def tell(self, kind: str, **facts: Any) -> None:
        self._waiting.append((kind, {"at": time.time(), **facts}))
        self.flush()

    def tell_if_possible(self, kind: str, **facts: Any) -> None:
        """For samples: the next one is as good."""
        if self.flush():
            self.tell(kind, **facts)
            self._waiting.clear()

    def flush(self) -> bool:
        """Whether everything is written."""
        try:
            while self._waiting:
                kind, facts = self._waiting[0]
                self._journal.append(kind, **facts)
                self._waiting.popleft()
        except OSError:
            return False
        return True

    def settle(self, patience_s: float, sleep: Callable[[float], None] = time.sleep) -> bool:
        """Tries until everything is written, for a while."""
        tries_s = 0.0
        while not self.flush():
            if tries_s >= patience_s:
                return False
            sleep(0.5)
            tries_s += 0.5
        return True


def sync(path: str | os.PathLike[str]) -> None:
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
