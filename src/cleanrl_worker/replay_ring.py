"""A ring of rows for each environment: how they are written, counted, drawn, saved and restored.

What is in a row is for replay.py to say. All rings go on together. Sampling has its own generator, so that equal seeds
draw equal rows, and counts from the oldest row on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.replay_blocks import ReplayBlocks, read_blocks
from cleanrl_worker.vector_envs import EpisodeEnd, random_state_to_json

if TYPE_CHECKING:
    from mosaic.run import Run
    from mosaic.run.checkpoints import CheckpointPart

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.intp]
MEGABYTE = 1 << 20
MIN_BLOCKED_SIZE_MB = 32
"""A larger buffer is saved in blocks; a smaller one is written with the rest of each checkpoint."""
_SEED_STREAM = 0x5EED
"""Sets the generator of the samples apart from others that begin with the same seed."""


class TransitionBatch:
    """Drawn transitions: views of one packed buffer, which the next sample overwrites."""

    observations: Array
    actions: Array
    rewards: Array
    terminals: Array
    """1 where nothing followed; 0 also where the episode was cut short."""
    next_observations: Array

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.indices: Integers = np.zeros(rows, np.intp)
        """Where in the buffer they were."""
        self._uniform = np.empty(rows)


class ReplayRing:
    """`start`, then `add` after each step; `record` and `restore` for a checkpoint."""

    _observations: Array
    """[environments, rows, …], as are the others."""
    _actions: Array
    _rewards: Array
    _terminals: Array
    _truncations: Array
    """Where an episode was cut short."""

    def __init__(self, capacity: int, num_envs: int, seed: int, history_rows: int = 0) -> None:
        self.num_envs = num_envs
        self.steps_per_env = max(1, capacity // num_envs)
        """Transitions of each environment that are kept."""
        # One row more for the newest observation, which has no transition yet.
        self._ring_rows = self.steps_per_env + 1 + history_rows
        # And one that repeats the first, so that the last one has its successor behind it.
        self._allocated_rows = self._ring_rows + 1
        self._step_count = 0
        self._head = 0
        """The row of the newest observation."""
        self._used_rows = 1
        """Rows that were ever written, from the first on."""
        self._rng = np.random.default_rng([seed, _SEED_STREAM])
        self._truncated_observations: dict[int, Array] = {}
        """The last observations of episodes that were cut short, by their spot."""
        self._blocks: ReplayBlocks | None = None
        self._limit_mb = 0.0

    def __len__(self) -> int:
        return self._step_count * self.num_envs

    def _draw_uniform(self, batch: TransitionBatch) -> None:
        """Spots of uniformly drawn transitions, oldest first."""
        uniform, count = batch._uniform, self._step_count
        self._rng.random(out=uniform)
        np.multiply(uniform, count * self.num_envs, out=uniform)
        spots = batch.indices
        spots[...] = uniform
        oldest = self._head - count
        if self.num_envs > 1:
            lanes, ages = np.divmod(spots, count)
            spots[...] = (ages + oldest) % self._ring_rows + lanes * self._allocated_rows
        else:
            spots += oldest
            if oldest < 0:
                spots %= self._ring_rows

    def start(self, observations: Array) -> None:
        """Begins anew with the first observation of each environment."""
        self._step_count, self._head, self._used_rows = 0, 0, 1
        self._truncated_observations.clear()
        if self._blocks is not None:
            self._blocks.invalidate_all()
        self._write_newest(observations)

    def _write_newest(self, observations: Array) -> None:
        """Writes the newest observations, of which no transition is known yet."""
        self._observations[:, self._head] = observations
        if self._head == 0:
            self._observations[:, self._ring_rows] = observations
        if self._blocks is not None:
            self._blocks.invalidate(self._head)
            if self._head == 0:
                self._blocks.invalidate(self._ring_rows)

    def mark_truncated(self, observations: Array) -> None:
        """The environments were reset where nobody saw it: the newest episodes count as cut short."""
        head, before = self._head, (self._head - 1) % self._ring_rows
        for env in range(self.num_envs) if self._step_count else ():
            if not self._terminals[env, before] and not self._truncations[env, before]:
                self._truncations[env, before] = True
                self._truncated_observations[env * self._allocated_rows + before] = self._observations[env, head].copy()
                if self._blocks is not None:
                    self._blocks.invalidate(before)
        self._write_newest(observations)

    def add(self, actions: Array, rewards: Array, episode_ends: Sequence[EpisodeEnd], observations: Array) -> None:
        """One step of each environment. The observations are those after it, of the reset where an episode ended."""
        head = self._head
        self._actions[:, head] = actions
        self._rewards[:, head] = rewards
        self._terminals[:, head] = 0
        self._truncations[:, head] = False
        if self._truncated_observations:
            for env in range(self.num_envs):
                self._truncated_observations.pop(env * self._allocated_rows + head, None)
        for ending in episode_ends:
            if ending.is_terminal:
                self._terminals[ending.env, head] = 1
            else:
                self._truncations[ending.env, head] = True
                self._truncated_observations[ending.env * self._allocated_rows + head] = self._final_observation(ending)
        self._head = (head + 1) % self._ring_rows
        self._used_rows = max(self._used_rows, self._head + 1) if self._head else self._allocated_rows
        self._step_count = min(self._step_count + 1, self.steps_per_env)
        self._write_newest(observations)
        if self._blocks is not None:
            self._blocks.invalidate(head)
            if self._head % self._blocks.block_rows == 0 and self.stored_bytes <= self._limit_mb * MEGABYTE:
                self._blocks.write_block(head)

    def _final_observation(self, ending: EpisodeEnd) -> Array:
        return ending.observation

    # --- saving

    def _stored_arrays(self) -> dict[str, Array]:
        """Whole arrays by name, [environments, rows, …]."""
        raise NotImplementedError

    def _volatile_arrays(self) -> dict[str, Array]:
        """The same of what changes all over, and not only where rows are added."""
        return {}

    @property
    def stored_bytes(self) -> int:
        return sum(
            part[:, : self._used_rows].nbytes for part in (self._stored_arrays() | self._volatile_arrays()).values()
        )

    def enable_block_files(self, run: Run, limit_mb: float) -> None:
        """From now on what is full is written at once, where it is large: so that checkpoints are saved quickly."""
        arrays = self._stored_arrays()
        if sum(part.nbytes for part in arrays.values()) > MIN_BLOCKED_SIZE_MB * MEGABYTE:
            self._blocks = ReplayBlocks(run.folder.checkpoints, arrays)
            self._limit_mb = limit_mb

    def checkpoint_state(self, limit_mb: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays and facts for a checkpoint. Beyond the limit only the facts: then `restore` says so."""
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
        whole = self._volatile_arrays() if parts else self._stored_arrays() | self._volatile_arrays()
        arrays: dict[str, Any] = {f"replay.{name}": part[:, : self._used_rows] for name, part in whole.items()}
        arrays |= parts
        if self._truncated_observations:
            spots = sorted(self._truncated_observations)
            arrays["replay.cut.spots"] = np.array(spots, np.int64)
            arrays["replay.cut.observations"] = np.stack([self._truncated_observations[spot] for spot in spots])
        return arrays, facts

    def _write_block_parts(self) -> dict[str, CheckpointPart]:
        try:
            return {} if self._blocks is None else self._blocks.parts(self._used_rows)
        except OSError:  # the disk is full, say: then nothing can be saved, and the checkpoint tells
            return {}

    def restore(
        self, arrays: Mapping[str, Array], facts: Mapping[str, Any], parts: Mapping[str, CheckpointPart] | None = None
    ) -> str | None:
        """Why it is empty now, where it could not be restored."""
        self._rng.bit_generator.state = facts["rng"]
        if not facts["is_saved"]:
            return (
                f"the replay buffer of {facts['size_bytes'] / MEGABYTE:,.0f} MB was larger than checkpoint_replay_mb = "
                f"{facts['limit_mb']:g} and is filled anew"
            )
        is_in_blocks = facts.get("block_rows") is not None
        if is_in_blocks and not parts:
            return "the replay buffer is not whole, or did not come along, and is filled anew"
        is_wrapped = facts["used"] > facts["length"]
        if facts["length"] != self._ring_rows and (is_wrapped or facts["used"] > self._ring_rows):
            return "the replay buffer has another size than before and is filled anew"
        self._step_count, self._head, self._used_rows = facts["count"], facts["head"], facts["used"]
        whole = self._volatile_arrays() if is_in_blocks else self._stored_arrays() | self._volatile_arrays()
        if is_in_blocks:
            total = facts["length"] + 1
            read_blocks(self._stored_arrays(), parts or {}, facts["block_rows"], self._used_rows, total)
            if self._blocks is not None and (self._blocks.block_rows, self._allocated_rows) == (
                facts["block_rows"],
                total,
            ):
                self._blocks.adopt(parts or {})
        for name, part in whole.items():
            part[:, : self._used_rows] = arrays[f"replay.{name}"]
        spots = arrays.get("replay.cut.spots")
        if spots is not None:
            before = facts["length"] + 1
            moved = (spot // before * self._allocated_rows + spot % before for spot in spots.tolist())
            self._truncated_observations = dict(zip(moved, arrays["replay.cut.observations"], strict=True))
        return None
