"""The algorithms of this worker: one module each, imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType

from mosaic.base.algorithm_schema import unknown_algorithm_error

WIDE_NETWORK_THREADS = 2
"""Threads for layers of a few hundred units and for convolutions: 1.2 to 1.7 times the speed of one on idle cores."""
NARROW_UNITS = 128
"""Layers of at most this many units need one thread. With a second one, which waits busily, SAC took 15 CPU seconds
for one, and was 16 times slower while other processes used all cores."""


@dataclass(frozen=True)
class AlgorithmSpec:
    action_spaces: tuple[str, ...]
    observation_spaces: tuple[str, ...]
    is_for_atari: bool = False
    """Whether it is for Atari frames alone."""
    sees_images: bool = False
    """Whether it has convolutions for observations that are images, where other algorithms flatten them."""
    is_for_procgen: bool = False
    """Whether it is for the frames of Procgen's games alone."""
    has_several_agents: bool = False
    """Whether it trains the agents of PettingZoo's parallel environments together."""
    needs_bounds: bool = False
    """Whether continuous actions must have bounds."""
    threads: int = 1
    """The useful number of threads on a CPU for its default network."""
    gpus: int = 0
    """GPUs that its runs hold by default. Small networks are faster on a CPU."""
    model_parts: tuple[str, ...] = ()
    """The names of the state dicts where CleanRL saves a tuple of them as the model. The first one acts."""
    missing_state: str = ""
    """What acting needs besides the weights that CleanRL saves as the model."""
    normalizes: bool = False
    """Whether it normalizes observations and rewards itself."""
    extra: str | None = None
    """The extra of the package that it needs besides `train`; such algorithms are never suggested as alternatives."""
    needs_teacher: bool = False
    """Whether it learns from a trained policy, which its `check_teacher` finds; never suggested as an alternative."""

    def useful_threads(self, hidden_sizes: Sequence[int], has_other_layers: bool) -> int:
        """Return the useful number of threads for a network of these layers, and of convolutions and the like."""
        is_wide = has_other_layers or self.is_for_games or not hidden_sizes or max(hidden_sizes) > NARROW_UNITS
        return self.threads if is_wide else 1

    @property
    def is_suggested(self) -> bool:
        """Whether it may be suggested as an alternative."""
        return self.extra is None and not self.needs_teacher

    @property
    def is_for_games(self) -> bool:
        """Whether it is for the frames of games alone."""
        return self.is_for_atari or self.is_for_procgen

    @property
    def runs_in_envpool(self) -> bool:
        """Whether envpool runs its games, which take no settings and cannot be restored."""
        return self.extra in ("envpool", "procgen")


_FLATTENABLE_SPACES = ("Box", "Discrete", "MultiBinary", "MultiDiscrete", "Tuple", "Dict")
_CHOICES = ("Discrete", "MultiDiscrete", "MultiBinary")
DISCRETE = AlgorithmSpec(("Discrete",), _FLATTENABLE_SPACES)
CONTINUOUS = AlgorithmSpec(
    ("Box",),
    _FLATTENABLE_SPACES,
    sees_images=True,
    missing_state="the mean and variance by which observations were normalized",
    normalizes=True,
)
ONE_CRITIC = AlgorithmSpec(
    ("Box",),
    _FLATTENABLE_SPACES,
    sees_images=True,
    needs_bounds=True,
    threads=WIDE_NETWORK_THREADS,
    gpus=1,
    model_parts=("actor", "qf1"),
)
TWO_CRITICS = replace(ONE_CRITIC, model_parts=("actor", "qf1", "qf2"))
QUANTILE_CRITICS = replace(ONE_CRITIC, model_parts=("actor",))
ATARI = AlgorithmSpec(("Discrete",), ("Box",), is_for_atari=True, threads=WIDE_NETWORK_THREADS, gpus=1)
ATARI_CHECKPOINT_ONLY = replace(ATARI, missing_state="the rest of its checkpoint")
ATARI_ENVPOOL = replace(ATARI, extra="envpool")
PROCGEN = replace(ATARI, is_for_atari=False, is_for_procgen=True, extra="procgen")
PETTINGZOO = replace(DISCRETE, has_several_agents=True, extra="pettingzoo")
ALGORITHMS: dict[str, AlgorithmSpec] = {
    "ppo": replace(DISCRETE, action_spaces=_CHOICES),
    "dqn": DISCRETE,
    "c51": DISCRETE,
    "pqn": DISCRETE,
    "qrdqn": DISCRETE,
    "ppo_continuous_action": CONTINUOUS,
    "rpo_continuous_action": CONTINUOUS,
    "sac_continuous_action": TWO_CRITICS,
    "td3_continuous_action": TWO_CRITICS,
    "ddpg_continuous_action": ONE_CRITIC,
    "tqc": QUANTILE_CRITICS,
    "a2c": AlgorithmSpec((*_CHOICES, "Box"), _FLATTENABLE_SPACES, missing_state="the rest of its checkpoint"),
    "ppo_lstm": AlgorithmSpec((*_CHOICES, "Box"), _FLATTENABLE_SPACES, missing_state="the rest of its checkpoint"),
    "ppo_trxl": AlgorithmSpec(
        _CHOICES, _FLATTENABLE_SPACES, threads=WIDE_NETWORK_THREADS, gpus=1, missing_state="the rest of its checkpoint"
    ),
    "ppo_atari": ATARI,
    "ppo_atari_lstm": ATARI,
    "dqn_atari": ATARI,
    "c51_atari": ATARI,
    "rainbow_atari": ATARI_CHECKPOINT_ONLY,
    "sac_atari": ATARI_CHECKPOINT_ONLY,
    "ppo_atari_multigpu": ATARI,
    "qdagger_dqn_atari_impalacnn": replace(ATARI, needs_teacher=True),
    "ppo_atari_envpool": ATARI_ENVPOOL,
    "pqn_atari_envpool": ATARI_ENVPOOL,
    "ppo_rnd_envpool": ATARI_ENVPOOL,
    "ppo_procgen": PROCGEN,
    "ppg_procgen": PROCGEN,
    "ppo_pettingzoo": PETTINGZOO,
    "ppo_pettingzoo_ma_atari": replace(ATARI, has_several_agents=True, extra="ma_atari"),
}
"""In the order of suggestions."""


def suitable_algorithms(action_space: str, is_atari: bool) -> list[str]:
    """Return the algorithms for an action space; for Atari games those that use frames, if there are any."""
    suitable = {
        name: entry for name, entry in ALGORITHMS.items() if action_space in entry.action_spaces and entry.is_suggested
    }
    for_atari = [name for name, entry in suitable.items() if entry.is_for_atari]
    return for_atari if is_atari and for_atari else [name for name in suitable if name not in for_atari]


def module_name(algo: str) -> str:
    if algo not in ALGORITHMS:
        raise unknown_algorithm_error(algo, ALGORITHMS, "worker 'cleanrl'")
    return f"cleanrl_worker.algorithms.{algo}"


def load_algorithm(algo: str) -> ModuleType:
    """Import the module of an algorithm: `Config`, `Agent`, `check`, `train`, `load_policy`, `state_dict_of`.

    One whose environments are not Gymnasium's also has `make_env`, one that needs a teacher `check_teacher`.
    """
    return importlib.import_module(module_name(algo))
