"""The running statistics of random network distillation."""

from __future__ import annotations

import numpy as np

from cleanrl_worker.environments.normalization import FrameMoments, IntrinsicRewardScaler, RunningMoments


def test_moments_of_batches_are_those_of_all_rows_together() -> None:
    rows = np.random.default_rng(1).normal(3, 2, (600, 5))
    moments = RunningMoments(5)
    for part in np.split(rows, [10, 300]):
        moments.add(part.mean(0), part.var(0), len(part))
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-5)
    # The initial variance of 1 has almost no weight.
    np.testing.assert_allclose(moments.variance, rows.var(0), rtol=1e-4)


def test_every_pixel_has_its_own_moments_and_the_brightest_are_exact() -> None:
    images = np.random.default_rng(1).integers(0, 256, (700, 4, 3), np.uint8)
    images[:, 0, 0] = 255
    moments = FrameMoments(4, 3)
    moments.add_frames(images)
    np.testing.assert_allclose(moments.mean, images.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.variance, images.var(0), rtol=1e-4, atol=0.02)
    assert moments.variance[0, 0] > 0, "nothing may be divided by nothing"
    restored = FrameMoments(4, 3)
    restored.restore("looks", moments.arrays("looks"), moments.count)
    moments.add_frames(images[:5])
    restored.add_frames(images[:5])
    assert restored.variance.tobytes() == moments.variance.tobytes()


def test_intrinsic_rewards_are_divided_by_the_deviation_of_their_discounted_sum() -> None:
    rewards = np.random.default_rng(1).random((50, 3))
    scale = IntrinsicRewardScaler(3, 0.9)
    first, second = scale(rewards[:20]), scale(rewards[20:])
    sums, result = np.zeros(3), []
    for step in rewards:
        sums = 0.9 * sums + step
        result.append(sums)
    np.testing.assert_allclose(first, rewards[:20] / np.std(result[:20]), rtol=1e-3)
    # The sums continue from the last rollout, and all steps have equal weight.
    np.testing.assert_allclose(second, rewards[20:] / np.std(result), rtol=1e-3)


def test_the_scale_resumes_from_what_was_saved() -> None:
    rewards = np.random.default_rng(1).random((40, 3)).astype(np.float32)
    scale, restored = IntrinsicRewardScaler(3, 0.99), IntrinsicRewardScaler(3, 0.99)
    scale(rewards[:20])
    restored.restore(scale.arrays(), scale.moments.count)
    assert scale(rewards[20:]).tobytes() == restored(rewards[20:]).tobytes()
