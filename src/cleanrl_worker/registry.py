"""Which algorithms this worker has: name to module, imported when one is asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType

from mosaic.contracts.errors import unknown


@dataclass(frozen=True)
class Entry:
    module: str
    action_spaces: tuple[str, ...]
    observation_spaces: tuple[str, ...]


_VECTORS = ("Box", "Discrete", "MultiBinary", "MultiDiscrete", "Tuple", "Dict")
ALGORITHMS: dict[str, Entry] = {
    "ppo": Entry("cleanrl_worker.algorithms.ppo", ("Discrete",), _VECTORS),
    "ppo_continuous_action": Entry("cleanrl_worker.algorithms.ppo_continuous_action", ("Box",), _VECTORS),
}


def module_name(algo: str) -> str:
    try:
        return ALGORITHMS[algo].module
    except KeyError:
        raise unknown("algorithm", algo, ALGORITHMS, "worker 'cleanrl'") from None


def algorithm(algo: str) -> ModuleType:
    """The module of an algorithm: `Config`, `Agent`, `check`, `train`, `load_policy`, `state_dict_of`."""
    return importlib.import_module(module_name(algo))
