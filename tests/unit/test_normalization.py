from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from cleanrl_worker.environments.normalization import ObservationNormalizer, RewardNormalizer


def test_with_one_environment_values_equal_gymnasiums_wrappers() -> None:
    theirs = NormalizeReward(NormalizeObservation(gymnasium.make("Pendulum-v1")), gamma=0.9)
    plain = gymnasium.make("Pendulum-v1")
    observations, rewards = ObservationNormalizer(3), RewardNormalizer(1, gamma=0.9)
    seen, _ = theirs.reset(seed=1)
    raw, _ = plain.reset(seed=1)
    row = np.zeros((1, 3), np.float32)
    observations(raw[None], row)
    np.testing.assert_allclose(row[0], seen, atol=1e-3)
    theirs.action_space.seed(1)
    result, raw_rewards = [], []
    for _ in range(150):
        action = theirs.action_space.sample()
        seen, reward, *_ = theirs.step(action)
        raw, raw_reward, *_ = plain.step(action)
        observations(raw[None], row)
        np.testing.assert_allclose(row[0], np.clip(seen, -10, 10), atol=2e-3)
        result.append(np.clip(float(reward), -10, 10))
        raw_rewards.append(raw_reward)
    ours = [
        rewards(np.array(part, float)[:, None], np.zeros((len(part), 1), bool))[:, 0]
        for part in (raw_rewards[:40], raw_rewards[40:])
    ]
    np.testing.assert_allclose(np.concatenate(ours), result, rtol=1e-5)
    np.testing.assert_allclose(observations.normalize_frozen(raw[None]), row, atol=1e-5)


def test_a_terminal_state_restarts_the_discounted_sum() -> None:
    rewards = RewardNormalizer(2, gamma=0.5)
    terminals = np.array([[False, False], [True, False]])
    rewards(np.ones((2, 2)), terminals)
    assert rewards.discounted_sums.tolist() == [1.0, 1.5]


def test_normalized_values_are_bounded() -> None:
    observations = ObservationNormalizer(1)
    row = np.zeros((1, 1), np.float32)
    for value in [0.0] * 500 + [1e9]:
        observations(np.array([[value]]), row)
    assert row[0, 0] == 10
    rewards = RewardNormalizer(1, gamma=0.0)
    scaled = rewards(np.array([[0.0]] * 500 + [[1e9]]), np.zeros((501, 1), bool))
    assert scaled[-1, 0] == 10


def test_statistics_are_restored_exactly() -> None:
    first, second = ObservationNormalizer(2), ObservationNormalizer(2)
    row = np.zeros((5, 2), np.float32)
    first(np.random.default_rng(0).standard_normal((5, 2)), row)
    second.restore(first.arrays(), first.count)
    restored = np.zeros_like(row)
    first(np.ones((5, 2)), row)
    second(np.ones((5, 2)), restored)
    assert (row == restored).all()
    rewards, restored_rewards = RewardNormalizer(1, 0.9), RewardNormalizer(1, 0.9)
    rewards(np.arange(5.0)[:, None], np.zeros((5, 1), bool))
    restored_rewards.restore(rewards.facts())
    assert restored_rewards.facts() == rewards.facts()
