"""How a saved policy of each algorithm comes to play: one row an algorithm.

The agent is what the algorithm's own `load_policy` makes of a checkpoint. Where there are only the weights that CleanRL
saves, a row says how to complete them to a checkpoint, or why that cannot be done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mosaic.arena import Policy, evaluate
from mosaic.contracts.errors import unknown
from mosaic.envs import make
from mosaic.run import Checkpoint

Json = dict[str, Any]
Adopted = tuple[Json, dict[str, Any]]
"""The facts and the arrays that a checkpoint of ours would have beside its weights."""


def _load_policy(algo: str, checkpoint: Checkpoint) -> Policy:
    from cleanrl_worker.registry import algorithm

    policy: Policy = algorithm(algo).load_policy(checkpoint)
    return policy


def choice_of_actions(algo: str, env: Any) -> Adopted:
    """For networks that see the observation as one vector and choose among numbered actions."""
    from cleanrl_worker.algorithms.base import Inputs

    inputs = Inputs.facts(env.observation_space)
    shape = {"observation_size": inputs["size"], "actions": int(env.action_space.n)}
    return {"algorithm": algo, "shape": shape, "inputs": inputs, "first_action": int(env.action_space.start)}, {}


@dataclass(frozen=True)
class Recipe:
    agent: Callable[[str, Checkpoint], Policy] = _load_policy
    """From the algorithm's name and a checkpoint to the policy."""
    environment: Callable[..., Any] = make
    """Makes what it is played in, from an environment id, with the wrappers that training had."""
    evaluator: Callable[..., Any] = evaluate
    """Plays; see `mosaic.arena.evaluate`."""
    adopt: Callable[[str, Any], Adopted] | None = None
    """What a checkpoint would say, from the algorithm's name and the environment; none: weights are not enough."""
    lacks: str = ""
    """What is missing then."""
    parts: tuple[str, ...] = ()
    """Where CleanRL saves a tuple of state dicts: what each is of."""


RECIPES: dict[str, Recipe] = {
    "ppo": Recipe(adopt=choice_of_actions),
    "ppo_continuous_action": Recipe(lacks="the mean and variance by which observations were normalised"),
}


def recipe(algo: str) -> Recipe:
    try:
        return RECIPES[algo]
    except KeyError:
        raise unknown("evaluation for the algorithm", algo, RECIPES, "worker 'cleanrl'") from None
