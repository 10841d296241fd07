"""How often to draw: as often as is wanted, within a share of the training thread's time. No clock, no files."""

from __future__ import annotations

DEFAULT_RATE_HZ = 30.0
DEFAULT_BUDGET = 0.015
RATE_BOUNDS_HZ = (0.5, 120.0)
BUDGET_BOUNDS = (0.001, 0.5)
"""What a viewer may ask for."""
_MIN_OUTLIER_S = 0.05
_OUTLIER_FACTOR = 4.0
"""On a busy machine the scheduler now and then takes the processor away while a picture is drawn. That counts, or the
mean would be too good to be true; but a single stall of the machine must not stop the pictures for long."""
_SMOOTHING = 0.1
_CACHE_COST_FACTOR = 1.7
"""Drawing empties the caches that training had filled: by tests/bench/fastlane.py a picture costs training so many
times the time that drawing and copying it takes."""


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
        """What one picture took. The first one also sets the drawing up and says nothing of those that follow."""
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
        """Between two pictures of one environment."""
        return self.watched_count * max(1.0 / self.rate_hz, self._min_interval_s)

    @property
    def description(self) -> str:
        shared = f", {self.watched_count} share it" if self.watched_count > 1 else ""
        if self.is_limited:
            return f"limited to {100 * self.budget:.3g} % of training time{shared}"
        return f"{self.rate_hz:.3g} Hz{shared}"
