"""A ring buffer of rows per environment: how rows are written, counted, sampled, saved and restored.

buffers.py defines the content of a row. All rings advance together. Sampling has its own random generator, so that
equal seeds draw equal rows, and counts from the oldest row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.replay.blocks import ReplayBlocks, read_blocks
from mosaic.contracts.folder import REPLAY_PREFIX
from mosaic.worker.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import CheckpointPart
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.intp]
MEGABYTE = 1 << 20
MIN_BLOCKED_SIZE_MB = 32
"""A larger buffer is saved in block files; a smaller one is written with the rest of each checkpoint."""
_SEED_STREAM = 0x5EED
"""Separates the sampling generator from others with the same seed."""


class TransitionBatch:
    """Sampled transitions: views of one packed buffer, which the next sample overwrites."""

    observations: Array
    actions: Array
    rewards: Array
    terminals: Array
    """1 where the episode terminated; 0 otherwise, also where it was truncated."""
    next_observations: Array

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.indices: Integers = np.zeros(rows, np.intp)
        """Their indices in the buffer."""
        self._uniform = np.empty(rows)


class ReplayRing:
    """Call `start`, then `add` after each step; `checkpoint_state` and `restore` for a checkpoint."""

    _observations: Array
    """[environments, rows, …], like the others."""
    _actions: Array
    _rewards: Array
    _terminals: Array
    _truncations: Array
    """True where an episode was truncated."""

    def __init__(self, capacity: int, num_envs: int, seed: int, history_rows: int = 0) -> None:
        self.num_envs = num_envs
        self.steps_per_env = max(1, capacity // num_envs)
        """Transitions stored per environment."""
        # One more row for the latest observation, which has no transition yet.
        self._ring_rows = self.steps_per_env + 1 + history_rows
        # And one that repeats the first row, so that the last row is followed by its next observation.
        self._allocated_rows = self._ring_rows + 1
        self._env_offsets = np.arange(num_envs) * self._allocated_rows
        self._step_count = 0
        self.added_steps = 0
        """Calls of `add` since `start` or `restore`."""
        self._head = 0
        """The row of the latest observation."""
        self._used_rows = 1
        """Rows that have been written, counted from the first."""
        self._rng = np.random.default_rng([seed, _SEED_STREAM])
        self._truncated_observations: dict[int, Array] = {}
        """The final observations of truncated episodes, by index."""
        self._blocks: ReplayBlocks | None = None
        self._limit_mb = 0.0

    def __len__(self) -> int:
        return self._step_count * self.num_envs

    @property
    def action_shape(self) -> tuple[int, ...]:
        """The shape of one action."""
        return self._actions.shape[2:]

    @property
    def index_count(self) -> int:
        """The indices of transitions are below this number."""
        return self.num_envs * self._allocated_rows

    def stored_indices(self) -> Integers:
        """Return the indices of all transitions."""
        rows = np.arange(self._head - self._step_count, self._head) % self._ring_rows
        return (self._env_offsets[:, None] + rows).ravel()

    def newest_indices(self, into: Integers) -> None:
        """Write the index of the newest transition of each environment."""
        into[...] = self._env_offsets
        into += (self._head - 1) % self._ring_rows

    def draw(self, batch: TransitionBatch) -> None:
        """Draw the indices of transitions uniformly; a draw of 0 is the oldest transition."""
        uniform, count = batch._uniform, self._step_count
        self._rng.random(out=uniform)
        np.multiply(uniform, count * self.num_envs, out=uniform)
        indices = batch.indices
        indices[...] = uniform
        oldest = self._head - count
        if self.num_envs > 1:
            envs, ages = np.divmod(indices, count)
            indices[...] = (ages + oldest) % self._ring_rows + envs * self._allocated_rows
        else:
            indices += oldest
            if oldest < 0:
                indices %= self._ring_rows

    def sample(self, batch: Any) -> None:
        """Sample uniformly with replacement into a batch of `allocate_batch`."""
        self.draw(batch)
        self.fill(batch)

    def fill(self, batch: Any) -> None:
        """Read the transitions at the batch's indices."""
        raise NotImplementedError

    def start(self, observations: Array) -> None:
        """Clear the buffer and store the first observation of each environment."""
        # The latest row has no transition yet: what it held before must not differ between equal runs.
        for part in (self._actions, self._rewards, self._terminals, self._truncations):
            part[:, : self._used_rows] = 0
        self._step_count, self._head, self._used_rows, self.added_steps = 0, 0, 1, 0
        self._truncated_observations.clear()
        if self._blocks is not None:
            self._blocks.invalidate_all()
        self._write_newest(observations)

    def _write_newest(self, observations: Array) -> None:
        """Write the latest observations, which have no transition yet."""
        self._observations[:, self._head] = observations
        if self._head == 0:
            self._observations[:, self._ring_rows] = observations
        if self._blocks is not None:
            self._blocks.invalidate(self._head)
            if self._head == 0:
                self._blocks.invalidate(self._ring_rows)

    def mark_truncated(self, observations: Array) -> None:
        """Mark the current episodes as truncated, because the environments were reset outside of `add`."""
        head, previous = self._head, (self._head - 1) % self._ring_rows
        for env in range(self.num_envs) if self._step_count else ():
            if not self._terminals[env, previous] and not self._truncations[env, previous]:
                self._truncations[env, previous] = True
                self._truncated_observations[env * self._allocated_rows + previous] = self._observations[
                    env, head
                ].copy()
                if self._blocks is not None:
                    self._blocks.invalidate(previous)
        self._write_newest(observations)

    def add(self, actions: Array, rewards: Array, episode_ends: Sequence[EpisodeEnd], observations: Array) -> None:
        """Add one step of each environment; `observations` are those after it, of the reset if an episode ended."""
        head = self._head
        self._actions[:, head] = actions
        self._rewards[:, head] = rewards
        self._terminals[:, head] = 0
        self._truncations[:, head] = False
        if self._truncated_observations:
            for env in range(self.num_envs):
                self._truncated_observations.pop(env * self._allocated_rows + head, None)
        for episode_end in episode_ends:
            if episode_end.is_terminal:
                self._terminals[episode_end.env, head] = 1
            else:
                self._truncations[episode_end.env, head] = True
                self._truncated_observations[episode_end.env * self._allocated_rows + head] = self._final_observation(
                    episode_end
                )
        self._head = (head + 1) % self._ring_rows
        self._used_rows = max(self._used_rows, self._head + 1) if self._head else self._allocated_rows
        self._step_count = min(self._step_count + 1, self.steps_per_env)
        self.added_steps += 1
        self._write_newest(observations)
        if self._blocks is not None:
            self._blocks.invalidate(head)
            if self._head % self._blocks.block_rows == 0 and self.stored_bytes <= self._limit_mb * MEGABYTE:
                self._blocks.write_block(head)

    def _final_observation(self, ending: EpisodeEnd) -> Array:
        return ending.observation

    # --- saving

    def _stored_arrays(self) -> dict[str, Array]:
        """Return the arrays to save by name, [environments, rows, …]."""
        raise NotImplementedError

    def _volatile_arrays(self) -> dict[str, Array]:
        """Return arrays that change everywhere, not only where rows are added."""
        return {}

    @property
    def stored_bytes(self) -> int:
        return sum(
            part[:, : self._used_rows].nbytes for part in (self._stored_arrays() | self._volatile_arrays()).values()
        )

    def enable_block_files(self, run: Run, limit_mb: float) -> None:
        """For a large buffer, write blocks as soon as they are full, so that checkpoints are saved quickly."""
        arrays = self._stored_arrays()
        if sum(part.nbytes for part in arrays.values()) > MIN_BLOCKED_SIZE_MB * MEGABYTE:
            self._blocks = ReplayBlocks(run.folder.checkpoints, arrays)
            self._limit_mb = limit_mb

    def checkpoint_state(self, limit_mb: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return arrays and JSON facts for a checkpoint; only the facts if the buffer is larger than the limit."""
        is_saved = self.stored_bytes <= limit_mb * MEGABYTE
        facts = {
            "is_saved": is_saved,
            "size_bytes": self.stored_bytes,
            "limit_mb": limit_mb,
            "count": self._step_count,
            "head": self._head,
            "used": self._used_rows,
            "length": self._ring_rows,
            "rng": random_state_to_json(self._rng.bit_generator.state),
        }
        if not is_saved:
            return {}, facts
        parts = self._write_block_parts()
        facts["block_rows"] = self._blocks.block_rows if parts and self._blocks else None
        saved_arrays = self._volatile_arrays() if parts else self._stored_arrays() | self._volatile_arrays()
        arrays: dict[str, Any] = {
            f"{REPLAY_PREFIX}{name}": part[:, : self._used_rows] for name, part in saved_arrays.items()
        }
        arrays |= parts
        if self._truncated_observations:
            indices = sorted(self._truncated_observations)
            arrays[f"{REPLAY_PREFIX}cut.spots"] = np.array(indices, np.int64)
            arrays[f"{REPLAY_PREFIX}cut.observations"] = np.stack(
                [self._truncated_observations[index] for index in indices]
            )
        return arrays, facts

    def _write_block_parts(self) -> dict[str, CheckpointPart]:
        try:
            return {} if self._blocks is None else self._blocks.parts(self._used_rows)
        except OSError:  # for example a full disk, which the checkpoint reports
            return {}

    def restore(
        self, arrays: Mapping[str, Array], facts: Mapping[str, Any], parts: Mapping[str, CheckpointPart] | None = None
    ) -> str | None:
        """Restore the buffer; return the reason if that is not possible and it has to be filled again."""
        self._rng.bit_generator.state = facts["rng"]
        if facts.get("is_pruned"):
            return "the replay buffer was removed by `mosaic prune` and is filled again"
        if not facts["is_saved"]:
            return (
                f"the replay buffer of {facts['size_bytes'] / MEGABYTE:,.0f} MB was larger than checkpoint_replay_mb = "
                f"{facts['limit_mb']:g} and is filled again"
            )
        is_in_blocks = facts.get("block_rows") is not None
        if is_in_blocks and not parts:
            return "the replay buffer is missing or incomplete and is filled again"
        is_wrapped = facts["used"] > facts["length"]
        if facts["length"] != self._ring_rows and (is_wrapped or facts["used"] > self._ring_rows):
            return "the replay buffer has a different size than before and is filled again"
        self._step_count, self._head, self._used_rows = facts["count"], facts["head"], facts["used"]
        saved_arrays = self._volatile_arrays() if is_in_blocks else self._stored_arrays() | self._volatile_arrays()
        if is_in_blocks:
            total_rows = facts["length"] + 1
            read_blocks(self._stored_arrays(), parts or {}, facts["block_rows"], self._used_rows, total_rows)
            if self._blocks is not None and (self._blocks.block_rows, self._allocated_rows) == (
                facts["block_rows"],
                total_rows,
            ):
                self._blocks.adopt(parts or {})
        for name, part in saved_arrays.items():
            part[:, : self._used_rows] = arrays[f"{REPLAY_PREFIX}{name}"]
        indices = arrays.get(f"{REPLAY_PREFIX}cut.spots")
        if indices is not None:
            old_rows = facts["length"] + 1
            new_indices = (index // old_rows * self._allocated_rows + index % old_rows for index in indices.tolist())
            self._truncated_observations = dict(
                zip(new_indices, arrays[f"{REPLAY_PREFIX}cut.observations"], strict=True)
            )
        return None
