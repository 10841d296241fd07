"""A lock for threads of which one takes it all the time."""

from __future__ import annotations

import threading
from collections import deque


class FairLock:
    """A reentrant lock that is granted in the order of the requests.

    With a lock of the standard library, a thread that releases it and soon takes it again, as the supervisor does,
    can win against waiting threads many times, the more so on a busy machine.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Event]] = deque()

    def __enter__(self) -> None:
        thread = threading.get_ident()
        turn: threading.Event | None = None
        with self._guard:
            if self._owner is None:
                self._owner = thread
            elif self._owner != thread:
                turn = threading.Event()
                self._waiting.append((thread, turn))
        if turn is not None:
            turn.wait()  # the one who releases the lock makes this thread its owner
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        with self._guard:
            self._owner = None
            if self._waiting:
                self._owner, turn = self._waiting.popleft()
                turn.set()
