"""PettingZoo's parallel environments, in which all agents act at the same time, as environments of one team.

An observation has a row for each agent, an action is one number per agent, and the reward is the sum over the agents;
what each agent got is in attributes. So whatever steps, records, renders or evaluates an environment can use a team.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from mosaic.contracts.errors import BadInput, MissingExtra, unknown_name_error
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_SKIP, FRAME_STACK, FrameArray, make_resizer
from mosaic.worker.envs.env_settings import check_env_settings
from mosaic.worker.envs.factory import refused_settings_error
from mosaic.worker.envs.families import FAMILIES, EnvFamily
from mosaic.worker.envs.reproducible import seeded_construction
from mosaic.worker.envs.spaces import describe_space, flat_size, make_flattener
from mosaic.worker.envs.user_modules import import_user_module

PETTINGZOO_PREFIX = "pettingzoo/"
ATARI = "pettingzoo_atari"
_MODULES = {
    "pettingzoo_classic": "pettingzoo.classic",
    "pettingzoo_butterfly": "pettingzoo.butterfly",
    "pettingzoo_mpe": "mpe2",
    ATARI: "pettingzoo.atari",
}
"""Where the environments of a family are, each in a module of its name."""

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


def load_pettingzoo_module(env_id: str) -> tuple[Any, EnvFamily]:
    """Import the module of an environment such as `pettingzoo/simple_spread_v3`; return it and its family."""
    families = [family for family in FAMILIES.values() if family.has_several_agents]
    family = next((family for family in families if env_id in family.known_ids), None)
    if family is None:
        raise unknown_name_error("environment", env_id, [known for family in families for known in family.known_ids])
    if family.is_installed and (package := family.missing_package(env_id)):
        raise MissingExtra(f"{env_id!r} needs another package: pip install {package}.")
    for variable, value in family.environment_variables.items():
        os.environ.setdefault(variable, value)
    try:
        return importlib.import_module(f"{_MODULES[family.name]}.{env_id.removeprefix(PETTINGZOO_PREFIX)}"), family
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{env_id!r} needs {error.name}: {family.install_command}.") from None


def make_pettingzoo(env_id: str, settings: Mapping[str, Any], render_mode: str = "rgb_array") -> Any:
    """Make an environment with PettingZoo's own interface: parallel, or AEC if agents act by turns."""
    module, family = load_pettingzoo_module(env_id)
    check_env_settings(env_id, settings, family.find_entry(env_id))
    make = module.env if family.has_turns else module.parallel_env
    games = rom_settings() if family.name == ATARI else {}
    try:
        with seeded_construction(env_id):
            return make(render_mode=render_mode, **games, **settings)
    except Exception as error:
        if not settings:
            raise
        raise refused_settings_error(env_id, settings, error) from error


def make_team_env(env_id: str, render_mode: str | None = None, **settings: Any) -> TeamEnv:
    """Make a parallel environment of PettingZoo as one of a team; raise if it is not one, or cannot be one."""
    if env_id.startswith(PETTINGZOO_PREFIX):
        env = make_pettingzoo(env_id, settings)
        if env_id in FAMILIES[ATARI].known_ids:
            env = AtariTeamFrames(env)
    elif ":" in env_id:
        module, _, name = env_id.rpartition(":")
        make = getattr(import_user_module(env_id, "env_id"), name, None)
        if make is None:
            raise BadInput(f"env_id: the module {module!r} has no {name!r} that makes a parallel environment.")
        with seeded_construction(env_id):
            env = make(render_mode="rgb_array", **settings)
    else:
        raise BadInput(
            f"{env_id!r} is not a parallel environment of PettingZoo. Give one such as 'pettingzoo/simple_spread_v3', "
            "or a function that makes one as 'module:function'."
        )
    if hasattr(env, "agent_iter"):
        env.close()
        raise BadInput(f"{env_id!r} is played by turns; all agents must act at the same time to be trained together.")
    return TeamEnv(env, env_id, render_mode)


