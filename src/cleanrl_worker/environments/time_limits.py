"""Time limits without the wrappers that Gymnasium puts around every environment."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

_REMOVABLE_WRAPPERS = (OrderEnforcing, PassiveEnvChecker)


def strip_wrappers(env: gymnasium.Env[Any, Any]) -> tuple[gymnasium.Env[Any, Any], float]:
    """Remove the wrappers that Gymnasium puts around every environment; return it and its time limit in steps.

    Only wrappers outside of any other wrapper are removed: another wrapper may rely on those inside of it.
    """
    limit = float("inf")
    while isinstance(env, gymnasium.Wrapper):
        if type(env) is TimeLimit:
            limit = min(limit, env._max_episode_steps)
        elif type(env) not in _REMOVABLE_WRAPPERS:
            break
        env = env.env
    return env, limit
