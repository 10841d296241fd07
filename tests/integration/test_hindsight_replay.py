"""Hindsight experience replay in a small goal environment: what samples contain, resuming, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from tests.helpers.algorithm_cases import (
    Killed,
    assert_same_checkpoint,
    events,
    latest_checkpoint,
    train_run,
)

from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.registry import load_algorithm
from cleanrl_worker.replay.hindsight import HindsightReplay, find_goals
from mosaic.contracts.errors import BadInput

ENV_ID = "GoalPoint-v0"
SMALL: dict[str, Any] = {
    "env_id": ENV_ID, "total_timesteps": 400, "checkpoint_every": 128, "buffer_size": 150, "batch_size": 16,
    "learning_starts": 100, "hidden_sizes": (16, 16), "her_goals": 4,
}  # fmt: skip


class GoalPoint(gymnasium.Env[Any, Any]):
    """A point in a square that has to reach a place; the reward is 0 there and -1 elsewhere."""

    def __init__(self, ends_at_goal: bool = False, batched: bool = True) -> None:
        place = Box(-1, 1, (2,), np.float32)
        parts: dict[str, gymnasium.Space[Any]] = {
            "achieved_goal": place,
            "desired_goal": place,
            "observation": Box(-1, 1, (1,), np.float32),
        }
        self.observation_space = Dict(parts)
        self.action_space = place
        self._ends_at_goal, self._batched = ends_at_goal, batched
        self._place = self._goal = np.zeros(2, np.float32)

    def _observe(self) -> dict[str, Any]:
        number = np.array([self._place.sum() / 2], np.float32)
        return {"achieved_goal": self._place.copy(), "desired_goal": self._goal.copy(), "observation": number}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        rewards = -(np.linalg.norm(achieved - desired, axis=-1) > 0.25).astype(np.float32)
        return rewards if self._batched else float(rewards.min())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place = np.clip(self._place + 0.2 * np.asarray(action, np.float32), -1, 1).astype(np.float32)
        reward = float(self.compute_reward(self._place, self._goal, {}))
        return self._observe(), reward, self._ends_at_goal and reward == 0, False, {}


@pytest.fixture(autouse=True)
def _goal_env() -> Iterator[None]:
    gymnasium.register(ENV_ID, entry_point=GoalPoint, max_episode_steps=20)  # type: ignore[arg-type]
    yield
    del gymnasium.registry[ENV_ID]


def observation(episode: int, step: int, goal: float) -> np.ndarray:
    """[achieved, achieved, desired, desired, number]: the achieved goal tells episode and step."""
    return np.array([episode, step, goal, goal, 0], np.float32)


def filled_replay(steps: int, is_terminal: bool, relabeled: float = 0.8) -> HindsightReplay:
    """Two environments with episodes of 5 and 7 steps, numbered from 0 and from 100; the buffer wraps around."""
    goals = find_goals("sac_continuous_action", gymnasium.make(ENV_ID).unwrapped)
    replay = HindsightReplay(60, 2, (5, np.float32), (2, np.float32), seed=1, goals=goals, relabeled=relabeled)
    episodes, counts, lengths = [0, 100], [0, 0], [5, 7]
    replay.start(np.stack([observation(episode, 0, -1) for episode in episodes]))
    for _ in range(steps):
        ends, following = [], []
        for env in range(2):
            counts[env] += 1
            now = observation(episodes[env], counts[env], -1)
            if counts[env] == lengths[env]:
                ends.append(EpisodeEnd(env, now, is_terminal, -5.0, lengths[env]))
                episodes[env], counts[env] = episodes[env] + 1, 0
                now = observation(episodes[env], 0, -1)
            following.append(now)
        replay.add(np.zeros((2, 2)), np.full(2, -7.0), ends, np.stack(following))
    return replay


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("steps", [1, 4, 23, 100])
def test_goals_are_ones_that_were_reached_later_in_the_same_episode(steps: int, is_terminal: bool) -> None:
    replay = filled_replay(steps, is_terminal)
    batch = replay.allocate_batch(20_000)
    replay.sample(batch)
    now, later = batch.observations, batch.next_observations
    assert (now[:, 2:4] == later[:, 2:4]).all()
    is_relabeled = now[:, 2] != -1
    assert is_relabeled.mean() == pytest.approx(0.8, abs=0.015)
    assert (batch.rewards[~is_relabeled] == -7).all()
    now, later, rewards = now[is_relabeled], later[is_relabeled], batch.rewards[is_relabeled]
    goal_episode, goal_step = now[:, 2], now[:, 3]
    # The next observation is that of the same episode, also where it ended.
    assert (later[:, 0] == now[:, 0]).all()
    assert (later[:, 1] == now[:, 1] + 1).all()
    assert (goal_episode == now[:, 0]).all()
    assert (goal_step > now[:, 1]).all()
    length = np.where(now[:, 0] < 100, 5, 7)
    assert (goal_step <= length).all()
    assert (rewards == np.where(goal_step == later[:, 1], 0, -1)).all()
    if steps == 100:
        # From the first step of an episode each later step is as likely as the others.
        counts = np.bincount(goal_step[(now[:, 1] == 0) & (now[:, 0] < 100)].astype(int), minlength=6)[1:]
        np.testing.assert_allclose(counts, counts.mean(), rtol=0.2)


@pytest.mark.parametrize("steps", [4, 23, 100])
def test_a_restored_buffer_draws_what_it_would_have_drawn(steps: int) -> None:
    replay, other = filled_replay(steps, is_terminal=True), filled_replay(0, is_terminal=True)
    arrays, facts = replay.checkpoint_state(100)
    assert other.restore({name: np.array(part) for name, part in arrays.items()}, facts) is None
    batch, second = replay.allocate_batch(64), other.allocate_batch(64)
    for _ in range(3):
        replay.sample(batch)
        other.sample(second)
        assert batch.packed.tobytes() == second.packed.tobytes()
        for buffer in (replay, other):
            end = EpisodeEnd(0, observation(50, 3, -1), True, 0.0, 3)
            following = np.stack([observation(51, 0, -1), observation(150, 2, -1)])
            buffer.add(np.zeros((2, 2)), np.zeros(2), [end], following)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sac_continuous_action", {"num_envs": 2, "env_kwargs": {"ends_at_goal": True}}),
        ("td3_continuous_action", {"backend": "torch", "cuda": False}),
    ],
)
def test_a_killed_run_with_hindsight_that_is_resumed_ends_as_if_it_had_not_been(
    name: str, settings: dict[str, Any], place: Path
) -> None:
    config = load_algorithm(name).Config(**SMALL, **settings)
    train_run(place / "straight", name, config)
    with pytest.raises(Killed):
        train_run(place / "killed", name, config, kill_at=300)
    train_run(place / "killed", name, config, latest_checkpoint(place / "killed"))
    assert_same_checkpoint(latest_checkpoint(place / "straight"), latest_checkpoint(place / "killed"))
    assert events(place / "killed", "warning") == []
    without = config.model_copy(update={"her_goals": 0})
    train_run(place / "without", name, without)
    one, other = latest_checkpoint(place / "straight"), latest_checkpoint(place / "without")
    assert any((one.weights[key] != other.weights[key]).any() for key in one.weights)
    with pytest.raises(BadInput, match="its her_goals is None, but the run's is 4"):
        train_run(place / "without", name, config, other)


def test_environments_without_goals_are_refused_with_a_reason() -> None:
    td3 = load_algorithm("td3_continuous_action")
    facts = td3.check(td3.Config(**SMALL), gymnasium.make(ENV_ID))
    assert facts["observations"] == [5]
    with pytest.raises(BadInput, match=r"and desired_goal .* Pendulum-v1 has Box\(3,\) float32. Set her_"):
        td3.check(td3.Config(**{**SMALL, "env_id": "Pendulum-v1"}), gymnasium.make("Pendulum-v1"))
    with pytest.raises(BadInput, match="takes several goals at once"):
        td3.check(td3.Config(**SMALL), gymnasium.make(ENV_ID, batched=False))
    with pytest.raises(
        ValueError, match=r"from the environment's own goals, which reward-scale\(scale=2\) would change"
    ):
        td3.Config(**SMALL, wrappers=("time-limit(max_episode_steps=9)", "reward-scale(scale=2)"))
    assert td3.Config(**SMALL, wrappers=("time-limit(max_episode_steps=9)",)).her_goals == 4
