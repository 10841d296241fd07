"""One way to step all kinds of environments: a single agent, turns, or simultaneous actions.

A step takes the actions of the agents whose turn it is and returns what every agent got. Actions and rewards have a
form as rows of numbers, in which they are recorded.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary, MultiDiscrete

from mosaic.contracts.errors import BadInput
from mosaic.contracts.play import ANY_AGENT
from mosaic.contracts.views import SymbolGrid
from mosaic.worker.actors import Turn
from mosaic.worker.envs.families import EnvEntry
from mosaic.worker.envs.reproducible import hash_observation, restore_random_state
from mosaic.worker.envs.spaces import describe_space
from mosaic.worker.envs.teams import PETTINGZOO_PREFIX, make_pettingzoo, make_team_env
from mosaic.worker.envs.wrappers import WrappedEnv
from mosaic.worker.recording import Ending, RecordingHeader

_NO_ACTION = -1
"""In the row of an agent that did not act."""


@dataclass(frozen=True)
class StepResult:
    rewards: Mapping[str, float]
    """By agent: what was delivered with this step."""
    ending: Ending


class PlayEnv(ABC):
    """An environment in which actors act."""

    def __init__(self, env: Any, agents: Sequence[str]) -> None:
        self.env = env
        self.agents = tuple(agents)
        self.turns: list[Turn] = []
        """The agents that act next, with what they know."""
        self.steps = 0
        self._observed: Any = None
        """What the agents saw last, also at the end of an episode."""

    @property
    def core(self) -> Any:
        """The unwrapped environment."""
        return self.env.unwrapped

    @abstractmethod
    def observation_space(self, agent: str) -> Any: ...

    @abstractmethod
    def action_space(self, agent: str) -> Any: ...

    @abstractmethod
    def _reset(self, seed: int | None) -> None: ...

    @abstractmethod
    def _step(self, actions: Mapping[str, Any]) -> StepResult: ...

    @abstractmethod
    def to_row(self, actions: Mapping[str, Any]) -> Any:
        """Return the actions of one step as a row of the recording."""

    @abstractmethod
    def from_row(self, row: Any) -> dict[str, Any]:
        """Return the actions in a row, for the agents whose turn it is."""

    def reward_row(self, rewards: Mapping[str, float]) -> Any:
        if len(self.agents) == 1:
            return rewards[self.agents[0]]
        return [rewards[agent] for agent in self.agents]

    def reset(self, seed: int | None, random_state: Mapping[str, Any] | None = None) -> None:
        self.steps = 0
        if seed is None:
            if random_state is None:
                raise BadInput("The episode was recorded without a seed or a random state, so it cannot be simulated.")
            if not self.turns:
                self._reset(0)  # some environments create their generator then
            restore_random_state(self.core, random_state)
        self._reset(seed)

    def step(self, actions: Mapping[str, Any]) -> StepResult:
        self.steps += 1
        return self._step(actions)

    def hash_observation(self) -> int:
        """Return the hash of what the agents saw last."""
        return hash_observation(self._observed)

    def close(self) -> None:
        self.env.close()


class GymnasiumEnv(PlayEnv):
    """A single agent. A lost life of an Atari game in training is followed by a reset in the same episode."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, (ANY_AGENT,))
        self._takes_numbers = getattr(env.action_space, "shape", None) == ()

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space

    def action_space(self, agent: str) -> Any:
        return self.env.action_space

    def _reset(self, seed: int | None) -> None:
        if hasattr(self.core, "abandon_game"):
            self.core.abandon_game()
        observation, info = self.env.reset(seed=seed)
        self._set_turn(observation, info, 0.0)

    def _step(self, actions: Mapping[str, Any]) -> StepResult:
        observation, reward, is_terminated, is_truncated, info = self.env.step(actions[ANY_AGENT])
        if (is_terminated or is_truncated) and getattr(self.core, "is_game_over", True) is False:
            observation, info = self.env.reset()
            is_terminated = is_truncated = False
        self._set_turn(observation, info, float(reward))
        ending: Ending = "terminated" if is_terminated else "truncated" if is_truncated else "running"
        return StepResult({ANY_AGENT: float(reward)}, ending)

    def _set_turn(self, observation: Any, info: Mapping[str, Any], reward: float) -> None:
        self._observed = self.env.hashed_part(observation) if isinstance(self.env, WrappedEnv) else observation
        self.turns = [Turn(ANY_AGENT, self.steps, observation, info, _legal(info.get("action_mask")), reward)]

    def to_row(self, actions: Mapping[str, Any]) -> Any:
        return actions[ANY_AGENT]

    def from_row(self, row: Any) -> dict[str, Any]:
        return {ANY_AGENT: row.item() if self._takes_numbers else row}


