from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.replay import buffers as replay
from cleanrl_worker.replay.buffers import FrameReplay, Replay
from mosaic.contracts.errors import BadInput

Array = np.ndarray[Any, Any]
FLOATS = (3, np.float32)


class FakeSteps:
    """Steps of several environments; each observation encodes its environment and its step."""

    def __init__(self, envs: int, seed: int = 0) -> None:
        self.envs = envs
        self.rng = np.random.default_rng(seed)
        self.moment = 0
        self.now = self._seen()
        self.truth: list[list[tuple[Array, int, float, bool, Array]]] = [[] for _ in range(envs)]

    def _seen(self) -> Array:
        self.moment += 1
        return np.array([[env, self.moment, self.moment] for env in range(self.envs)], np.float32)

    def step(self) -> tuple[Array, Array, list[EpisodeEnd], Array]:
        actions = self.rng.integers(5, size=(self.envs, 1))
        rewards = self.rng.normal(size=self.envs).astype(np.float32)
        after, endings = self._seen(), []
        true_after = after.copy()
        for env in range(self.envs):
            luck = self.rng.random()
            if luck < 0.3:
                endings.append(EpisodeEnd(env, after[env] + 0.5, luck < 0.1, 0.0, 1))
                true_after[env] += 0.5
            self.truth[env].append(
                (self.now[env], int(actions[env, 0]), float(rewards[env]), luck < 0.1, true_after[env])
            )
        self.now = after
        return actions, rewards, endings, after


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("steps", [4, 10, 11, 12, 57])
def test_every_stored_transition_is_sampled_unchanged(envs: int, steps: int) -> None:
    life = FakeSteps(envs)
    buffer = Replay(10 * envs, envs, FLOATS, (1, np.int64), seed=1)
    buffer.start(life.now)
    for _ in range(steps):
        buffer.add(*life.step())
    assert len(buffer) == min(10, steps) * envs
    batch, drawn = buffer.allocate_batch(64), set()
    truth = {(env, int(row[0][1])): row for env in range(envs) for row in life.truth[env][-10:]}
    for _ in range(40):
        buffer.sample(batch)
        for index in range(batch.rows):
            env, moment, _ = batch.observations[index].astype(int)
            previous, action, reward, is_terminal, after = truth[env, moment]
            drawn.add((env, moment))
            assert batch.observations[index].tolist() == previous.tolist()
            assert (batch.actions[index, 0], batch.rewards[index]) == (action, np.float32(reward))
            assert batch.terminals[index] == is_terminal
            if not is_terminal:
                assert batch.next_observations[index].tolist() == after.tolist()
    assert drawn == truth.keys()
    truncated = [row for row in truth.values() if row[4][1] % 1 and not row[3]]
    # The row of the latest observation may still hold an old transition.
    assert len(truncated) <= len(buffer.checkpoint_state(1)[0].get("replay.cut.spots", ())) <= len(truncated) + envs


@pytest.mark.parametrize("steps", [5, 10, 13, 14, 15, 31])
@pytest.mark.parametrize("envs", [1, 2])
def test_stacks_are_rebuilt_as_by_a_frame_stack_wrapper(envs: int, steps: int) -> None:
    rng, shape, stack = np.random.default_rng(2), (2, 3), 4
    frames = FrameReplay(10 * envs, envs, shape, stack, seed=1)

    def frame() -> Array:
        return rng.integers(256, size=(envs, *shape), dtype=np.uint8)

    latest = frame()
    frames.start(latest)
    stacks = np.repeat(latest[:, None], stack, 1)
    truth: dict[bytes, tuple[int, Array, bool]] = {}
    for step in range(steps):
        rolled = np.concatenate([stacks[:, 1:], frame()[:, None]], 1)
        after, episode_ends = rolled.copy(), []
        for env in range(envs):
            if (step + env) % 6 == 5:
                is_terminal = step > 8
                episode_ends.append(EpisodeEnd(env, rolled[env].reshape(-1).copy(), is_terminal, 0.0, 1))
                after[env] = np.repeat(frame()[env][None], stack, 0)
            else:
                is_terminal = False
            if step >= steps - 10:
                truth[stacks[env].tobytes()] = (step, rolled[env], is_terminal)
        frames.add(np.full(envs, step), np.full(envs, step, np.float32), episode_ends, after[:, -1])
        stacks = after
    batch, observations = frames.allocate_batch(64), set()
    for _ in range(30):
        frames.sample(batch)
        for index in range(batch.rows):
            key = batch.observations[index].tobytes()
            reward, next_values, is_terminal = truth[key]
            assert batch.rewards[index] == reward
            assert batch.actions[index] == reward
            assert batch.terminals[index] == is_terminal
            if not is_terminal:
                assert (batch.next_observations[index] == next_values).all()
            observations.add(key)
    assert observations == truth.keys()


@pytest.mark.parametrize("steps", [7, 23])
@pytest.mark.parametrize("kind", ["rows", "frames"])
def test_a_restored_buffer_samples_the_same_transitions(kind: str, steps: int) -> None:
    def make_replay() -> Any:
        return Replay(10, 2, FLOATS, (1, np.int64), 3) if kind == "rows" else FrameReplay(10, 2, (3,), 3, 3)

    def add_step(into: Any, actions: Array, rewards: Array, endings: list[EpisodeEnd], after: Array) -> None:
        into.add(actions if kind == "rows" else actions[:, 0], rewards, endings, after)

    life, one, other = FakeSteps(2), make_replay(), make_replay()
    one.start(life.now)
    for _ in range(steps):
        add_step(one, *life.step())
    one.sample(one.allocate_batch(8))
    assert other.restore(*one.checkpoint_state(limit_mb=1)) is None
    first, second = one.allocate_batch(8), other.allocate_batch(8)
    for _ in range(15):
        one.sample(first)
        other.sample(second)
        for name in ("observations", "actions", "rewards", "terminals", "next_observations"):
            assert (getattr(first, name) == getattr(second, name)).all()
        step = life.step()
        add_step(one, *step)
        add_step(other, *step)
    restored, facts = one.checkpoint_state(1)
    other_arrays, other_facts = other.checkpoint_state(1)
    assert facts == other_facts
    assert all(restored[key].tobytes() == other_arrays[key].tobytes() for key in restored)


