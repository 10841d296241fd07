"""Which algorithms this worker has: name to module, imported when one is asked for."""

from __future__ import annotations

import importlib
from types import ModuleType

from mosaic.contracts.errors import unknown

ALGORITHMS: dict[str, str] = {
    "ppo": "cleanrl_worker.algorithms.ppo",
    "ppo_continuous_action": "cleanrl_worker.algorithms.ppo_continuous_action",
}


def module_name(algo: str) -> str:
    try:
        return ALGORITHMS[algo]
    except KeyError:
        raise unknown("algorithm", algo, ALGORITHMS, "worker 'cleanrl'") from None


def algorithm(algo: str) -> ModuleType:
    """The module of an algorithm: `Config`, `Agent`, `check`, `train`, `load_policy`."""
    return importlib.import_module(module_name(algo))