class PettingZooEnv(PlayEnv):
    """Several agents, with spaces of their own."""

    def __init__(self, env: Any) -> None:
        super().__init__(env, env.possible_agents)

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space(agent)

    def action_space(self, agent: str) -> Any:
        return self.env.action_space(agent)


class TurnsEnv(PettingZooEnv):
    """PettingZoo's environments in which one agent acts at a time."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        _require_discrete(env, self.agents)

    def _reset(self, seed: int | None) -> None:
        self.env.reset(seed=seed)
        self._next_turn()

    def _step(self, actions: Mapping[str, Any]) -> StepResult:
        self.env.step(actions[self.env.agent_selection])
        rewards, is_truncated = self._next_turn()
        if self.turns:
            return StepResult(rewards, "running")
        return StepResult(rewards, "truncated" if is_truncated else "terminated")

    def _next_turn(self) -> tuple[dict[str, float], bool]:
        """Skip agents that are done; return the rewards delivered meanwhile, and whether one was truncated."""
        rewards = dict.fromkeys(self.agents, 0.0)
        was_truncated = False
        self.turns = []
        self._observed = {}
        while self.env.agents:
            agent = self.env.agent_selection
            observation, reward, is_terminated, is_truncated, info = self.env.last()
            rewards[agent] += float(reward)
            self._observed[agent] = observation
            if is_terminated or is_truncated:
                was_truncated |= bool(is_truncated)
                self.env.step(None)
                continue
            mask = observation.get("action_mask") if isinstance(observation, dict) else None
            legal = _legal(info.get("action_mask") if mask is None else mask)
            self.turns = [Turn(agent, self.steps, observation, info, legal, float(reward))]
            break
        return rewards, was_truncated

    def to_row(self, actions: Mapping[str, Any]) -> Any:
        return int(actions[self.env.agent_selection])

    def from_row(self, row: Any) -> dict[str, Any]:
        return {self.env.agent_selection: int(row)}


class SimultaneousEnv(PettingZooEnv):
    """PettingZoo's environments in which all agents act at the same time."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._is_discrete = all(hasattr(env.action_space(agent), "n") for agent in self.agents)

    def _reset(self, seed: int | None) -> None:
        observations, infos = self.env.reset(seed=seed)
        self._set_turns(observations, infos, {})

    def _step(self, actions: Mapping[str, Any]) -> StepResult:
        observations, rewards, _, truncations, infos = self.env.step(dict(actions))
        self._set_turns(observations, infos, rewards)
        given = {agent: float(rewards.get(agent, 0.0)) for agent in self.agents}
        if self.turns:
            return StepResult(given, "running")
        return StepResult(given, "truncated" if any(truncations.values()) else "terminated")

    def _set_turns(self, observations: Mapping[str, Any], infos: Mapping[str, Any], rewards: Mapping[str, Any]) -> None:
        self._observed = observations
        self.turns = [
            Turn(agent, self.steps, observations[agent], infos.get(agent, {}), None, float(rewards.get(agent, 0.0)))
            for agent in self.env.agents
        ]

    def to_row(self, actions: Mapping[str, Any]) -> Any:
        if self._is_discrete:
            return [int(actions.get(agent, _NO_ACTION)) for agent in self.agents]
        zeros = {agent: np.zeros(self.action_space(agent).shape, np.float32) for agent in self.agents}
        return np.concatenate([np.ravel(actions.get(agent, zeros[agent])) for agent in self.agents])

    def from_row(self, row: Any) -> dict[str, Any]:
        acting = {turn.agent for turn in self.turns}
        if self._is_discrete:
            return {agent: int(value) for agent, value in zip(self.agents, row, strict=True) if agent in acting}
        actions, begin = {}, 0
        for agent in self.agents:
            space = self.action_space(agent)
            end = begin + int(np.prod(space.shape))
            if agent in acting:
                actions[agent] = np.asarray(row[begin:end], space.dtype).reshape(space.shape)
            begin = end
        return actions