def test_beyond_the_limit_only_counters_are_saved_and_restoring_reports_it() -> None:
    life, buffer = FakeSteps(1), Replay(50_000, 1, FLOATS, (1, np.int64), 1)
    buffer.start(life.now)
    for _ in range(30):
        buffer.add(*life.step())
    arrays, facts = buffer.checkpoint_state(limit_mb=0.0001)
    assert arrays == {}
    problem = Replay(50_000, 1, FLOATS, (1, np.int64), 1).restore(arrays, facts)
    assert problem is not None
    assert "checkpoint_replay_mb = 0.0001" in problem


def test_a_buffer_of_another_size_is_restored_where_it_was_not_yet_full() -> None:
    life, buffer = FakeSteps(2), Replay(40, 2, FLOATS, (1, np.int64), 1)
    buffer.start(life.now)
    for _ in range(20):
        buffer.add(*life.step())
    larger = Replay(60, 2, FLOATS, (1, np.int64), 1)
    assert larger.restore(*buffer.checkpoint_state(1)) is None
    first, second = buffer.allocate_batch(500), larger.allocate_batch(500)
    buffer.sample(first)
    larger.sample(second)
    assert (first.next_observations == second.next_observations).all()
    assert (first.observations == second.observations).all()
    smaller = Replay(30, 2, FLOATS, (1, np.int64), 1).restore(*buffer.checkpoint_state(1))
    buffer.add(*life.step())
    wrapped = Replay(60, 2, FLOATS, (1, np.int64), 1).restore(*buffer.checkpoint_state(1))
    assert "a different size" in str(smaller)
    assert "a different size" in str(wrapped)


@pytest.mark.parametrize("kind", ["rows", "frames"])
@pytest.mark.parametrize("steps", [0, 3, 5, 6])
def test_after_an_unseen_reset_the_newest_step_keeps_its_own_next_observation(kind: str, steps: int) -> None:
    buffer: Any = Replay(5, 1, (1, np.uint8), (1, np.int64), 1) if kind == "rows" else FrameReplay(5, 1, (1,), 2, 1)
    buffer.start(np.zeros((1, 1)))
    for moment in range(1, steps + 1):
        buffer.add(np.zeros((1, 1) if kind == "rows" else 1), np.zeros(1), [], np.full((1, 1), moment))
    buffer.mark_truncated(np.full((1, 1), 100))
    buffer.add(np.zeros((1, 1) if kind == "rows" else 1), np.zeros(1), [], np.full((1, 1), 101))
    batch = buffer.allocate_batch(200)
    buffer.sample(batch)
    now, next_values = (part.reshape(200, -1) for part in (batch.observations, batch.next_observations))
    moves = set(zip(now[:, -1].tolist(), next_values[:, -1].tolist(), strict=True))
    first = max(0, steps - 4)
    assert moves == {(moment, moment + 1) for moment in range(first, steps)} | {(100, 101)}
    if kind == "frames":
        assert (now[now[:, -1] == 100] == 100).all()


def test_pixels_stay_bytes_and_are_stored_once() -> None:
    assert Replay.size_bytes(1000, (147, np.uint8), (1, np.int64)) <= 1000 * 184
    assert FrameReplay.size_bytes(1_000_000, (84, 84)) < 7.1e9
    buffer = Replay(8, 1, (5, np.uint8), (1, np.int64), 1)
    buffer.start(np.full((1, 5), 200))
    buffer.add(np.zeros((1, 1), int), np.ones(1), [], np.full((1, 5), 201))
    batch = buffer.allocate_batch(2)
    buffer.sample(batch)
    assert batch.observations.dtype == np.uint8
    assert batch.next_observations.tolist() == [[201] * 5] * 2


def test_samples_are_uniform_over_all_that_is_kept() -> None:
    buffer = Replay(40, 1, (1, np.float32), (1, np.float32), 1)
    buffer.start(np.zeros((1, 1)))
    for index in range(1, 90):
        buffer.add(np.zeros((1, 1)), np.zeros(1), [], np.full((1, 1), index))
    batch = buffer.allocate_batch(40_000)
    buffer.sample(batch)
    counts = np.bincount(batch.observations[:, 0].astype(int), minlength=89)
    assert (counts[:49] == 0).all()
    assert counts[49:].min() > 850
    assert counts[49:].max() < 1150


def test_a_buffer_larger_than_the_free_memory_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "available_memory_bytes", lambda: 1_000_000_000)
    replay.check_memory("dqn_atari", 100_000, 706_000_000)
    with pytest.raises(
        BadInput, match=r"needs 7\.1 GB .* 1,000,000 transitions, but only 1\.0 GB .* buffer_size to 113,314"
    ):
        replay.check_memory("dqn_atari", 1_000_000, 7_060_000_000)
    monkeypatch.undo()
    assert replay.available_memory_bytes() > 1_000_000
