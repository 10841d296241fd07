"""A replay buffer of frames that draws what surprised most, and looks several steps ahead.

A transition is drawn as often as its priority says. What follows it is summed over up to `n_step` steps, of which none
lies behind the end of its episode; from the observation behind the last of them the rest is to be estimated, discounted
by as many steps as there were, or by 0 behind a terminal one. The newest transitions see as far as there is anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.replay import FrameBatch, FrameReplay
from cleanrl_worker.replay_ring import Integers
from cleanrl_worker.vector_envs import EpisodeEnd
from mosaic.run.checkpoints import CheckpointPart

Array = npt.NDArray[Any]
BRANCHING_FACTOR = 128
"""Children of a node. Many, so that a million leaves are three levels: numpy's calls cost more than its sums."""


class SumTree:
    """Weights by number, from which one finds the number at a given share of their sum; both in a few steps."""

    def __init__(self, size: int) -> None:
        self._levels: list[npt.NDArray[np.float64]] = []
        """From the leaves up to the root's children. A row's sum stands in the row above, at the row's number."""
        while not self._levels or size > 1:
            size = -(-size // BRANCHING_FACTOR)
            self._levels.append(np.zeros((size, BRANCHING_FACTOR)))
        self.leaves: npt.NDArray[np.float64] = self._levels[0].reshape(-1)

    @property
    def total(self) -> float:
        return float(_row_sums(self._levels[-1])[0])

    def set_weights(self, indices: Integers, weights: Array) -> None:
        """Where a number comes twice, its last weight counts."""
        self.leaves[indices] = weights
        for below, above in pairwise(self._levels):
            indices = indices // BRANCHING_FACTOR
            above.reshape(-1)[indices] = _row_sums(below[indices])

    def rebuild_sums(self) -> None:
        """The leaves were written to directly."""
        for below, above in pairwise(self._levels):
            above.reshape(-1)[: len(below)] = _row_sums(below)

    def find_indices(self, sums: Array) -> Integers:
        """For each sum below the total, the number at which the weights so far exceed it; never one without weight."""
        found = np.zeros(len(sums), np.intp)
        for level in reversed(self._levels):
            reached = level[found].cumsum(1)
            # Sums of sums are rounded: what is left may seem to lie behind the last child.
            sums = np.minimum(sums, np.nextafter(reached[:, -1], 0))
            child = np.minimum((reached <= sums[:, None]).sum(1), BRANCHING_FACTOR - 1)
            before = np.take_along_axis(reached, np.maximum(child - 1, 0)[:, None], 1)[:, 0]
            sums = sums - np.where(child > 0, before, 0.0)
            found = found * BRANCHING_FACTOR + child
        return found


def _row_sums(rows: Array) -> Array:
    """In the order in which `find` sums."""
    return np.asarray(rows.cumsum(1)[:, -1])


class PrioritisedBatch(FrameBatch):
    def __init__(self, rows: int, stack: int, shape: tuple[int, ...], buffer: Array | None = None) -> None:
        super().__init__(rows, 2 * stack - 1, shape, buffer)
        self.observations = self.frames[:, :stack]
        self.next_observations = self.frames[:, stack:]
        """Behind the last of the steps that `rewards` are summed over."""
        self.discounts = np.zeros(rows, np.float32)
        """What counts of their value: 0 where nothing followed."""
        self.weights = np.zeros(rows, np.float32)
        """By how much to learn from each, so that what is drawn often does not count more in the end; at most 1."""


class PrioritisedReplay(FrameReplay):
    """`sample` draws, `settle` tells how surprising it was."""

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        shape: tuple[int, ...],
        stack: int,
        seed: int,
        *,
        n_step: int,
        gamma: float,
        alpha: float,
        beta: float,
        epsilon: float,
    ) -> None:
        super().__init__(capacity, num_envs, shape, stack, seed)
        self.beta = beta
        """How fully the weights make up for the drawing: 0 not at all, 1 wholly."""
        self._alpha, self._epsilon = alpha, epsilon
        self._tree = SumTree(num_envs * self._allocated_rows)
        self._max_td_error = 1.0
        """The greatest surprise so far, which what is new is taken for."""
        self._pending_changes: dict[int, bool] = {}
        """Spots that came (true) or left since the tree was told."""
        self._step_offsets = np.arange(n_step)
        self._discount_powers = gamma ** np.arange(n_step + 1)

    @staticmethod
    def size_bytes(capacity: int, shape: tuple[int, ...]) -> int:
        return FrameReplay.size_bytes(capacity, shape) + 8 * capacity

    def start(self, frames: Array) -> None:
        super().start(frames)
        self._tree.leaves[:] = 0
        self._tree.rebuild_sums()
        self._pending_changes.clear()

    def add(self, actions: Array, rewards: Array, episode_ends: Sequence[EpisodeEnd], frames: Array) -> None:
        super().add(actions, rewards, episode_ends, frames)
        came, left = (self._head - 1) % self._ring_rows, (self._head - 1 - self.steps_per_env) % self._ring_rows
        for env in range(self.num_envs):
            self._pending_changes[env * self._allocated_rows + left] = False
            self._pending_changes[env * self._allocated_rows + came] = True

    def _apply_pending_changes(self) -> None:
        if self._pending_changes:
            spots = np.fromiter(self._pending_changes, np.intp, len(self._pending_changes))
            is_new = np.fromiter(self._pending_changes.values(), np.bool_, len(self._pending_changes))
            self._tree.set_weights(spots, is_new * self._max_td_error**self._alpha)
            self._pending_changes.clear()

    def allocate_batch(self, rows: int, buffer: Array | None = None) -> PrioritisedBatch:
        """What `sample` fills. A `buffer` [rows, 2 × stack, …] serves where it has to be special memory."""
        return PrioritisedBatch(rows, self.stack, self.shape, buffer)

    def sample(self, batch: PrioritisedBatch) -> None:  # type: ignore[override]  # what `batch` made
        """By priority, one from each of as many equal parts of their sum as there are rows."""
        self._apply_pending_changes()
        total, rows = self._tree.total, batch.rows
        self._rng.random(out=batch._uniform)
        batch.indices[...] = self._tree.find_indices((np.arange(rows) + batch._uniform) * (total / rows))
        shares = self._tree.leaves[batch.indices] / total
        weights = (len(self) * shares) ** -self.beta
        batch.weights[...] = weights / weights.max()
        self.fill(batch)

    def update_priorities(self, indices: Integers, td_errors: Array) -> None:
        """How large the errors at drawn spots were. Before the next sample, and before a record."""
        td_errors = np.abs(td_errors.astype(np.float64)) + self._epsilon
        self._max_td_error = max(self._max_td_error, float(td_errors.max()))
        self._tree.set_weights(indices, td_errors**self._alpha)

    def fill(self, batch: PrioritisedBatch) -> None:  # type: ignore[override]
        spots, length, stride = batch.indices, self._ring_rows, self._allocated_rows
        lanes, rows = spots // stride * stride, spots % stride
        # How far ahead: up to an end, or to the newest observation.
        ahead = lanes[:, None] + (rows[:, None] + self._step_offsets) % length
        ends = (self._terminals.reshape(-1)[ahead] > 0) | self._truncations.reshape(-1)[ahead]
        is_there = (self._step_offsets < ((self._head - rows) % length)[:, None]) & (ends.cumsum(1) - ends == 0)
        steps = is_there.sum(1)
        last_rows = (rows + steps - 1) % length
        last = lanes + last_rows

        places = np.empty((len(spots), 2, self.stack), np.intp)
        ages = self._frames_since_start.reshape(-1)
        places[:, 0] = lanes[:, None] + (rows[:, None] - np.minimum(self._stack_offsets, ages[spots][:, None])) % length
        back = np.minimum(self._stack_offsets[1:], ages[last][:, None])
        places[:, 1, :-1] = lanes[:, None] + (last_rows[:, None] - back) % length
        places[:, 1, -1] = last + 1
        self._flat.take(places.reshape(-1), 0, out=batch._flat, mode="clip")
        self._actions.take(spots, out=batch.actions)
        batch.rewards[...] = (self._rewards.reshape(-1)[ahead] * is_there * self._discount_powers[:-1]).sum(1)
        self._terminals.take(last, out=batch.terminals)
        batch.discounts[...] = self._discount_powers[steps] * (1 - batch.terminals)
        if self._truncated_observations:
            for row in np.flatnonzero(self._truncations.take(last)):
                batch.frames[row, -1] = self._truncated_observations[int(last[row])]

    def _volatile_arrays(self) -> dict[str, Array]:
        count = self.num_envs * self._allocated_rows
        return {"priorities": self._tree.leaves[:count].reshape(self.num_envs, self._allocated_rows)}

    def checkpoint_state(self, limit_mb: float) -> tuple[dict[str, Any], dict[str, Any]]:
        self._apply_pending_changes()
        arrays, facts = super().checkpoint_state(limit_mb)
        return arrays, {**facts, "largest": self._max_td_error}

    def restore(
        self, arrays: Mapping[str, Array], facts: Mapping[str, Any], parts: Mapping[str, CheckpointPart] | None = None
    ) -> str | None:
        problem = super().restore(arrays, facts, parts)
        self._max_td_error = facts["largest"]
        self._tree.rebuild_sums()
        return problem