def _legal(mask: Any) -> list[int] | None:
    return None if mask is None else np.flatnonzero(mask).tolist()


def _require_discrete(env: Any, agents: Sequence[str]) -> None:
    for agent in agents:
        if not hasattr(env.action_space(agent), "n"):
            raise BadInput(f"{agent} has actions that are not numbered; an environment with turns needs numbered ones.")


# --- making one


def make_play_env(header: RecordingHeader, render_mode: str | None = None) -> PlayEnv:
    """Make the environment of a session or a recording."""
    from mosaic.worker.envs import make

    if header.preprocessing == "team":
        return GymnasiumEnv(make_team_env(header.env_id, render_mode, **header.env_kwargs))
    if header.env_id.startswith(PETTINGZOO_PREFIX):
        env = make_pettingzoo(header.env_id, header.env_kwargs, render_mode or "rgb_array")
        return TurnsEnv(env) if hasattr(env, "agent_iter") else SimultaneousEnv(env)
    if header.preprocessing != "none":
        from mosaic.worker.envs.atari import AtariEnv

        is_training = header.preprocessing == "atari_training"
        return GymnasiumEnv(
            AtariEnv(
                header.env_id,
                terminal_on_life_loss=is_training,
                clip_rewards=is_training,
                render_mode=render_mode,
                settings=header.env_kwargs,
            )
        )
    return GymnasiumEnv(make(header.env_id, render_mode=render_mode, **header.env_kwargs))


# --- The state of an environment as symbols and in words, for windows and for actors that read.


MAX_TEXT = 4000
MAX_SHOWN_VALUES = 64
_ARRAYS = Box | MultiBinary | MultiDiscrete
_COLORED = re.compile(r"\x1b\[[0-9;]+m(.*?)\x1b\[0?m", re.DOTALL)


def read_symbols(core: Any, entry: EnvEntry | None, turns: Sequence[Turn]) -> SymbolGrid | None:
    """Return the state as a grid of symbols, where the catalog knows how to read it."""
    if entry is None or entry.symbols is None:
        return None
    with suppress(Exception):  # a subclass of someone else's may lack what is read
        grid: SymbolGrid = resolve_name(entry.symbols)(core, turns)
        return grid
    return None


def read_text(core: Any) -> str:
    """Return the environment's own text, where it has one."""
    modes = (getattr(core, "metadata", None) or {}).get("render_modes") or ()
    if "ansi" not in modes:
        return ""
    mode = getattr(core, "render_mode", None)
    try:
        core.render_mode = "ansi"
        text = core.render()
    except Exception:  # whatever an environment's render raises, the session continues
        return ""
    finally:
        core.render_mode = mode
    return text[:MAX_TEXT] if isinstance(text, str) else ""


def describe_action(action: Any, names: Sequence[str]) -> str:
    """Return the name of a numbered action, or the numbers of a continuous one."""
    if isinstance(action, (int, np.integer)) and 0 <= action < len(names):
        return names[int(action)]
    return np.array2string(np.asarray(action), precision=3, separator=", ")


def describe_value(value: Any) -> str:
    """Return an observation or an info as text; of a large array, its shape and range."""
    if isinstance(value, dict):
        return "\n".join(f"{key}: {describe_value(item)}" for key, item in value.items())[:MAX_TEXT]
    if isinstance(value, np.ndarray) and value.size > MAX_SHOWN_VALUES:
        span = f"from {value.min()} to {value.max()}" if value.size else "empty"
        return f"{value.dtype} {value.shape}, {span}"
    if isinstance(value, np.ndarray):
        return np.array2string(value, precision=4, separator=", ")
    return str(value)[:MAX_TEXT]


