"""A small environment whose observations are images, and a small network for them: `image_env:Spot-v0` and `Tiny`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box

LENGTH = 10


class Spot(gymnasium.Env[Any, Any]):
    """A red bar on a noisy image: the action that is closest to its position, from -1 to 1, gives the best reward."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, side: int = 40, render_mode: str | None = None) -> None:
        self.observation_space = Box(0, 255, (side, side, 3), np.uint8)
        self.action_space = Box(-1, 1, (1,), np.float32)
        self.render_mode = render_mode
        self._side = side

    def _draw(self) -> Any:
        self._position = float(self.np_random.uniform(-1, 1))
        self._image = self.np_random.integers(0, 50, (self._side, self._side, 3)).astype(np.uint8)
        column = round((self._position + 1) / 2 * (self._side - 4))
        self._image[:, column : column + 4, 0] = 255
        return self._image

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step_count = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = -abs(float(action[0]) - self._position)
        self._step_count += 1
        return self._draw(), reward, False, self._step_count == LENGTH, {}

    def render(self) -> Any:
        return self._image


class Tiny(torch.nn.Module):
    """One convolution and the mean of what it finds in each column."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(shape[0], 2, 4, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(images)).mean(2).flatten(1)


gymnasium.register("Spot-v0", entry_point=Spot)  # type: ignore[arg-type]
