"""Which algorithms this worker has, a module each, imported when one is asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from types import ModuleType

from mosaic.contracts.errors import unknown_name_error

WIDE_NETWORK_THREADS = 2
"""Threads for layers of some hundred units and for convolutions: 1.2 to 1.7 times the speed of one, where free."""


@dataclass(frozen=True)
class AlgorithmSpec:
    action_spaces: tuple[str, ...]
    observation_spaces: tuple[str, ...]
    is_for_atari: bool = False
    """Whether it looks at Atari games; the others make a vector of what they see."""
    needs_bounds: bool = False
    """Whether continuous actions must have bounds."""
    threads: int = 1
    """How many pay on a CPU. Small networks are slower with more than one."""
    extra: str | None = None
    """The extra of our distribution that it needs beyond `train`; such are not suggested to whoever chose another."""


_FLATTENABLE_SPACES = ("Box", "Discrete", "MultiBinary", "MultiDiscrete", "Tuple", "Dict")
DISCRETE = AlgorithmSpec(("Discrete",), _FLATTENABLE_SPACES)
CONTINUOUS = AlgorithmSpec(("Box",), _FLATTENABLE_SPACES)
CONTINUOUS_BOUNDED = replace(CONTINUOUS, needs_bounds=True, threads=WIDE_NETWORK_THREADS)
ATARI = AlgorithmSpec(("Discrete",), ("Box",), is_for_atari=True, threads=WIDE_NETWORK_THREADS)
ATARI_ENVPOOL = replace(ATARI, extra="envpool")
ALGORITHMS: dict[str, AlgorithmSpec] = {
    "ppo": DISCRETE,
    "dqn": DISCRETE,
    "c51": DISCRETE,
    "pqn": DISCRETE,
    "ppo_continuous_action": CONTINUOUS,
    "rpo_continuous_action": CONTINUOUS,
    "sac_continuous_action": CONTINUOUS_BOUNDED,
    "td3_continuous_action": CONTINUOUS_BOUNDED,
    "ddpg_continuous_action": CONTINUOUS_BOUNDED,
    "ppo_atari": ATARI,
    "ppo_atari_lstm": ATARI,
    "dqn_atari": ATARI,
    "c51_atari": ATARI,
    "rainbow_atari": ATARI,
    "sac_atari": ATARI,
    "ppo_atari_envpool": ATARI_ENVPOOL,
    "pqn_atari_envpool": ATARI_ENVPOOL,
    "ppo_rnd_envpool": ATARI_ENVPOOL,
}
"""In the order in which they are suggested."""


def suitable_algorithms(action_space: str, is_atari: bool) -> list[str]:
    """The algorithms for such actions: in an Atari game those that look at it, where there are any."""
    able = {
        name: entry for name, entry in ALGORITHMS.items() if action_space in entry.action_spaces and entry.extra is None
    }
    seers = [name for name, entry in able.items() if entry.is_for_atari]
    return seers if is_atari and seers else [name for name in able if name not in seers]


def module_name(algo: str) -> str:
    if algo not in ALGORITHMS:
        raise unknown_name_error("algorithm", algo, ALGORITHMS, "worker 'cleanrl'")
    return f"cleanrl_worker.algorithms.{algo}"


def load_algorithm(algo: str) -> ModuleType:
    """The module of an algorithm: `Config`, `Agent`, `check`, `train`, `load_policy`, `state_dict_of`."""
    return importlib.import_module(module_name(algo))
