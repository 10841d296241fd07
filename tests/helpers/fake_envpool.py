"""A fake envpool module whose games end, reset and count like those of envpool 1.2.

The end of an episode is followed by a reset in the next step, whose action is ignored; a lost life is followed by idle
frames of the same game; `reset` always starts a new game; `terminated` refers to the game, `trunc` to its time limit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np

LIVES, POINTS, MIN_LIFE_STEPS = 2, 7.0, 3
"""Lives of a game; the reward of action 1; the minimum number of steps of a life."""
MAX_STEPS = 30


class FakeGame:
    def __init__(self, seed: int, max_steps: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._max_steps = max_steps
        self.is_done = True
        self.lives, self.lives_at_start = 0, LIVES
        self.steps = 0
        self.frames = np.zeros((4, 84, 84), np.uint8)
        self.actions: list[int] = []

    @property
    def is_over(self) -> bool:
        return self.lives == 0

    def begin(self, is_forced: bool) -> None:
        idle = int(self._rng.integers(30))
        if is_forced or self.is_over or self.steps >= self._max_steps:
            self.lives, self.steps = self.lives_at_start, 0
            self.frames[...] = self._random_frame()
        else:
            self._add_frame()
        self._life = MIN_LIFE_STEPS + idle % 5
        self.is_done = False

    def _random_frame(self) -> Any:
        return self._rng.integers(0, 256, (84, 84), np.uint8)

    def _add_frame(self) -> None:
        self.frames = np.concatenate([self.frames[1:], self._random_frame()[None]])

    def step(self, action: int) -> float:
        self.actions.append(action)
        self.steps += 1
        self._add_frame()
        self._life -= 1
        if self._life <= 0:
            self.lives -= 1
        self.is_done = self._life <= 0 or self.steps >= self._max_steps
        return POINTS if action == 1 else 0.0


class FakePool:
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(
        self, num_envs: int, env_seed: Sequence[int], max_episode_steps: int, episodic_life: bool, reward_clip: bool
    ) -> None:
        assert len(env_seed) == num_envs
        assert episodic_life
        assert reward_clip
        self.games = [FakeGame(seed, min(max_episode_steps, MAX_STEPS)) for seed in env_seed]

    def reset(self, env_id: Any = None) -> tuple[Any, dict[str, Any]]:
        chosen = [self.games[index] for index in (range(len(self.games)) if env_id is None else env_id)]
        for game in chosen:
            game.begin(is_forced=True)
        observations, _, _, _, info = self._results(chosen, [0.0] * len(chosen))
        return observations, info

    def step(self, actions: Any, env_id: Any = None) -> Any:
        chosen = [self.games[index] for index in (range(len(self.games)) if env_id is None else env_id)]
        rewards = []
        for game, action in zip(chosen, actions, strict=True):
            if game.is_done:
                game.begin(is_forced=False)
                rewards.append(0.0)
            else:
                rewards.append(game.step(int(action)))
        return self._results(chosen, rewards)

    def _results(self, games: Sequence[FakeGame], rewards: Sequence[float]) -> Any:
        is_truncated = np.array([game.is_done and game.steps >= game._max_steps for game in games])
        info = {
            "lives": np.array([game.lives for game in games], np.int32),
            "terminated": np.array([game.is_over for game in games], np.int32),
            "reward": np.array(rewards, np.float32),
        }
        observations = np.stack([game.frames for game in games])
        is_done = np.array([game.is_done for game in games])
        return observations, np.sign(info["reward"]), is_done & ~is_truncated, is_truncated, info

    def render(self, env_ids: Sequence[int] = (0,)) -> Any:
        return np.stack([np.repeat(self.games[index].frames[-1][:, :, None], 3, 2) for index in env_ids])


class FakeProcgenPool(FakePool):
    """Games of one life, whose observation is one color frame, and whose rewards are not clipped."""

    action_space = gymnasium.spaces.Discrete(15)

    def __init__(self, num_envs: int, env_seed: Sequence[int], num_levels: int, start_level: int) -> None:
        assert (num_levels, start_level) == (0, 0)
        super().__init__(num_envs, env_seed, MAX_STEPS, True, True)
        for game in self.games:
            game.lives_at_start = 1

    def _results(self, games: Sequence[FakeGame], rewards: Sequence[float]) -> Any:
        observations, _, is_terminal, is_truncated, _ = super()._results(games, rewards)
        return observations[:, :3, :64, :64], np.array(rewards, np.float32), is_terminal, is_truncated, {}

    def render(self, env_ids: Sequence[int] = (0,)) -> Any:
        return super().render(env_ids)[:, :64, :64]


@contextmanager
def fake_envpool() -> Iterator[list[FakePool]]:
    """Replace `envpool` by the fake inside the block; yield the list of created pools."""
    pools: list[FakePool] = []

    def pool_kind(name: str) -> Any:
        return FakeProcgenPool if name.startswith("Starpilot") else FakePool

    def make(name: str, *, env_type: str, num_threads: int, **settings: Any) -> Any:
        assert env_type == "gymnasium"
        assert settings.pop("render_mode") == "rgb_array"
        assert num_threads >= 1
        settings.pop("repeat_action_probability", None)
        pools.append(pool_kind(name)(**settings))
        return pools[-1]

    module: Any = ModuleType("envpool")
    module.make, module.make_spec = make, pool_kind
    module.list_all_envs = lambda: ["Breakout-v5", "Pong-v5", "Ant-v5", "StarpilotEasy-v0", "StarpilotHard-v0"]
    previous = sys.modules.get("envpool")
    sys.modules["envpool"] = module
    try:
        yield pools
    finally:
        del sys.modules["envpool"]
        if previous is not None:
            sys.modules["envpool"] = previous
