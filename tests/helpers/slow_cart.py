"""`slow_cart:SlowCart-v0`: CartPole for runs that last as long as a test and leave the processors to others."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class SlowCart(CartPoleEnv):
    def step(self, action: Any) -> Any:
        time.sleep(0.002)
        return super().step(action)  # type: ignore[no-untyped-call]


gymnasium.register("SlowCart-v0", entry_point=SlowCart, max_episode_steps=500)  # type: ignore[arg-type]
