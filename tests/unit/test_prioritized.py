from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.replay.prioritized import BRANCHING_FACTOR, PrioritizedReplay, SumTree

Array = np.ndarray[Any, Any]
GAMMA, STACK, SHAPE = 0.9, 4, (2, 2)


class FakeGames:
    """Games in which every frame has a unique number, and the true outcome of each step."""

    def __init__(self, envs: int) -> None:
        self.envs = envs
        self.rng = np.random.default_rng(3)
        self.frame = 0
        self.stacks = [[self._next()] * STACK for _ in range(envs)]
        self.steps: list[list[dict[str, Any]]] = [[] for _ in range(envs)]

    def _next(self) -> int:
        self.frame = self.frame % 250 + 1
        return self.frame

    @property
    def frames(self) -> Array:
        return np.array([np.full(SHAPE, stack[-1], np.uint8) for stack in self.stacks])

    def play(self, replay: PrioritizedReplay) -> None:
        actions = self.rng.integers(5, size=self.envs)
        rewards = self.rng.normal(size=self.envs).astype(np.float32)
        endings = []
        for env in range(self.envs):
            before, after = self.stacks[env], [*self.stacks[env][1:], self._next()]
            luck = self.rng.random()
            step = {"seen": before, "action": actions[env], "reward": float(rewards[env]), "next": after}
            step |= {"is_terminal": luck < 0.1, "is_cut": 0.1 <= luck < 0.25}
            if luck < 0.25:
                last = np.array([np.full(SHAPE, number, np.uint8) for number in after])
                endings.append(EpisodeEnd(env, last, luck < 0.1, 0.0, 1))
                after = [self._next()] * STACK
            self.stacks[env] = after
            self.steps[env].append(step)
        replay.add(actions, rewards, endings, self.frames)

    def truth(self, env: int, index: int, n_step: int) -> tuple[float, float, list[int]]:
        """Return the sum of rewards, the discount and the next stack of a step."""
        total, ahead = 0.0, self.steps[env][index : index + n_step]
        for count, step in enumerate(ahead, start=1):
            total += GAMMA ** (count - 1) * step["reward"]
            if step["is_terminal"]:
                return total, 0.0, step["next"]
            if step["is_cut"] or count == len(ahead):
                return total, GAMMA**count, step["next"]
        raise AssertionError


def make_replay(capacity: int, envs: int = 1, n_step: int = 3, alpha: float = 0.5) -> PrioritizedReplay:
    return PrioritizedReplay(
        capacity, envs, SHAPE, STACK, seed=1, n_step=n_step, gamma=GAMMA, alpha=alpha, beta=0.4, epsilon=1e-6
    )


@pytest.mark.parametrize("size", [1, 2, BRANCHING_FACTOR, BRANCHING_FACTOR + 1, 3 * BRANCHING_FACTOR**2])
def test_a_sum_tree_equals_a_cumulative_sum(size: int) -> None:
    rng = np.random.default_rng(size)
    tree, weights = SumTree(size), np.zeros(size)
    for _ in range(5):
        numbers = rng.integers(size, size=20)
        values = rng.integers(8, size=20).astype(float)
        tree.set_weights(numbers, values)
        weights[numbers] = values
        if not weights.any():
            continue
        assert tree.total == weights.sum()
        sums = rng.random(50) * weights.sum()
        expected = np.searchsorted(np.cumsum(weights), sums, side="right")
        np.testing.assert_array_equal(tree.find_indices(sums), expected)


