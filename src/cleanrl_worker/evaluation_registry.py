"""How a saved policy of each algorithm is evaluated: one row per algorithm.

The algorithm's own `load_policy` makes the policy from a checkpoint. If there are only the weights that CleanRL saves,
a row says how to complete them to a checkpoint, or why that is not possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from mosaic.arena import EvaluablePolicy, evaluate
from mosaic.contracts.errors import unknown_name_error
from mosaic.envs import make
from mosaic.run import Checkpoint

Json = dict[str, Any]


class CheckpointFromWeights(NamedTuple):
    """What a checkpoint has in addition to the weights of a model file."""

    facts: Json
    arrays: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    """Weights of networks that are trained but do not act."""


def _load_policy(algo: str, checkpoint: Checkpoint) -> EvaluablePolicy:
    from cleanrl_worker.registry import load_algorithm

    policy: EvaluablePolicy = load_algorithm(algo).load_policy(checkpoint)
    return policy


def discrete_checkpoint(algo: str, env: Any, config: Json) -> CheckpointFromWeights:
    """Complete a network for flat observations and discrete actions."""
    from cleanrl_worker.algorithms.base import ObservationEncoder

    inputs = ObservationEncoder.describe(env.observation_space)
    shape = {"observation_size": inputs["size"], **_discrete_shape(env, config)}
    return CheckpointFromWeights(
        {"algorithm": algo, "shape": shape, "inputs": inputs, "first_action": int(env.action_space.start)}
    )


def atari_checkpoint(algo: str, env: Any, config: Json) -> CheckpointFromWeights:
    """Complete a network for Atari frames."""
    return CheckpointFromWeights(
        {"algorithm": algo, "shape": _discrete_shape(env, config), "first_action": int(env.action_space.start)}
    )


def _discrete_shape(env: Any, config: Json) -> Json:
    atoms: Json = {name: config[name] for name in ("n_atoms", "v_min", "v_max") if name in config}
    return {"actions": int(env.action_space.n), **atoms}


def bounded_continuous_checkpoint(algo: str, env: Any, config: Json) -> CheckpointFromWeights:
    """Complete an actor that squashes its actions into their bounds."""
    from cleanrl_worker.algorithms.base import ObservationEncoder
    from cleanrl_worker.registry import load_algorithm

    inputs, space = ObservationEncoder.describe(env.observation_space), env.action_space
    return CheckpointFromWeights(
        {"algorithm": algo, "shape": {"observation_size": inputs["size"]}, "inputs": inputs},
        {"action.low": space.low, "action.high": space.high},
        load_algorithm(algo).Agent(inputs["size"], space.low, space.high).state_dict(),
    )


def _make_atari_env(env_id: str, **settings: Any) -> Any:
    from cleanrl_worker.atari_envs import make_evaluation_env

    return make_evaluation_env(env_id, **settings)


def _make_algorithm_env(algo: str, env_id: str, **settings: Any) -> Any:
    """Make the environment as the algorithm does: its emulator decides what frames look like."""
    from cleanrl_worker.registry import load_algorithm

    return load_algorithm(algo).make_env(env_id, **settings)


@dataclass(frozen=True)
class EvaluationSpec:
    load_policy: Callable[[str, Checkpoint], EvaluablePolicy] = _load_policy
    """Makes the policy from the algorithm's name and a checkpoint."""
    make_env: Callable[..., Any] = make
    """Makes the environment from its id, with the wrappers used in training."""
    evaluator: Callable[..., Any] = evaluate
    """Runs the episodes; see `mosaic.arena.evaluate`."""
    build_checkpoint: Callable[[str, Any, Json], CheckpointFromWeights] | None = None
    """Completes weights to a checkpoint from the algorithm's name, the environment and the settings; None if weights
    are not enough."""
    missing_state: str = ""
    """What is missing in that case."""
    model_parts: tuple[str, ...] = ()
    """The names of the state dicts where CleanRL saves a tuple of them. The first one acts."""


_NEEDS_NORMALIZER = EvaluationSpec(missing_state="the mean and variance by which observations were normalized")
_DISCRETE = EvaluationSpec(build_checkpoint=discrete_checkpoint)
_ATARI = EvaluationSpec(make_env=_make_atari_env, build_checkpoint=atari_checkpoint)
_ATARI_CHECKPOINT_ONLY = EvaluationSpec(make_env=_make_atari_env, missing_state="the rest of its checkpoint")
_ENVPOOL_ALGORITHMS = ("ppo_atari_envpool", "pqn_atari_envpool", "ppo_rnd_envpool")
_TWO_CRITICS = EvaluationSpec(build_checkpoint=bounded_continuous_checkpoint, model_parts=("actor", "qf1", "qf2"))
EVALUATION_SPECS: dict[str, EvaluationSpec] = {
    "ppo": _DISCRETE,
    "dqn": _DISCRETE,
    "c51": _DISCRETE,
    "pqn": _DISCRETE,
    "ppo_continuous_action": _NEEDS_NORMALIZER,
    "rpo_continuous_action": _NEEDS_NORMALIZER,
    "sac_continuous_action": _TWO_CRITICS,
    "td3_continuous_action": _TWO_CRITICS,
    "ddpg_continuous_action": EvaluationSpec(
        build_checkpoint=bounded_continuous_checkpoint, model_parts=("actor", "qf1")
    ),
    "ppo_atari": _ATARI,
    "ppo_atari_lstm": _ATARI,
    "dqn_atari": _ATARI,
    "c51_atari": _ATARI,
    "rainbow_atari": _ATARI_CHECKPOINT_ONLY,
    "sac_atari": _ATARI_CHECKPOINT_ONLY,
    **{
        algo: EvaluationSpec(make_env=partial(_make_algorithm_env, algo), build_checkpoint=atari_checkpoint)
        for algo in _ENVPOOL_ALGORITHMS
    },
}


def evaluation_spec(algo: str) -> EvaluationSpec:
    try:
        return EVALUATION_SPECS[algo]
    except KeyError:
        raise unknown_name_error("evaluation for the algorithm", algo, EVALUATION_SPECS, "worker 'cleanrl'") from None
