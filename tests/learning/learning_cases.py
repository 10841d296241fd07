"""The trainings that show that the algorithms learn, and the results they are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.bench.contenders import Training

CLASSIC_STEPS = 500_000
MUJOCO = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
BREAKOUT = "BreakoutNoFrameskip-v4"


@dataclass(frozen=True)
class LearningCase:
    algo: str
    env_id: str
    steps: int
    seeds: int = 3
    cleanrl_seeds: int = 0
    """The number of trainings by CleanRL's own script, with the same settings and seeds."""
    published: tuple[float, float] | None = None
    """Mean and deviation of the last 100 episodes in CleanRL's documentation, over three seeds."""
    settings: dict[str, str] = field(default_factory=dict)
    is_long: bool = False
    """Takes hours: only trained when asked for."""

    def trainings(self, contender: str) -> list[Training]:
        seeds = self.cleanrl_seeds if contender == "CleanRL" else self.seeds
        return [Training(self.algo, self.env_id, self.steps, seed, self.settings) for seed in range(1, seeds + 1)]

    @property
    def name(self) -> str:
        return f"{self.algo} {self.env_id} {self.steps}"


def _cartpole_case(algo: str, published: tuple[float, float], cleanrl_seeds: int) -> LearningCase:
    return LearningCase(algo, "CartPole-v1", CLASSIC_STEPS, 30, cleanrl_seeds, published)


def _acrobot_case(algo: str, published: tuple[float, float]) -> LearningCase:
    return LearningCase(algo, "Acrobot-v1", CLASSIC_STEPS, 10, published=published)


def _breakout_case(algo: str, published: tuple[float, float] | None) -> LearningCase:
    return LearningCase(algo, BREAKOUT, 10_000_000, published=published, is_long=True)


LEARNING_CASES: tuple[LearningCase, ...] = (
    _cartpole_case("ppo", (490.04, 6.12), 15),
    _cartpole_case("dqn", (488.69, 16.11), 20),
    _cartpole_case("c51", (481.20, 20.53), 15),
    _cartpole_case("pqn", (495.13, 6.89), 20),
    _acrobot_case("ppo", (-86.36, 1.32)),
    _acrobot_case("dqn", (-91.54, 7.20)),
    _acrobot_case("c51", (-87.70, 5.52)),
    _acrobot_case("pqn", (-95.63, 5.73)),
    *(LearningCase("ppo_continuous_action", env_id, 300_000, 10, 3) for env_id in MUJOCO),
    *(LearningCase(f"{algo}_continuous_action", env_id, 1_000_000) for algo in ("ppo", "rpo") for env_id in MUJOCO),
    *(
        LearningCase(f"{algo}_continuous_action", "HalfCheetah-v5", 30_000, 4, 4, settings={"learning_starts": "2000"})
        for algo in ("sac", "td3", "ddpg")
    ),
    *(
        LearningCase(f"{algo}_continuous_action", env_id, 1_000_000, 1, is_long=True)
        for algo in ("sac", "td3", "ddpg")
        for env_id in MUJOCO
    ),
    _breakout_case("ppo_atari", (414.66, 28.09)),
    _breakout_case("ppo_atari_lstm", (128.92, 31.10)),
    _breakout_case("dqn_atari", (366.93, 39.89)),
    _breakout_case("c51_atari", (461.86, 69.65)),
    LearningCase("rainbow_atari", "AlienNoFrameskip-v4", 10_000_000, published=(2907.03, 355.53), is_long=True),
    LearningCase("sac_atari", "PongNoFrameskip-v4", 5_000_000, is_long=True),
    _breakout_case("ppo_atari_envpool", None),
    _breakout_case("pqn_atari_envpool", None),
)
