"""A prioritized replay buffer of frames (arXiv:1511.05952) with n-step returns.

Transition i is sampled with probability P(i) = p_i / Σ_k p_k, p_i = (|δ_i| + epsilon)^α, for its last TD error δ_i.
Its return is summed over k = min(n, steps to the end of the episode, steps to the newest transition) steps:

    R_t = Σ_{j<k} γ^j r_{t+j},   target = R_t + γ^k (1 - d) Q(s_{t+k}, ·),   d = 1 if step t+k-1 was terminal
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.replay.buffers import FrameBatch, FrameReplay
from cleanrl_worker.replay.ring import Integers
from mosaic.worker.checkpoints import CheckpointPart

Array = npt.NDArray[Any]
BRANCHING_FACTOR = 128
"""Children per node. Many, so that a million leaves need three levels: a numpy call costs more than a longer sum."""


class SumTree:
    """Weights by index; finds the index at which the cumulative sum exceeds a value in O(log n) steps."""

    def __init__(self, size: int) -> None:
        self._levels: list[npt.NDArray[np.float64]] = []
        """From the leaves to the root's children. The sum of row i of a level is element i of the level above."""
        while not self._levels or size > 1:
            size = -(-size // BRANCHING_FACTOR)
            self._levels.append(np.zeros((size, BRANCHING_FACTOR)))
        self.leaves: npt.NDArray[np.float64] = self._levels[0].reshape(-1)

    @property
    def total(self) -> float:
        return float(_row_sums(self._levels[-1])[0])

    def set_weights(self, indices: Integers, weights: Array) -> None:
        """Set weights and update the sums above them; of a repeated index the last weight counts."""
        self.leaves[indices] = weights
        for below, above in pairwise(self._levels):
            indices = indices // BRANCHING_FACTOR
            above.reshape(-1)[indices] = _row_sums(below[indices])

    def rebuild_sums(self) -> None:
        """Recompute all sums, after the leaves were written to directly."""
        for below, above in pairwise(self._levels):
            above.reshape(-1)[: len(below)] = _row_sums(below)

    def find_indices(self, sums: Array) -> Integers:
        """For each s below the total, return the smallest i with w_0 + … + w_i > s; w_i is never 0."""
        # From the root down: choose the child c with C_{c-1} ≤ s < C_c, where C are the cumulative sums of the node's
        # children, and continue in it with s - C_{c-1}.
        indices = np.zeros(len(sums), np.intp)
        for level in reversed(self._levels):
            cumulative = level[indices].cumsum(1)
            # Sums of sums are rounded: the remainder may exceed the last child's cumulative sum.
            sums = np.minimum(sums, np.nextafter(cumulative[:, -1], 0))
            child = np.minimum((cumulative <= sums[:, None]).sum(1), BRANCHING_FACTOR - 1)
            before = np.take_along_axis(cumulative, np.maximum(child - 1, 0)[:, None], 1)[:, 0]
            sums = sums - np.where(child > 0, before, 0.0)
            indices = indices * BRANCHING_FACTOR + child
        return indices


def _row_sums(rows: Array) -> Array:
    """Sum each row in the same order as `find_indices`, so that the rounding is the same."""
    return np.asarray(rows.cumsum(1)[:, -1])


class PrioritizedBatch(FrameBatch):
    def __init__(self, rows: int, stack: int, shape: tuple[int, ...], buffer: Array | None = None) -> None:
        super().__init__(rows, 2 * stack - 1, shape, buffer)
        self.observations = self.frames[:, :stack]
        self.next_observations = self.frames[:, stack:]
        """s_{t+k}: the observations after the last step that `rewards` are summed over."""
        self.discounts = np.zeros(rows, np.float32)
        """γ^k (1 - d): the factor of their value in the target."""
        self.weights = np.zeros(rows, np.float32)
        """Importance weights that correct for the non-uniform sampling; at most 1."""


class PrioritizedReplay(FrameReplay):
    """`sample` fills a batch by priority, `update_priorities` records its TD errors."""

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
        """Exponent of the importance weights: 0 is no correction, 1 a full one."""
        self._alpha, self._epsilon = alpha, epsilon
        self._tree = SumTree(num_envs * self._allocated_rows)
        self._max_td_error = 1.0
        """The largest |δ| + epsilon so far; new transitions get its priority."""
        self._pending_changes: dict[int, bool] = {}
        """Indices that were added (true) or overwritten since the tree was last updated."""
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
        newest, dropped = (self._head - 1) % self._ring_rows, (self._head - 1 - self.steps_per_env) % self._ring_rows
        for env in range(self.num_envs):
            self._pending_changes[env * self._allocated_rows + dropped] = False
            self._pending_changes[env * self._allocated_rows + newest] = True

    def _apply_pending_changes(self) -> None:
        if self._pending_changes:
            indices = np.fromiter(self._pending_changes, np.intp, len(self._pending_changes))
            is_new = np.fromiter(self._pending_changes.values(), np.bool_, len(self._pending_changes))
            self._tree.set_weights(indices, is_new * self._max_td_error**self._alpha)
            self._pending_changes.clear()

    def allocate_batch(self, rows: int, buffer: Array | None = None) -> PrioritizedBatch:
        """Return a batch for `sample` to fill, in `buffer` [rows, 2 × stack, …] if given (such as pinned memory)."""
        return PrioritizedBatch(rows, self.stack, self.shape, buffer)

    def sample(self, batch: PrioritizedBatch) -> None:
        """Sample by priority, stratified: one row from each of `rows` equal segments of the sum."""
        self._apply_pending_changes()
        total, rows = self._tree.total, batch.rows
        # s_i = (i + u_i) Σp / rows,  u_i ~ U[0, 1)
        self._rng.random(out=batch._uniform)
        batch.indices[...] = self._tree.find_indices((np.arange(rows) + batch._uniform) * (total / rows))
        # w_i = (N P(i))^-β / max_k w_k,  P(i) = p_i / Σp
        probabilities = self._tree.leaves[batch.indices] / total
        weights = (len(self) * probabilities) ** -self.beta
        batch.weights[...] = weights / weights.max()
        self.fill(batch)

    def update_priorities(self, indices: Integers, td_errors: Array) -> None:
        """Set p_i = (|δ_i| + epsilon)^α for the sampled indices; call it before the next sample or checkpoint."""
        td_errors = np.abs(td_errors.astype(np.float64)) + self._epsilon
        self._max_td_error = max(self._max_td_error, float(td_errors.max()))
        self._tree.set_weights(indices, td_errors**self._alpha)

    def fill(self, batch: PrioritizedBatch) -> None:  # type: ignore[override]
        indices, length, stride = batch.indices, self._ring_rows, self._allocated_rows
        starts, rows = indices // stride * stride, indices % stride  # where the environment's ring starts, row in it
        # k, the number of steps summed: up to n, the end of the episode, or the newest transition.
        ahead = starts[:, None] + (rows[:, None] + self._step_offsets) % length
        ends = (self._terminals.reshape(-1)[ahead] > 0) | self._truncations.reshape(-1)[ahead]
        is_summed = (self._step_offsets < ((self._head - rows) % length)[:, None]) & (ends.cumsum(1) - ends == 0)
        steps = is_summed.sum(1)
        last_rows = (rows + steps - 1) % length
        last = starts + last_rows

        # Frame indices of s_t and s_{t+k}; a stack repeats its first frame at the start of an episode.
        frame_indices = np.empty((len(indices), 2, self.stack), np.intp)
        ages = self._frames_since_start.reshape(-1)
        back = np.minimum(self._stack_offsets, ages[indices][:, None])
        frame_indices[:, 0] = starts[:, None] + (rows[:, None] - back) % length
        back = np.minimum(self._stack_offsets[1:], ages[last][:, None])
        frame_indices[:, 1, :-1] = starts[:, None] + (last_rows[:, None] - back) % length
        frame_indices[:, 1, -1] = last + 1
        self._flat.take(frame_indices.reshape(-1), 0, out=batch._flat, mode="clip")
        self._actions.take(indices, out=batch.actions)
        # R_t = Σ_{j<k} γ^j r_{t+j},  discount = γ^k (1 - d)
        batch.rewards[...] = (self._rewards.reshape(-1)[ahead] * is_summed * self._discount_powers[:-1]).sum(1)
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
