"""Chooses the render rate: the requested rate, within a share of the training thread's time. Pure, no clock."""

from __future__ import annotations

DEFAULT_RATE_HZ = 30.0
DEFAULT_BUDGET = 0.015
RATE_BOUNDS_HZ = (0.5, 120.0)
BUDGET_BOUNDS = (0.001, 0.5)
"""What a viewer may request."""
_MIN_OUTLIER_S = 0.05
_OUTLIER_FACTOR = 4.0
"""On a busy machine the thread is sometimes preempted while rendering. That must count, or the mean would be too low;
but a single stall of the machine must not stop the frames for long."""
_SMOOTHING = 0.1
_CACHE_COST_FACTOR = 1.7
"""Rendering evicts the caches that training had filled: by tests/bench/fastlane.py, a frame costs training this
multiple of the time that rendering and copying it takes."""


def clamp_or_default(value: object, bounds: tuple[float, float], default: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return default
    return min(max(float(value), bounds[0]), bounds[1])


class RenderPacer:
    def __init__(self, rate_hz: float = DEFAULT_RATE_HZ, budget: float = DEFAULT_BUDGET) -> None:
        self.rate_hz = rate_hz
        self.budget = budget
        self.watched_count = 1
        """Environments that are watched now and share rate and budget."""
        self._cost_s = 0.0
        self._has_rendered = False

    def record_cost(self, cost_s: float) -> None:
        """Record the cost of one frame. The first includes the renderer's setup and is ignored."""
        if not self._has_rendered:
            self._has_rendered = True
        elif not self._cost_s:
            self._cost_s = cost_s
        else:
            highest_s = max(_MIN_OUTLIER_S, _OUTLIER_FACTOR * self._cost_s)
            self._cost_s += _SMOOTHING * (min(cost_s, highest_s) - self._cost_s)

    @property
    def _min_interval_s(self) -> float:
        return _CACHE_COST_FACTOR * self._cost_s / self.budget

    @property
    def is_limited(self) -> bool:
        return self._min_interval_s * self.rate_hz > 1

    @property
    def interval_s(self) -> float:
        """Seconds between two frames of one environment."""
        return self.watched_count * max(1.0 / self.rate_hz, self._min_interval_s)

    @property
    def description(self) -> str:
        shared = f", shared by {self.watched_count}" if self.watched_count > 1 else ""
        if self.is_limited:
            return f"limited to {100 * self.budget:.3g} % of training time{shared}"
        return f"{self.rate_hz:.3g} Hz{shared}"
