"""What is trained to show that the algorithms learn, and what each is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.bench.sides import Training

CLASSIC_STEPS = 500_000
CONTINUOUS = [f"{name}_continuous_action" for name in ("ppo", "rpo", "sac", "td3", "ddpg")]
BREAKOUT = "BreakoutNoFrameskip-v4"


@dataclass(frozen=True)
class Row:
    algo: str
    env_id: str
    steps: int
    seeds: int = 3
    published: tuple[float, float] | None = None
    """Mean and deviation in CleanRL's documentation; without one its own script is run beside ours."""
    is_beside: bool = False
    """CleanRL's script is run all the same: seeds differ so much that three of them decide nothing."""
    settings: dict[str, str] = field(default_factory=dict)
    is_long: bool = False
    """Takes hours: only trained when asked for."""

    def trainings(self) -> list[Training]:
        return [Training(self.algo, self.env_id, self.steps, seed, self.settings) for seed in range(1, self.seeds + 1)]

    @property
    def sides(self) -> Sequence[str]:
        return ("MOSAIC",) if self.published and not self.is_beside else ("MOSAIC", "CleanRL")

    @property
    def name(self) -> str:
        return f"{self.algo} {self.env_id}"


def _classic(algo: str, cartpole: tuple[float, float], acrobot: tuple[float, float], *, seeds: int = 3) -> list[Row]:
    return [
        Row(algo, "CartPole-v1", CLASSIC_STEPS, seeds, published=cartpole, is_beside=seeds > 3),
        Row(algo, "Acrobot-v1", CLASSIC_STEPS, published=acrobot),
    ]


def _breakout(algo: str, published: tuple[float, float] | None) -> Row:
    return Row(algo, BREAKOUT, 10_000_000, published=published, is_long=True)


ROWS: tuple[Row, ...] = (
    *_classic("ppo", (490.04, 6.12), (-86.36, 1.32)),
    *_classic("dqn", (488.69, 16.11), (-91.54, 7.20), seeds=10),
    *_classic("c51", (481.20, 20.53), (-87.70, 5.52), seeds=10),
    *_classic("pqn", (495.13, 6.89), (-95.63, 5.73), seeds=10),
    *(Row(algo, "HalfCheetah-v5", 30_000, 2, settings={"learning_starts": "2000"}) for algo in CONTINUOUS[2:]),
    *(Row("ppo_continuous_action", env_id, 300_000) for env_id in ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")),
    *(
        Row(algo, env_id, 1_000_000, is_long=True)
        for algo in CONTINUOUS
        for env_id in ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
    ),
    _breakout("ppo_atari", (414.66, 28.09)),
    _breakout("ppo_atari_lstm", (128.92, 31.10)),
    _breakout("dqn_atari", (366.93, 39.89)),
    _breakout("c51_atari", (461.86, 69.65)),
    Row("rainbow_atari", "AlienNoFrameskip-v4", 10_000_000, published=(2907.03, 355.53), is_long=True),
    Row("sac_atari", "PongNoFrameskip-v4", 5_000_000, is_long=True),
    _breakout("ppo_atari_envpool", None),
    _breakout("pqn_atari_envpool", None),
    Row("ppo_rnd_envpool", "MontezumaRevenge-v5", 2_000_000_000, 1, is_long=True),
)
