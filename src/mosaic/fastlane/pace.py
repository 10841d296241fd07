"""How often to draw: as often as is wanted, within a share of the training thread's time. No clock, no files."""

from __future__ import annotations

RATE_HZ = 30.0
BUDGET = 0.02
RATES = (0.5, 120.0)
BUDGETS = (0.001, 0.5)
"""What a viewer may ask for."""
_OUTLIER = 4.0
_WEIGHT = 0.2


def bounded(value: object, bounds: tuple[float, float], default: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return default
    return min(max(float(value), bounds[0]), bounds[1])


class Pace:
    def __init__(self, rate_hz: float = RATE_HZ, budget: float = BUDGET) -> None:
        self.rate_hz = rate_hz
        self.budget = budget
        self.cells = 1
        """Environments that are watched now and share rate and budget."""
        self._cost_s = 0.0
        self._is_set_up = False

    def note(self, cost_s: float) -> None:
        """What one picture took. The first one also sets the drawing up and says nothing of those that follow."""
        if not self._is_set_up:
            self._is_set_up = True
        elif not self._cost_s:
            self._cost_s = cost_s
        else:
            self._cost_s += _WEIGHT * (min(cost_s, _OUTLIER * self._cost_s) - self._cost_s)

    @property
    def is_limited(self) -> bool:
        return self._cost_s * self.rate_hz > self.budget

    @property
    def interval_s(self) -> float:
        """Between two pictures of one environment."""
        return self.cells * max(1.0 / self.rate_hz, self._cost_s / self.budget)

    @property
    def words(self) -> str:
        shared = f", {self.cells} share it" if self.cells > 1 else ""
        if self.is_limited:
            return f"limited to {100 * self.budget:.3g} % of training time{shared}"
        return f"{self.rate_hz:.3g} Hz{shared}"
