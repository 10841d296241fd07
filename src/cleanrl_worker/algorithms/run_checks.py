"""What is checked before a run starts: whether the environment fits an algorithm for vectors, and what to warn of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from cleanrl_worker.algorithms.base import (
    FlatAgent,
    ObservationEncoder,
    check_observations,
    env_name,
    image_facts,
    is_continuous,
    resolve_backend,
    suggest_algorithms,
    unsupported_actions_error,
)
from cleanrl_worker.algorithms.settings import AlgorithmConfig
from cleanrl_worker.learners.architecture import Architecture
from mosaic.worker.envs.factory import family_of
from mosaic.worker.envs.spaces import find_choices, unsupported_parts

MIN_LOST_SHARE = 0.02
"""The share of the requested steps that may be left out without a warning."""


def count_discrete_actions(algorithm: str, env: gymnasium.Env[Any, Any]) -> int:
    """Return the number of actions; raise if they are not discrete."""
    if not isinstance(env.action_space, gymnasium.spaces.Discrete):
        raise unsupported_actions_error(algorithm, "a discrete action space", env)
    return int(env.action_space.n)


def check_discrete(
    algorithm: str,
    config: AlgorithmConfig,
    env: gymnasium.Env[Any, Any],
    make_agent: Callable[[int, int, Architecture], FlatAgent],
) -> dict[str, Any]:
    """Raise unless the algorithm fits an environment with discrete actions; return the sizes and backend of the run."""
    count = count_discrete_actions(algorithm, env)
    return {**_check_vectors(algorithm, config, env, count, make_agent), "actions": count}


def check_choices(
    algorithm: str,
    config: AlgorithmConfig,
    env: gymnasium.Env[Any, Any],
    make_agent: Callable[[int, int, Architecture], FlatAgent],
) -> dict[str, Any]:
    """Do the same for discrete actions of which there may be several at once (MultiDiscrete, MultiBinary)."""
    choices = find_choices(env.action_space)
    if choices is None:
        return check_discrete(algorithm, config, env, make_agent)
    counts = choices.counts.ravel().tolist()
    return {**_check_vectors(algorithm, config, env, sum(counts), make_agent), "actions": counts}


def check_continuous(
    algorithm: str,
    config: AlgorithmConfig,
    env: gymnasium.Env[Any, Any],
    make_agent: Callable[[int, int, Architecture], FlatAgent],
    architecture: Architecture | None = None,
) -> dict[str, Any]:
    """Raise unless the algorithm fits an environment with continuous actions; return the same.

    `architecture` is that of the networks, where it is not that of the settings alone.
    """
    space: Any = env.action_space
    if not is_continuous(space):
        raise unsupported_actions_error(algorithm, "a continuous (Box) action space", env)
    sizes = _check_vectors(algorithm, config, env, math.prod(space.shape), make_agent, architecture)
    return {**sizes, "actions": list(space.shape)}


def check_any_actions(
    algorithm: str,
    config: AlgorithmConfig,
    env: gymnasium.Env[Any, Any],
    make_agent: Callable[[int, int, Architecture], FlatAgent],
    make_continuous_agent: Callable[[int, int, Architecture], FlatAgent],
) -> dict[str, Any]:
    """Do the same for an algorithm that fits discrete and continuous actions."""
    space = env.action_space
    if is_continuous(space):
        return check_continuous(algorithm, config, env, make_continuous_agent)
    if not isinstance(space, gymnasium.spaces.Discrete) and find_choices(space) is None:
        raise unsupported_actions_error(algorithm, "a discrete or continuous (Box) action space", env)
    return check_choices(algorithm, config, env, make_agent)


def _check_vectors(
    algorithm: str,
    config: AlgorithmConfig,
    env: gymnasium.Env[Any, Any],
    actions: int,
    make_agent: Callable[[int, int, Architecture], FlatAgent],
    architecture: Architecture | None = None,
) -> dict[str, Any]:
    check_observations(algorithm, env)
    size = ObservationEncoder.describe(env.observation_space)["size"]
    return {
        "observations": list(env.observation_space.shape or (size,)),
        "actions": actions,
        "parameters": make_agent(size, actions, architecture or config.architecture).network.size,
        "backend": resolve_backend(config, architecture),
        **image_facts(architecture or config.architecture),
    }


# --- warnings


def observation_warnings(env: gymnasium.Env[Any, Any], encodes_images: bool = False) -> list[str]:
    """Return warnings about observations that an algorithm for vectors, or also for images, cannot use well."""
    warnings = []
    parts = ", ".join(map(repr, unsupported_parts(env.observation_space)))
    if parts:
        warnings.append(
            f"The agent will not see {parts} of {env_name(env)}'s observations: only numbers are supported."
        )
    space = env.observation_space
    is_image = isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3
    is_atari = family_of(env) == "atari"
    if (is_image or is_atari) and not encodes_images:
        fitting = f" {suggest_algorithms(env)}" if is_atari else ""
        warnings.append(
            f"The images of {env_name(env)} are flattened to one long vector, which is hard to learn from.{fitting}"
        )
    return warnings


def step_warnings(config: Any) -> list[str]:
    """Return a warning where notably fewer steps than requested are trained: whole updates, or all environments.

    The defaults are CleanRL's, and not worth a warning; neither is a difference that no curve would show.
    """
    total, has_rollouts = config.total_timesteps, hasattr(config, "num_iterations")
    unit = config.cycle_steps if has_rollouts else getattr(config, "num_envs", 1)
    is_default = total == type(config).model_fields["total_timesteps"].default
    if is_default or total % unit < MIN_LOST_SHARE * total:
        return []
    what = f"{unit:,} steps of {config.cycle_name}" if has_rollouts else f"{unit:,} environments"
    trained = total - total % unit
    return [f"total_timesteps: {total:,} is not a multiple of the {what}, so {trained:,} steps are trained."]