def test_a_sum_tree_never_samples_zero_priorities() -> None:
    rng = np.random.default_rng(0)
    tree = SumTree(40_000)
    numbers = np.arange(0, 40_000, 7)
    tree.set_weights(numbers, rng.random(len(numbers)) ** 20)
    ends = tree.find_indices(np.array([0.0, tree.total, np.nextafter(tree.total, np.inf), tree.total / 3]))
    assert (tree.leaves[ends] > 0).all()


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("n_step", [1, 3, 5])
@pytest.mark.parametrize("steps", [1, 2, 6, 20, 47])
def test_n_step_returns_never_cross_the_end_of_an_episode(envs: int, n_step: int, steps: int) -> None:
    games, replay = FakeGames(envs), make_replay(12 * envs, envs, n_step)
    replay.start(games.frames)
    for _ in range(steps):
        games.play(replay)
    kept = min(steps, 12)
    truth = {
        tuple(games.steps[env][index]["seen"]): (env, index) for env in range(envs) for index in range(steps)[-kept:]
    }
    batch, drawn = replay.allocate_batch(16), set()
    for _ in range(30):
        replay.sample(batch)
        for row in range(16):
            env, index = truth[tuple(batch.observations[row, :, 0, 0].tolist())]
            drawn.add((env, index))
            reward, discount, next_values = games.truth(env, index, n_step)
            assert batch.actions[row] == games.steps[env][index]["action"]
            assert batch.rewards[row] == pytest.approx(reward, abs=1e-5)
            assert batch.discounts[row] == pytest.approx(discount)
            if discount:
                assert batch.next_observations[row, :, 0, 0].tolist() == next_values
    assert len(drawn) == len(truth)


def test_large_td_errors_are_sampled_more_often_with_smaller_weights() -> None:
    games, replay = FakeGames(1), make_replay(16, alpha=0.5)
    replay.start(games.frames)
    for _ in range(16):
        games.play(replay)
    batch = replay.allocate_batch(1000)
    replay.sample(batch)
    indices = np.unique(batch.indices)
    assert len(indices) == 16
    assert (batch.weights == 1).all()
    td_errors = np.where(indices == indices[5], 9.0, 1.0)
    replay.update_priorities(indices, td_errors)
    replay.sample(batch)
    assert (batch.indices == indices[5]).sum() == pytest.approx(1000 * 3 / 18, abs=2)
    expected = np.where(batch.indices == indices[5], 3.0**-0.4, 1.0)
    np.testing.assert_allclose(batch.weights, expected, rtol=1e-5)
    # A new row gets the maximum priority so far.
    games.play(replay)
    replay.sample(batch)
    assert (batch.indices == (indices[-1] + 1)).sum() == pytest.approx(1000 * 3 / 20, abs=2)


def test_a_td_error_of_an_overwritten_row_is_ignored() -> None:
    games, replay = FakeGames(1), make_replay(8)
    replay.start(games.frames)
    for _ in range(8):
        games.play(replay)
    batch = replay.allocate_batch(64)
    replay.sample(batch)
    for _ in range(3):
        games.play(replay)
    replay.update_priorities(batch.indices, np.full(64, 5.0))
    oldest = games.steps[0][-8]["seen"]
    replay.sample(batch)
    observations = {tuple(stack) for stack in batch.observations[:, :, 0, 0].tolist()}
    assert observations == {tuple(step["seen"]) for step in games.steps[0][-8:]}
    assert tuple(oldest) in observations


def test_a_restored_buffer_samples_the_same_transitions() -> None:
    games, replay = FakeGames(2), make_replay(20, 2)
    replay.start(games.frames)
    batch = replay.allocate_batch(8)
    for _ in range(25):
        games.play(replay)
        replay.sample(batch)
        replay.update_priorities(batch.indices, games.rng.random(8))
    arrays, facts = replay.checkpoint_state(1)
    arrays = {name: part.copy() for name, part in arrays.items()}
    second = make_replay(20, 2)
    assert second.restore(arrays, facts) is None
    restored = second.allocate_batch(8)
    for first in (replay, second):
        first.beta = 1.0
    for _ in range(5):
        replay.sample(batch)
        second.sample(restored)
        for name in ("indices", "frames", "rewards", "discounts", "weights"):
            np.testing.assert_array_equal(getattr(batch, name), getattr(restored, name))


def test_a_buffer_that_was_too_large_to_save_starts_empty() -> None:
    games, replay = FakeGames(1), make_replay(20)
    replay.start(games.frames)
    for _ in range(9):
        games.play(replay)
    arrays, facts = replay.checkpoint_state(0)
    assert arrays == {}
    second = make_replay(20)
    assert "filled again" in str(second.restore(arrays, facts))
    second.start(games.frames)
    games.play(second)
    batch = second.allocate_batch(4)
    second.sample(batch)
    assert set(batch.indices) == {0}
