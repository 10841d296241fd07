"""Compares BDI agents that learn their plans with tabular Q-learning: the same steps, settings and evaluation.

python -m tests.learning.bdi [--seeds 3] [--quick]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from bdi_worker.asl_source import read_source
from bdi_worker.percepts import find_perception
from bdi_worker.plan_values import build_learner, end_episode
from bdi_worker.worker_config import BdiSettings
from mosaic.worker.envs import make

EPISODES = 200


@dataclass(frozen=True)
class Case:
    title: str
    asl: str
    settings: BdiSettings


LAKE: dict[str, Any] = {"env_id": "FrozenLake-v1", "learning_rate": 0.1}
TAXI: dict[str, Any] = {"env_id": "Taxi-v4", "learning_rate": 0.5, "exploration_fraction": 0.4}
CASES = (
    Case(
        "FrozenLake-v1, not slippery",
        "grid_learn",
        BdiSettings(**LAKE, total_timesteps=15_000, env_kwargs={"is_slippery": False}),
    ),
    Case("FrozenLake-v1, slippery", "grid_learn", BdiSettings(**LAKE, total_timesteps=60_000)),
    Case("Taxi-v4", "taxi_learn", BdiSettings(**TAXI, total_timesteps=100_000)),
)


class BdiLearner:
    def __init__(self, case: Case, env: Any, rng: np.random.Generator) -> None:
        self._perception = find_perception(env)
        self._mind = build_learner(read_source(case.asl), self._perception, rng)
        self._agent = self._mind.agent
        self._agent.learning_rate, self._agent.gamma = case.settings.learning_rate, case.settings.gamma

    @property
    def values(self) -> dict[int, list[float]]:
        """The values of its plans by state."""
        keys = self._agent.table.to_arrays()["keys"][:, 2].tolist()
        return {int(state): self._agent.table.row("act/0", "act", state).values for state in keys}

    def start(self) -> None:
        self._mind.start_episode()

    def act(self, observation: Any, epsilon: float | None) -> int:
        self._agent.epsilon, self._agent.state = epsilon, self._perception.state(observation)
        return self._mind.decide(observation).action

    def learn(self, observation: Any, action: int, reward: float, following: Any, terminated: bool, over: bool) -> None:
        self._agent.add_reward(reward)
        if over:
            end_episode(self._mind, None if terminated else following)


class TabularLearner:
    def __init__(self, case: Case, env: Any, rng: np.random.Generator) -> None:
        self.values = np.zeros((env.observation_space.n, env.action_space.n))
        self._rng = rng
        self._settings = case.settings

    def start(self) -> None:
        pass

    def act(self, observation: Any, epsilon: float | None) -> int:
        row = self.values[observation]
        if epsilon is None:
            return int(row.argmax())
        if self._rng.random() < epsilon:
            return int(self._rng.integers(len(row)))
        return int(self._rng.choice(np.flatnonzero(row == row.max())))

    def learn(self, observation: Any, action: int, reward: float, following: Any, terminated: bool, over: bool) -> None:
        target = reward + self._settings.gamma * (0.0 if terminated else self.values[following].max())
        self.values[observation, action] += self._settings.learning_rate * (target - self.values[observation, action])


def train(learner: Any, env: Any, settings: BdiSettings, seed: int) -> float:
    """Return the CPU time of a step in microseconds."""
    observation, _ = env.reset(seed=seed)
    learner.start()
    started = time.process_time()
    for step in range(settings.total_timesteps):
        action = learner.act(observation, settings.epsilon(step))
        following, reward, terminated, truncated, _ = env.step(action)
        learner.learn(observation, action, float(reward), following, bool(terminated), bool(terminated or truncated))
        observation = following
        if terminated or truncated:
            observation, _ = env.reset()
            learner.start()
    return (time.process_time() - started) / settings.total_timesteps * 1e6


def evaluate(learner: Any, env: Any) -> float:
    """Return the mean return of greedy episodes."""
    total = 0.0
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=1_000_000 + episode)
        learner.start()
        is_over = False
        while not is_over:
            observation, reward, terminated, truncated, _ = env.step(learner.act(observation, None))
            total += float(reward)
            is_over = terminated or truncated
    return total / EPISODES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    args = parser.parse_args()
    print(f"| environment | steps | BDI, {args.seeds} seeds | tabular Q | µs per step: BDI | tabular |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        steps = case.settings.total_timesteps // (10 if args.quick else 1)
        settings = case.settings.model_copy(update={"total_timesteps": steps})
        cells, times = [], []
        for stream, kind in enumerate((BdiLearner, TabularLearner)):
            env = make(settings.env_id, **(settings.env_kwargs or {}))
            results = []
            for seed in range(1, args.seeds + 1):
                # Streams of their own: with the same one, four bare plans are tabular Q-learning bit for bit, and both
                # columns would be one experiment (tests/unit/test_bdi_agent.py).
                learner = kind(case, env, np.random.default_rng([seed, stream]))
                cost = train(learner, env, settings, seed)
                results.append((evaluate(learner, env), cost))
            returns = [value for value, _ in results]
            cells.append(f"{np.mean(returns):.3f} ({', '.join(f'{value:.3f}' for value in returns)})")
            times.append(f"{np.median([cost for _, cost in results]):.0f}")
        print(f"| {case.title} | {steps:,} | {' | '.join(cells)} | {' | '.join(times)} |", flush=True)


if __name__ == "__main__":
    main()
