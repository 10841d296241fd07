"""Which algorithms this worker has: name to module, imported when one is asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

from mosaic.contracts.errors import unknown

WIDE = 2
"""Threads for layers of some hundred units and for convolutions: 1.2 to 1.7 times the speed of one, where free."""


@dataclass(frozen=True)
class Entry:
    module: str
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
_PICTURES = ("Box",)
ALGORITHMS: dict[str, Entry] = {
    "ppo": Entry("cleanrl_worker.algorithms.ppo", ("Discrete",), _VECTORS),
    "dqn": Entry("cleanrl_worker.algorithms.dqn", ("Discrete",), _VECTORS),
    "c51": Entry("cleanrl_worker.algorithms.c51", ("Discrete",), _VECTORS),
    "pqn": Entry("cleanrl_worker.algorithms.pqn", ("Discrete",), _VECTORS),
    "ppo_continuous_action": Entry("cleanrl_worker.algorithms.ppo_continuous_action", ("Box",), _VECTORS),
    "rpo_continuous_action": Entry("cleanrl_worker.algorithms.rpo_continuous_action", ("Box",), _VECTORS),
    "sac_continuous_action": Entry(
        "cleanrl_worker.algorithms.sac_continuous_action", ("Box",), _VECTORS, needs_bounds=True, threads=WIDE
    ),
    "td3_continuous_action": Entry(
        "cleanrl_worker.algorithms.td3_continuous_action", ("Box",), _VECTORS, needs_bounds=True, threads=WIDE
    ),
    "ddpg_continuous_action": Entry(
        "cleanrl_worker.algorithms.ddpg_continuous_action", ("Box",), _VECTORS, needs_bounds=True, threads=WIDE
    ),
    "ppo_atari": Entry(
        "cleanrl_worker.algorithms.ppo_atari", ("Discrete",), _PICTURES, is_for_pictures=True, threads=WIDE
    ),
    "ppo_atari_lstm": Entry(
        "cleanrl_worker.algorithms.ppo_atari_lstm", ("Discrete",), _PICTURES, is_for_pictures=True, threads=WIDE
    ),
    "dqn_atari": Entry(
        "cleanrl_worker.algorithms.dqn_atari", ("Discrete",), _PICTURES, is_for_pictures=True, threads=WIDE
    ),
    "c51_atari": Entry(
        "cleanrl_worker.algorithms.c51_atari", ("Discrete",), _PICTURES, is_for_pictures=True, threads=WIDE
    ),
    "rainbow_atari": Entry(
        "cleanrl_worker.algorithms.rainbow_atari", ("Discrete",), _PICTURES, is_for_pictures=True, threads=WIDE
    ),
    "sac_atari": Entry(
        "cleanrl_worker.algorithms.sac_atari", ("Discrete",), _PICTURES, is_for_pictures=True, threads=WIDE
    ),
    "ppo_atari_envpool": Entry(
        "cleanrl_worker.algorithms.ppo_atari_envpool",
        ("Discrete",),
        _PICTURES,
        is_for_pictures=True,
        threads=WIDE,
        extra="envpool",
    ),
    "pqn_atari_envpool": Entry(
        "cleanrl_worker.algorithms.pqn_atari_envpool",
        ("Discrete",),
        _PICTURES,
        is_for_pictures=True,
        threads=WIDE,
        extra="envpool",
    ),
    "ppo_rnd_envpool": Entry(
        "cleanrl_worker.algorithms.ppo_rnd_envpool",
        ("Discrete",),
        _PICTURES,
        is_for_pictures=True,
        threads=WIDE,
        extra="envpool",
    ),
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
    try:
        return ALGORITHMS[algo].module
    except KeyError:
        raise unknown("algorithm", algo, ALGORITHMS, "worker 'cleanrl'") from None


def algorithm(algo: str) -> ModuleType:
    """The module of an algorithm: `Config`, `Agent`, `check`, `train`, `load_policy`, `state_dict_of`."""
    return importlib.import_module(module_name(algo))
