"""Which algorithms this worker has, a module each, imported when one is asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from types import ModuleType

from mosaic.contracts.errors import unknown

WIDE = 2
"""Threads for layers of some hundred units and for convolutions: 1.2 to 1.7 times the speed of one, where free."""


@dataclass(frozen=True)
class Entry:
    action_spaces: tuple[str, ...]
    observation_spaces: tuple[str, ...]
    is_for_pictures: bool = False
    """Whether it looks at Atari games; the others make a vector of what they see."""
    needs_bounds: bool = False
    """Whether continuous actions must have bounds."""
    threads: int = 1
    """How many pay on a CPU. Small networks are slower with more than one."""
    extra: str | None = None
    """The extra of our distribution that it needs beyond `train`; such are not suggested to whoever chose another."""


_VECTORS = ("Box", "Discrete", "MultiBinary", "MultiDiscrete", "Tuple", "Dict")
_CHOOSES = Entry(("Discrete",), _VECTORS)
_MOVES = Entry(("Box",), _VECTORS)
_MOVES_IN_BOUNDS = replace(_MOVES, needs_bounds=True, threads=WIDE)
_LOOKS = Entry(("Discrete",), ("Box",), is_for_pictures=True, threads=WIDE)
_LOOKS_INTO_A_POOL = replace(_LOOKS, extra="envpool")
ALGORITHMS: dict[str, Entry] = {
    "ppo": _CHOOSES,
    "dqn": _CHOOSES,
    "c51": _CHOOSES,
    "pqn": _CHOOSES,
    "ppo_continuous_action": _MOVES,
    "rpo_continuous_action": _MOVES,
    "sac_continuous_action": _MOVES_IN_BOUNDS,
    "td3_continuous_action": _MOVES_IN_BOUNDS,
    "ddpg_continuous_action": _MOVES_IN_BOUNDS,
    "ppo_atari": _LOOKS,
    "ppo_atari_lstm": _LOOKS,
    "dqn_atari": _LOOKS,
    "c51_atari": _LOOKS,
    "rainbow_atari": _LOOKS,
    "sac_atari": _LOOKS,
    "ppo_atari_envpool": _LOOKS_INTO_A_POOL,
    "pqn_atari_envpool": _LOOKS_INTO_A_POOL,
    "ppo_rnd_envpool": _LOOKS_INTO_A_POOL,
}
"""In the order in which they are suggested."""


def fitting(action_space: str, is_game: bool) -> list[str]:
    """The algorithms for such actions: in an Atari game those that look at it, where there are any."""
    able = {
        name: entry for name, entry in ALGORITHMS.items() if action_space in entry.action_spaces and entry.extra is None
    }
    seers = [name for name, entry in able.items() if entry.is_for_pictures]
    return seers if is_game and seers else [name for name in able if name not in seers]


def module_name(algo: str) -> str:
    if algo not in ALGORITHMS:
        raise unknown("algorithm", algo, ALGORITHMS, "worker 'cleanrl'")
    return f"cleanrl_worker.algorithms.{algo}"


def algorithm(algo: str) -> ModuleType:
    """The module of an algorithm: `Config`, `Agent`, `check`, `train`, `load_policy`, `state_dict_of`."""
    return importlib.import_module(module_name(algo))
