"""How a saved policy of each algorithm comes to play: one row an algorithm.

The agent is what the algorithm's own `load_policy` makes of a checkpoint. Where there are only the weights that CleanRL
saves, a row says how to complete them to a checkpoint, or why that cannot be done.
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
    """What a checkpoint of ours would have beside the weights that there are."""

    facts: Json
    arrays: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    """Of networks that learn but do not act."""


def _load_policy(algo: str, checkpoint: Checkpoint) -> EvaluablePolicy:
    from cleanrl_worker.registry import load_algorithm

    policy: EvaluablePolicy = load_algorithm(algo).load_policy(checkpoint)
    return policy


def discrete_checkpoint(algo: str, env: Any, config: Json) -> CheckpointFromWeights:
    """For networks that see the observation as one vector and choose among numbered actions."""
    from cleanrl_worker.algorithms.base import ObservationEncoder

    inputs = ObservationEncoder.describe(env.observation_space)
    shape = {"observation_size": inputs["size"], **_discrete_shape(env, config)}
    return CheckpointFromWeights(
        {"algorithm": algo, "shape": shape, "inputs": inputs, "first_action": int(env.action_space.start)}
    )


def atari_checkpoint(algo: str, env: Any, config: Json) -> CheckpointFromWeights:
    """For networks that look at an Atari game."""
    return CheckpointFromWeights(
        {"algorithm": algo, "shape": _discrete_shape(env, config), "first_action": int(env.action_space.start)}
    )


def _discrete_shape(env: Any, config: Json) -> Json:
    atoms: Json = {name: config[name] for name in ("n_atoms", "v_min", "v_max") if name in config}
    return {"actions": int(env.action_space.n), **atoms}


def bounded_continuous_checkpoint(algo: str, env: Any, config: Json) -> CheckpointFromWeights:
    """For an actor that squashes its actions into their bounds."""
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
    """By the algorithm's own maker: what plays its games decides how they look."""
    from cleanrl_worker.registry import load_algorithm

    return load_algorithm(algo).make_env(env_id, **settings)


@dataclass(frozen=True)
class EvaluationSpec:
    load_policy: Callable[[str, Checkpoint], EvaluablePolicy] = _load_policy
    """From the algorithm's name and a checkpoint to the policy."""
    make_env: Callable[..., Any] = make
    """Makes what it is played in, from an environment id, with the wrappers that training had."""
    evaluator: Callable[..., Any] = evaluate
    """Plays; see `mosaic.arena.evaluate`."""
    build_checkpoint: Callable[[str, Any, Json], CheckpointFromWeights] | None = None
    """What a checkpoint would say, from the algorithm's name, the environment and the settings; none: weights are not
    enough."""
    missing_state: str = ""
    """What is missing then."""
    model_parts: tuple[str, ...] = ()
    """Where CleanRL saves a tuple of state dicts: what each is of. The first one acts."""


_NEEDS_NORMALISER = EvaluationSpec(missing_state="the mean and variance by which observations were normalised")
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
    "ppo_continuous_action": _NEEDS_NORMALISER,
    "rpo_continuous_action": _NEEDS_NORMALISER,
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
