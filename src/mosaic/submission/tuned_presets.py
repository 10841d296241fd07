"""Settings that were found to learn faster than the defaults, each with what was measured here. No pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class MeasuredReturn(NamedTuple):
    """The mean over seeds of the return of the last 100 training episodes, with Student's 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:g} [{self.low:g}, {self.high:g}]"


@dataclass(frozen=True)
class TunedPreset:
    name: str
    algorithm: str
    env_id: str
    total_timesteps: int
    tuned: MeasuredReturn
    default: MeasuredReturn
    """With the algorithm's defaults, on the same seeds, after the same number of steps."""
    seeds: int
    """How many; the settings were chosen on others."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """The settings that differ from the defaults, without environment and steps."""

    @property
    def settings(self) -> dict[str, Any]:
        return {"env_id": self.env_id, "total_timesteps": self.total_timesteps, **self.changes}

    def describe(self) -> str:
        return (
            f"{self.env_id}, {self.total_timesteps:,} steps: return {self.tuned}, with the defaults {self.default} "
            f"(mean over {self.seeds} seeds, 95 %)"
        )


TUNED_PRESETS = (
    TunedPreset(
        "cartpole-ppo", "ppo", "CartPole-v1", 50_000,
        MeasuredReturn(337, 310, 365), MeasuredReturn(221, 205, 236), 10,
        {"learning_rate": 2.5e-3, "num_steps": 64},
    ),
    TunedPreset(
        "cartpole-dqn", "dqn", "CartPole-v1", 50_000,
        MeasuredReturn(324, 278, 369), MeasuredReturn(197, 159, 235), 10,
        {
            "learning_rate": 1e-3, "batch_size": 64, "learning_starts": 1000, "train_frequency": 2,
            "target_network_frequency": 100, "exploration_fraction": 0.16, "end_e": 0.04,
        },
    ),
    TunedPreset(
        "acrobot-ppo", "ppo", "Acrobot-v1", 100_000,
        MeasuredReturn(-91, -103, -78), MeasuredReturn(-284, -379, -188), 10,
        {"learning_rate": 2.5e-3, "num_steps": 64},
    ),
    TunedPreset(
        "lunarlander-ppo", "ppo", "LunarLander-v3", 200_000,
        MeasuredReturn(71, 34, 109), MeasuredReturn(-39, -54, -25), 10,
        {"learning_rate": 2.5e-3, "num_steps": 64},
    ),
)  # fmt: skip
"""Measured in 2026 on one CPU thread, by `mosaic experiment run` with these settings and the defaults as variants."""
