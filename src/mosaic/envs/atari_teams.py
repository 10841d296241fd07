"""PettingZoo's multiplayer Atari games with the preprocessing of the literature.

An action is repeated for four frames; an observation is the maximum of the last two, its blue channel as in CleanRL, 84
by 84. The last four of these are stacked, and a plane of its own that is white tells each agent which one it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from mosaic.envs.atari import FRAME_SIZE_PX, FRAME_SKIP, FRAME_STACK, FrameArray, make_resizer

_BLUE = 2


def rom_settings() -> dict[str, str]:
    """Return where the games are: ale-py brings them with it."""
    import ale_py

    return {"auto_rom_install_path": str(Path(ale_py.__file__).parent / "roms")}


class AtariTeamFrames:
    """A parallel environment whose observations are bytes [4 + agents, 84, 84] for each agent."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.metadata, self.possible_agents = env.metadata, list(env.possible_agents)
        self._resize = make_resizer()
        count = len(self.possible_agents)
        self._space = gymnasium.spaces.Box(0, 255, (FRAME_STACK + count, FRAME_SIZE_PX, FRAME_SIZE_PX), np.uint8)
        self._planes = np.zeros((count, count, FRAME_SIZE_PX, FRAME_SIZE_PX), np.uint8)
        self._planes[np.arange(count), np.arange(count)] = 255
        self._frames: FrameArray = np.zeros((FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX), np.uint8)

    @property
    def agents(self) -> list[str]:
        return list(self._env.agents)

    def observation_space(self, agent: str) -> Any:
        return self._space

    def action_space(self, agent: str) -> Any:
        return self._env.action_space(agent)

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        screens, infos = self._env.reset(seed=seed)
        self._frames = np.zeros_like(self._frames)
        self._push(next(iter(screens.values())))
        return self._observe(screens), infos

    def step(self, actions: Mapping[str, int]) -> tuple[Any, ...]:
        rewards = dict.fromkeys(actions, 0.0)
        terminations, truncations = dict.fromkeys(actions, False), dict.fromkeys(actions, False)
        shown: list[Any] = []
        for _ in range(FRAME_SKIP):
            acting = {agent: actions[agent] for agent in self._env.agents}
            screens, new_rewards, ended, truncated, infos = self._env.step(acting)
            for agent in acting:
                rewards[agent] += float(new_rewards[agent])
                terminations[agent] |= bool(ended[agent])
                truncations[agent] |= bool(truncated[agent])
            shown.append(next(iter(screens.values())))
            if not self._env.agents or any(truncated.values()):
                break
        self._push(np.maximum.reduce(shown[-2:]))
        return self._observe(actions), rewards, terminations, truncations, infos

    def _push(self, screen: Any) -> None:
        frame = self._resize(np.ascontiguousarray(screen[..., _BLUE]))
        self._frames = np.concatenate((self._frames[1:], frame[None]))

    def _observe(self, agents: Any) -> dict[str, Any]:
        return {
            agent: np.concatenate((self._frames, planes))
            for agent, planes in zip(self.possible_agents, self._planes, strict=True)
            if agent in agents
        }

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()
