"""The state of an environment as symbols and in words, for windows and for actors that read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary, MultiDiscrete

from mosaic.arena.actors import Turn
from mosaic.contracts.views import SymbolGrid
from mosaic.envs.families import EnvEntry
from mosaic.envs.spaces import describe_space

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
