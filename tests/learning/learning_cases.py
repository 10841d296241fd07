"""The trainings that show that the algorithms learn, and the results they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.bench.contenders import Training

CLASSIC_STEPS = 500_000
CONTINUOUS = [f"{name}_continuous_action" for name in ("ppo", "rpo", "sac", "td3", "ddpg")]
BREAKOUT = "BreakoutNoFrameskip-v4"


@dataclass(frozen=True)
class LearningCase:
    algo: str
    env_id: str
    steps: int
    seeds: int = 3
    published: tuple[float, float] | None = None
    """Mean and deviation in CleanRL's documentation; without one its own script is run beside ours."""
    has_cleanrl_runs: bool = False
    """CleanRL's script is run all the same: seeds differ so much that three of them decide nothing."""
    settings: dict[str, str] = field(default_factory=dict)
    is_long: bool = False
    """Takes hours: only trained when asked for."""

    def trainings(self) -> list[Training]:
        return [Training(self.algo, self.env_id, self.steps, seed, self.settings) for seed in range(1, self.seeds + 1)]

    @property
    def contenders(self) -> Sequence[str]:
        return ("MOSAIC",) if self.published and not self.has_cleanrl_runs else ("MOSAIC", "CleanRL")

    @property
    def name(self) -> str:
        return f"{self.algo} {self.env_id}"


def _classic_control_cases(
    algo: str, cartpole: tuple[float, float], acrobot: tuple[float, float], *, seeds: int = 3
) -> list[LearningCase]:
    return [
        LearningCase(algo, "CartPole-v1", CLASSIC_STEPS, seeds, published=cartpole, has_cleanrl_runs=seeds > 3),
        LearningCase(algo, "Acrobot-v1", CLASSIC_STEPS, published=acrobot),
    ]


def _breakout_case(algo: str, published: tuple[float, float] | None) -> LearningCase:
    return LearningCase(algo, BREAKOUT, 10_000_000, published=published, is_long=True)


LEARNING_CASES: tuple[LearningCase, ...] = (
    *_classic_control_cases("ppo", (490.04, 6.12), (-86.36, 1.32)),
    *_classic_control_cases("dqn", (488.69, 16.11), (-91.54, 7.20), seeds=10),
    *_classic_control_cases("c51", (481.20, 20.53), (-87.70, 5.52), seeds=10),
    *_classic_control_cases("pqn", (495.13, 6.89), (-95.63, 5.73), seeds=10),
    *(LearningCase(algo, "HalfCheetah-v5", 30_000, 2, settings={"learning_starts": "2000"}) for algo in CONTINUOUS[2:]),
    *(
        LearningCase("ppo_continuous_action", env_id, 300_000)
        for env_id in ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
    ),
    *(
        LearningCase(algo, env_id, 1_000_000, is_long=True)
        for algo in CONTINUOUS
        for env_id in ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
    ),
    _breakout_case("ppo_atari", (414.66, 28.09)),
    _breakout_case("ppo_atari_lstm", (128.92, 31.10)),
    _breakout_case("dqn_atari", (366.93, 39.89)),
    _breakout_case("c51_atari", (461.86, 69.65)),
    LearningCase("rainbow_atari", "AlienNoFrameskip-v4", 10_000_000, published=(2907.03, 355.53), is_long=True),
    LearningCase("sac_atari", "PongNoFrameskip-v4", 5_000_000, is_long=True),
    _breakout_case("ppo_atari_envpool", None),
    _breakout_case("pqn_atari_envpool", None),
    LearningCase("ppo_rnd_envpool", "MontezumaRevenge-v5", 2_000_000_000, 1, is_long=True),
)
