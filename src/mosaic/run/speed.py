"""Steps a second, now: over the last few seconds of running, pauses left out."""

from __future__ import annotations

import time
from collections import deque


class SpeedMeter:
    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()
        self._paused_s = 0.0

    def start(self, step: int, now_s: float | None = None) -> None:
        self._samples.clear()
        self._samples.append((self._running_time_s(now_s), step))

    def exclude_pause(self, pause_s: float) -> None:
        """So long nothing was meant to run."""
        self._paused_s += pause_s

    def update(self, step: int, now_s: float | None = None) -> float | None:
        """The speed up to this step; none while there is nothing to go by."""
        now = self._running_time_s(now_s)
        self._samples.append((now, step))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window_s:
            self._samples.popleft()
        since, first = self._samples[0]
        return (step - first) / (now - since) if now > since else None

    def _running_time_s(self, now_s: float | None) -> float:
        return (time.monotonic() if now_s is None else now_s) - self._paused_s
