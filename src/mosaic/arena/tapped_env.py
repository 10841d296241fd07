"""Environments whose frames are published."""

from __future__ import annotations

from typing import Any

import gymnasium

from mosaic.fastlane import FrameTap


class TappedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A single environment whose frames are published."""

    def __init__(self, env: gymnasium.Env[Any, Any], tap: FrameTap) -> None:
        super().__init__(env)
        self._tap = tap

    def step(self, action: Any) -> Any:
        observation, reward, is_terminal, is_truncated, info = self.env.step(action)
        self._tap.step(float(reward), is_terminal or is_truncated)
        return observation, reward, is_terminal, is_truncated, info

    def reset(self, **options: Any) -> Any:
        self._tap.reset()
        return self.env.reset(**options)

    def close(self) -> None:
        self._tap.close()
        super().close()
