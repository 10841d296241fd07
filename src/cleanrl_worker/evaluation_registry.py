"""How a saved policy of each algorithm comes to play: one row an algorithm.

The agent is what the algorithm's own `load_policy` makes of a checkpoint. Where there are only the weights that CleanRL
saves, a row says how to complete them to a checkpoint, or why that cannot be done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from mosaic.arena import Policy, evaluate
from mosaic.contracts.errors import unknown
from mosaic.envs import make
from mosaic.run import Checkpoint

Json = dict[str, Any]


class Adopted(NamedTuple):
    """What a checkpoint of ours would have beside the weights that there are."""

    facts: Json
    arrays: dict[str, Any] = {}
    weights: dict[str, Any] = {}
    """Of networks that learn but do not act."""


def _load_policy(algo: str, checkpoint: Checkpoint) -> Policy:
    from cleanrl_worker.registry import algorithm

    policy: Policy = algorithm(algo).load_policy(checkpoint)
    return policy


def choice_of_actions(algo: str, env: Any, config: Json) -> Adopted:
    """For networks that see the observation as one vector and choose among numbered actions."""
    from cleanrl_worker.algorithms.base import Inputs

    inputs = Inputs.facts(env.observation_space)
    shape = {"observation_size": inputs["size"], **_choices(env, config)}
    return Adopted({"algorithm": algo, "shape": shape, "inputs": inputs, "first_action": int(env.action_space.start)})


def choice_in_games(algo: str, env: Any, config: Json) -> Adopted:
    """For networks that look at an Atari game."""
    return Adopted({"algorithm": algo, "shape": _choices(env, config), "first_action": int(env.action_space.start)})


def _choices(env: Any, config: Json) -> Json:
    atoms: Json = {name: config[name] for name in ("n_atoms", "v_min", "v_max") if name in config}
    return {"actions": int(env.action_space.n), **atoms}


def bounded_actions(algo: str, env: Any, config: Json) -> Adopted:
    """For an actor that squashes its actions into their bounds."""
    from cleanrl_worker.algorithms.base import Inputs
    from cleanrl_worker.registry import algorithm

    inputs, space = Inputs.facts(env.observation_space), env.action_space
    return Adopted(
        {"algorithm": algo, "shape": {"observation_size": inputs["size"]}, "inputs": inputs},
        {"action.low": space.low, "action.high": space.high},
        algorithm(algo).Agent(inputs["size"], space.low, space.high).state_dict(),
    )


def _game(env_id: str, **settings: Any) -> Any:
    from cleanrl_worker.games import make_game

    return make_game(env_id, **settings)


def _own_game(algo: str, env_id: str, **settings: Any) -> Any:
    """By the algorithm's own maker: what plays its games decides how they look."""
    from cleanrl_worker.registry import algorithm

    return algorithm(algo).make_env(env_id, **settings)


@dataclass(frozen=True)
class Recipe:
    agent: Callable[[str, Checkpoint], Policy] = _load_policy
    """From the algorithm's name and a checkpoint to the policy."""
    environment: Callable[..., Any] = make
    """Makes what it is played in, from an environment id, with the wrappers that training had."""
    evaluator: Callable[..., Any] = evaluate
    """Plays; see `mosaic.arena.evaluate`."""
    adopt: Callable[[str, Any, Json], Adopted] | None = None
    """What a checkpoint would say, from the algorithm's name, the environment and the settings; none: weights are not
    enough."""
    lacks: str = ""
    """What is missing then."""
    parts: tuple[str, ...] = ()
    """Where CleanRL saves a tuple of state dicts: what each is of. The first one acts."""


_NORMALISED = Recipe(lacks="the mean and variance by which observations were normalised")
_CHOOSING = Recipe(adopt=choice_of_actions)
_GAME = Recipe(environment=_game, adopt=choice_in_games)
_GAME_OF_OURS = Recipe(environment=_game, lacks="the rest of its checkpoint")
_IN_ENVPOOL = ("ppo_atari_envpool", "pqn_atari_envpool", "ppo_rnd_envpool")
_TWO_CRITICS = Recipe(adopt=bounded_actions, parts=("actor", "qf1", "qf2"))
RECIPES: dict[str, Recipe] = {
    "ppo": _CHOOSING,
    "dqn": _CHOOSING,
    "c51": _CHOOSING,
    "pqn": _CHOOSING,
    "ppo_continuous_action": _NORMALISED,
    "rpo_continuous_action": _NORMALISED,
    "sac_continuous_action": _TWO_CRITICS,
    "td3_continuous_action": _TWO_CRITICS,
    "ddpg_continuous_action": Recipe(adopt=bounded_actions, parts=("actor", "qf1")),
    "ppo_atari": _GAME,
    "ppo_atari_lstm": _GAME,
    "dqn_atari": _GAME,
    "c51_atari": _GAME,
    "rainbow_atari": _GAME_OF_OURS,
    "sac_atari": _GAME_OF_OURS,
    **{algo: Recipe(environment=partial(_own_game, algo), adopt=choice_in_games) for algo in _IN_ENVPOOL},
}


def recipe(algo: str) -> Recipe:
    try:
        return RECIPES[algo]
    except KeyError:
        raise unknown("evaluation for the algorithm", algo, RECIPES, "worker 'cleanrl'") from None
