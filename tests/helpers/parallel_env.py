"""A small parallel environment of PettingZoo, in which agents leave at different times."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Relay(ParallelEnv):  # type: ignore[misc]
    """Each agent sees its place and the time; it is rewarded for action 2, and leaves when its time is over.

    The last one is truncated instead of terminated. A `scout` sees one number more and has one action more.
    """

    metadata = {"name": "relay_v0", "render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, runners: int = 2, with_scout: bool = False, render_mode: str | None = None) -> None:
        self.possible_agents = [f"runner_{index}" for index in range(runners)] + ["scout"] * with_scout
        self.agents: list[str] = []
        self.render_mode = render_mode

    def observation_space(self, agent: str) -> Any:
        return Box(-np.inf, np.inf, (4 if agent == "scout" else 3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(4, start=1) if agent == "scout" else Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._time = 0
        self._places = self._rng.uniform(-1, 1, len(self.possible_agents))
        return self._observe(), {agent: {} for agent in self.agents}

    def _observe(self) -> dict[str, Any]:
        return {
            agent: np.array([place, self._time / 10, 1, 1][: 4 if agent == "scout" else 3], np.float32)
            for agent, place in zip(self.possible_agents, self._places, strict=True)
            if agent in self.agents
        }

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents)
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action)
        self._time += 1
        self._places = self._places + self._rng.normal(0, 0.1, len(self._places))
        acting = self.agents
        ends_at = {agent: 3 * (index + 1) for index, agent in enumerate(self.possible_agents)}
        is_over = {agent: self._time >= ends_at[agent] for agent in acting}
        observations = self._observe()
        rewards = {agent: float(actions[agent] == 2) + 0.1 * self.possible_agents.index(agent) for agent in acting}
        last = self.possible_agents[-1]
        terminations = {agent: is_over[agent] and agent != last for agent in acting}
        truncations = {agent: is_over[agent] and agent == last for agent in acting}
        self.agents = [agent for agent in acting if not is_over[agent]]
        return observations, rewards, terminations, truncations, {agent: {} for agent in acting}

    def render(self) -> Any:
        return np.full((16, 16, 3), self._time, np.uint8)


def relay(**settings: Any) -> Relay:
    return Relay(**settings)