def describe_rules(env: Any, entry: EnvEntry | None) -> str:
    """Return what the catalog says about an environment with these settings, and its limit of steps."""
    spec, core = getattr(env, "spec", None), env.unwrapped
    signature = inspect.signature(type(core))
    settings = {parameter.name: parameter.default for parameter in signature.parameters.values()}
    with suppress(AttributeError, TypeError):  # what environments keep to be pickled
        settings |= signature.bind(*core._ezpickle_args, **core._ezpickle_kwargs).arguments
    settings |= dict(getattr(spec, "kwargs", {}))
    lines = []
    for rule in () if entry is None else entry.rules:
        needed, text = ({}, rule) if isinstance(rule, str) else rule
        if needed.items() <= settings.items():
            lines.append(text.format_map(settings))
    if limit := getattr(spec, "max_episode_steps", None) or getattr(core, "max_steps", None):
        lines.append(f"An episode ends after {limit:,} steps at the latest.")
    return "\n".join(lines)


def name_actions(core: Any, entry: EnvEntry | None, turn: Turn, names: Sequence[str]) -> Sequence[str]:
    """Return the names of all actions at this turn; in chess, only moves that are legal have one."""
    return names if entry is None or entry.moves is None else resolve_name(entry.moves)(core, turn, names)


def find_missing_words(core: Any, entry: EnvEntry | None, space: Any) -> str:
    """Return why the state cannot be told in words; empty where it can."""
    has_text = "ansi" in ((getattr(core, "metadata", None) or {}).get("render_modes") or ())
    has_names = entry is not None and bool(entry.symbols or entry.words or entry.observation_names)
    if has_text or has_names or not isinstance(space, _ARRAYS | Dict):
        return ""
    if isinstance(space, Dict) and not all(isinstance(part, _ARRAYS) for part in space.spaces.values()):
        return ""
    return f"it would be told nothing but numbers without names, of {describe_space(space)}"


def describe_state(core: Any, entry: EnvEntry | None, turn: Turn) -> str:
    """Return the state in words: a grid by its rows, the environment's own text, or the observation with names."""
    if (grid := read_symbols(core, entry, (turn,))) is not None:
        return _describe_grid(grid, "empty" if type(core).__module__.startswith("pettingzoo") else "floor")
    if entry is not None and entry.words is not None:
        return str(resolve_name(entry.words)(core, turn))
    if text := _COLORED.sub(r"[\1]", read_text(core)).strip():
        return text
    names = () if entry is None else entry.observation_names
    values = np.ravel(turn.observation) if names else np.empty(0)
    if names and len(names) == len(values):
        return "\n".join(f"{name}: {value:.4g}" for name, value in zip(names, values, strict=True))
    return f"Observation: {describe_value(turn.observation)}"


def _describe_grid(grid: SymbolGrid, blank: str) -> str:
    lines = [grid.caption] if grid.caption else []
    for number, row in enumerate(grid.rows):
        cells = [blank if name == "floor" else name.replace("_", " ").replace("+", " with ") for name in row]
        lines.append(f"row {number}: {' | '.join(cells)}")
    if grid.walls:
        walls = [f"({row}, {column}) and ({row}, {column + 1})" for row, column in grid.walls]
        lines.append(f"There are walls between the cells (row, column) {'; '.join(walls)}.")
    return "\n".join(lines)


def action_names(env: Any, entry: EnvEntry | None, count: int | None) -> tuple[str, ...]:
    """Return the names of the discrete actions of an environment; numbers where it has no names."""
    if count is None:
        return ()
    meanings = getattr(env.unwrapped, "get_action_meanings", None)
    names: Sequence[str] = entry.actions if entry is not None else ()
    if callable(meanings):
        names = [str(name).lower() for name in meanings()]
    elif entry is not None and entry.moves is not None:
        names = resolve_name(entry.moves)(env.unwrapped, None, [str(number) for number in range(count)])
    return tuple(names) if len(names) == count else tuple(str(index) for index in range(count))
