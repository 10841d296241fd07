"""Measures steps per second over the last few seconds of running, without pauses."""

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
        """Do not count a pause as running time."""
        self._paused_s += pause_s

    def update(self, step: int, now_s: float | None = None) -> float | None:
        """Return the speed up to this step; None before any time has passed."""
        now = self._running_time_s(now_s)
        self._samples.append((now, step))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window_s:
            self._samples.popleft()
        since, first = self._samples[0]
        return (step - first) / (now - since) if now > since else None

    def _running_time_s(self, now_s: float | None) -> float:
        return (time.monotonic() if now_s is None else now_s) - self._paused_s
