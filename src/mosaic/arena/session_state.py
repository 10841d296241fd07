"""What a window shows of a session besides its frames: written to `session.json`, replaced at each write."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from mosaic.arena.actors import Turn
from mosaic.arena.play_envs import PlayEnv, StepResult
from mosaic.arena.played_seat import PlayedSeat
from mosaic.arena.recording import Ending
from mosaic.common.files import write_text
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.play import ANY_AGENT
from mosaic.contracts.views import SeatState, SessionState, SymbolGrid
from mosaic.envs.families import EnvEntry

RATE_HZ = 30.0
MAX_TEXT = 4000
MAX_SHOWN_VALUES = 64


class StateWriter:
    """Writes the state at most RATE_HZ times a second. A state that cannot be written is skipped."""

    def __init__(self, folder: RunFolder, env: PlayEnv, entry: EnvEntry | None, names: tuple[str, ...]) -> None:
        self._path = folder.session_state
        self._env = env
        self._entry = entry
        self._names = names
        self._next_at = 0.0
        self.has_changed = True
        self.episode = 0
        self._last_actions: dict[str, str] = {}
        self._last_rewards: dict[str, float] = {}
        self._ending: Ending = "running"
        self._read_symbols = None if entry is None or entry.symbols is None else _load(entry.symbols)
        self.seed = 0

    def start_episode(self) -> int:
        """Return the number of the episode that starts, from 1."""
        self.episode += 1
        self._last_actions, self._last_rewards, self._ending = {}, {}, "running"
        self.has_changed = True
        return self.episode

    def add_step(self, actions: Mapping[str, Any], result: StepResult, ending: Ending) -> None:
        self._last_actions = {agent: self._name_action(action) for agent, action in actions.items()}
        self._last_rewards = dict(result.rewards)
        self._ending = ending
        self.has_changed = True

    def _name_action(self, action: Any) -> str:
        if isinstance(action, (int, np.integer)) and 0 <= action < len(self._names):
            return self._names[int(action)]
        return np.array2string(np.asarray(action), precision=3, separator=", ")

    def is_due(self) -> bool:
        """Return whether something has changed that is to be written now."""
        return self.has_changed and time.monotonic() >= self._next_at

    def write(
        self, seats: Mapping[str, PlayedSeat], returns: Mapping[str, float], *, is_paused: bool, rate_hz: float | None
    ) -> None:
        self.has_changed = False
        self._next_at = time.monotonic() + 1 / RATE_HZ
        turns = {turn.agent: turn for turn in self._env.turns}
        first = next(iter(turns.values()), None)
        state = SessionState(
            episode=self.episode,
            step=self._env.steps,
            seed=self.seed,
            ending=self._ending,
            is_paused=is_paused,
            rate_hz=rate_hz,
            action_names=self._names,
            seats=tuple(
                SeatState(
                    agent="" if agent == ANY_AGENT else agent,
                    actor=seat.actor_name,
                    is_human=seat.is_human,
                    can_switch=seat.can_switch,
                    is_to_act=agent in turns,
                    episodic_return=returns.get(agent, 0.0),
                    last_action=self._last_actions.get(agent, ""),
                    last_reward=self._last_rewards.get(agent, 0.0),
                    legal_actions=_legal_actions(turns.get(agent)),
                    problem=seat.human.problem if seat.human is not None else "",
                )
                for agent, seat in seats.items()
            ),
            text=self._read_text(),
            symbols=self._symbols(),
            observation="" if first is None else describe_value(first.observation),
            info="" if first is None else describe_value(dict(first.info)),
        )
        with suppress(OSError):
            write_text(self._path, state.model_dump_json())

    def _symbols(self) -> SymbolGrid | None:
        if self._read_symbols is None:
            return None
        with suppress(Exception):  # a subclass of someone else's may lack what is read
            return self._read_symbols(self._env.core, self._env.turns)
        return None

    def _read_text(self) -> str:
        """Return the environment's own text, where it has one."""
        core = self._env.core
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
        return str(text)[:MAX_TEXT] if isinstance(text, str) else ""


def _legal_actions(turn: Turn | None) -> tuple[int, ...] | None:
    return None if turn is None or turn.legal_actions is None else tuple(turn.legal_actions)


def _load(path: str) -> Callable[[Any, Sequence[Turn]], SymbolGrid]:
    module, _, name = path.partition(":")
    found: Callable[[Any, Sequence[Turn]], SymbolGrid] = getattr(importlib.import_module(module), name)
    return found


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