class TeamEnv(gymnasium.Env[npt.NDArray[Any], npt.NDArray[Any]]):
    """All agents of a parallel environment. Rows of agents that are absent are zeros, and their actions are ignored.

    Every episode has a seed, the first one the given seed and the next ones drawn from it, because some environments
    draw a random one otherwise.
    """

    def __init__(self, env: Any, env_id: str, render_mode: str | None = None) -> None:
        self._env = env
        self._env_id = env_id
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": env.metadata.get("render_fps", 15)}
        self.agents: tuple[str, ...] = tuple(env.possible_agents)
        self.observation_spaces = tuple(env.observation_space(agent) for agent in self.agents)
        self.action_spaces: tuple[Discrete, ...] = tuple(self._discrete_space(agent) for agent in self.agents)
        self.sizes = tuple(map(flat_size, self.observation_spaces))
        """The number of values in each agent's observation; further ones of its row are zeros."""
        if 0 in self.sizes:
            space = self.observation_spaces[self.sizes.index(0)]
            raise BadInput(f"{env_id!r} has observations that cannot be flattened: {describe_space(space)}.")
        self._flatteners = [make_flattener(space) or np.asarray for space in self.observation_spaces]
        self.has_frames = isinstance(env, AtariTeamFrames)
        """Whether rows are the frames of an Atari game, bytes [channels, 84, 84], instead of vectors."""
        if self.has_frames:
            shape = self.observation_spaces[0].shape
            self._flatteners = [np.asarray] * len(self.agents)
            self.observation_space = Box(0, 255, (len(self.agents), *shape), np.uint8)
        else:
            self.observation_space = Box(-np.inf, np.inf, (len(self.agents), max(self.sizes)), np.float32)
        self.action_space = MultiDiscrete(
            [int(space.n) for space in self.action_spaces], start=[int(space.start) for space in self.action_spaces]
        )
        self._no_observation = np.zeros(self.observation_space.shape or (), self.observation_space.dtype)
        self.is_present = np.zeros(len(self.agents), np.bool_)
        """The agents that act in the next step."""
        self.rewards = np.zeros(len(self.agents))
        """What each agent got in the last step."""
        self.has_left = np.zeros(len(self.agents), np.bool_)
        """The agents for which the last step was the last one."""
        self.is_terminal = np.zeros(len(self.agents), np.bool_)
        """Those among them that were not truncated."""

    def _discrete_space(self, agent: str) -> Discrete:
        space = self._env.action_space(agent)
        if not isinstance(space, Discrete):
            raise BadInput(
                f"{self._env_id!r}: the actions of {agent} are {describe_space(space)}; all agents need discrete ones."
            )
        return space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed)
        observations, _ = self._env.reset(seed=int(self.np_random.integers(2**31)) if seed is None else seed)
        for index, agent in enumerate(self.agents):
            self.is_present[index] = agent in self._env.agents
        return self._stack(observations), {}

    def step(self, action: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], float, bool, bool, dict[str, Any]]:
        actions = {
            agent: int(own) for agent, own, acts in zip(self.agents, action, self.is_present, strict=True) if acts
        }
        observations, rewards, terminations, truncations, _ = self._env.step(actions)
        remaining = set(self._env.agents)
        for index, agent in enumerate(self.agents):
            was_present = self.is_present[index]
            is_terminal = bool(terminations.get(agent, False))
            has_left = is_terminal or bool(truncations.get(agent, False)) or agent not in remaining
            self.rewards[index] = rewards.get(agent, 0.0) if was_present else 0.0
            self.has_left[index], self.is_terminal[index] = was_present and has_left, was_present and is_terminal
            self.is_present[index] = was_present and not has_left
        is_over = not self.is_present.any()
        is_terminal = is_over and not any(truncations.values())
        stacked = self._stack(observations)
        return stacked, float(self.rewards.sum()), is_terminal, is_over and not is_terminal, {}

    def _stack(self, observations: Mapping[str, Any]) -> npt.NDArray[Any]:
        """Return a row for each agent that is present, or was until now."""
        stacked: npt.NDArray[Any] = np.zeros_like(self._no_observation)
        for index, agent in enumerate(self.agents):
            if agent in observations and (self.is_present[index] or self.has_left[index]):
                row = self._flatteners[index](observations[agent])
                stacked[index, : len(row)] = row
        return stacked

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        self._env.close()
