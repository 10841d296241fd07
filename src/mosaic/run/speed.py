"""Steps a second, now: over the last few seconds of running, pauses left out."""

from __future__ import annotations

import time
from collections import deque


class Speed:
    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._marks: deque[tuple[float, int]] = deque()
        self._paused_s = 0.0

    def start(self, step: int, now_s: float | None = None) -> None:
        self._marks.clear()
        self._marks.append((self._running(now_s), step))

    def skip(self, pause_s: float) -> None:
        """So long nothing was meant to run."""
        self._paused_s += pause_s

    def mark(self, step: int, now_s: float | None = None) -> float | None:
        """The speed up to this step; none while there is nothing to go by."""
        now = self._running(now_s)
        self._marks.append((now, step))
        while len(self._marks) > 2 and self._marks[1][0] <= now - self._window_s:
            self._marks.popleft()
        since, first = self._marks[0]
        return (step - first) / (now - since) if now > since else None

    def _running(self, now_s: float | None) -> float:
        return (time.monotonic() if now_s is None else now_s) - self._paused_s
