"""What a replay reports about each episode. One JSON object per line, between processes and with `--json`."""

from __future__ import annotations

from mosaic.contracts.views import View


class RewardDifference(View):
    """The first step at which a simulation is not the recorded episode."""

    step: int
    recorded_reward: float | list[float]
    simulated_reward: float | list[float] | None = None
    """None where the simulation has ended and the recorded episode has not."""

    def describe(self) -> str:
        if self.simulated_reward is None:
            return f"The simulation ended at step {self.step:,}; the recorded episode is longer."
        rewards = f"{self.recorded_reward}, the simulated one {self.simulated_reward}"
        return f"At step {self.step:,} the recorded reward is {rewards}."


class ReplayReport(View):
    """How one episode was simulated again."""

    episode: int
    steps: int
    total_reward: float
    ending: str
    is_identical: bool
    difference: RewardDifference | None = None
    warnings: tuple[str, ...] = ()
    """What is different from the machine that recorded it."""
