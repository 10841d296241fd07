"""A ring of rows for each environment: how they are written, counted, drawn, saved and restored.

What is in a row is for replay.py to say. All rings go on together. Sampling has its own generator, so that equal seeds
draw equal rows, and counts from the oldest row on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.blocks import Blocks, read_blocks
from cleanrl_worker.vector import Ending, plain

if TYPE_CHECKING:
    from mosaic.run import Run
    from mosaic.run.checkpoints import Part

Array = npt.NDArray[Any]
Integers = npt.NDArray[np.intp]
MEGABYTE = 1 << 20
BLOCKS_FROM_MB = 32
"""A larger buffer is saved in blocks; a smaller one is written with the rest of each checkpoint."""
_STREAM = 0x5EED
"""Sets the generator of the samples apart from others that begin with the same seed."""


class Batch:
    """Drawn transitions: views of one packed buffer, which the next sample overwrites."""

    observations: Array
    actions: Array
    rewards: Array
    terminals: Array
    """1 where nothing followed; 0 also where the episode was cut short."""
    next_observations: Array

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.spots: Integers = np.zeros(rows, np.intp)
        """Where in the buffer they were."""
        self._uniform = np.empty(rows)


class Ring:
    """`start`, then `add` after each step; `record` and `restore` for a checkpoint."""

    _observations: Array
    """[environments, rows, …], as are the others."""
    _actions: Array
    _rewards: Array
    _terminals: Array
    _cuts: Array
    """Where an episode was cut short."""

    def __init__(self, capacity: int, envs: int, seed: int, before: int = 0) -> None:
        self.envs = envs
        self.steps = max(1, capacity // envs)
        """Transitions of each environment that are kept."""
        # One row more for the newest observation, which has no transition yet.
        self._length = self.steps + 1 + before
        # And one that repeats the first, so that the last one has its successor behind it.
        self._stride = self._length + 1
        self._count = 0
        self._head = 0
        """The row of the newest observation."""
        self._used = 1
        """Rows that were ever written, from the first on."""
        self._rng = np.random.default_rng([seed, _STREAM])
        self._cut: dict[int, Array] = {}
        """The last observations of episodes that were cut short, by their spot."""
        self._blocks: Blocks | None = None
        self._limit_mb = 0.0

    def __len__(self) -> int:
        return self._count * self.envs

    def _draw(self, batch: Batch) -> None:
        """Spots of uniformly drawn transitions, oldest first."""
        uniform, count = batch._uniform, self._count
        self._rng.random(out=uniform)
        np.multiply(uniform, count * self.envs, out=uniform)
        spots = batch.spots
        spots[...] = uniform
        oldest = self._head - count
        if self.envs > 1:
            lanes, ages = np.divmod(spots, count)
            spots[...] = (ages + oldest) % self._length + lanes * self._stride
        else:
            spots += oldest
            if oldest < 0:
                spots %= self._length

    def start(self, observations: Array) -> None:
        """Begins anew with the first observation of each environment."""
        self._count, self._head, self._used = 0, 0, 1
        self._cut.clear()
        if self._blocks is not None:
            self._blocks.forget()
        self._show(observations)

    def _show(self, observations: Array) -> None:
        """Writes the newest observations, of which no transition is known yet."""
        self._observations[:, self._head] = observations
        if self._head == 0:
            self._observations[:, self._length] = observations
        if self._blocks is not None:
            self._blocks.touch(self._head)
            if self._head == 0:
                self._blocks.touch(self._length)

    def interrupt(self, observations: Array) -> None:
        """The environments were reset where nobody saw it: the newest episodes count as cut short."""
        head, before = self._head, (self._head - 1) % self._length
        for env in range(self.envs) if self._count else ():
            if not self._terminals[env, before] and not self._cuts[env, before]:
                self._cuts[env, before] = True
                self._cut[env * self._stride + before] = self._observations[env, head].copy()
                if self._blocks is not None:
                    self._blocks.touch(before)
        self._show(observations)

    def add(self, actions: Array, rewards: Array, endings: Sequence[Ending], observations: Array) -> None:
        """One step of each environment. The observations are those after it, of the reset where an episode ended."""
        head = self._head
        self._actions[:, head] = actions
        self._rewards[:, head] = rewards
        self._terminals[:, head] = 0
        self._cuts[:, head] = False
        if self._cut:
            for env in range(self.envs):
                self._cut.pop(env * self._stride + head, None)
        for ending in endings:
            if ending.is_terminal:
                self._terminals[ending.env, head] = 1
            else:
                self._cuts[ending.env, head] = True
                self._cut[ending.env * self._stride + head] = self._last(ending)
        self._head = (head + 1) % self._length
        self._used = max(self._used, self._head + 1) if self._head else self._stride
        self._count = min(self._count + 1, self.steps)
        self._show(observations)
        if self._blocks is not None:
            self._blocks.touch(head)
            if self._head % self._blocks.rows == 0 and self.filled_bytes <= self._limit_mb * MEGABYTE:
                self._blocks.settle(head)

    def _last(self, ending: Ending) -> Array:
        return ending.observation

    # --- saving

    def _filled(self) -> dict[str, Array]:
        """Whole arrays by name, [environments, rows, …]."""
        raise NotImplementedError

    def _restless(self) -> dict[str, Array]:
        """The same of what changes all over, and not only where rows are added."""
        return {}

    @property
    def filled_bytes(self) -> int:
        return sum(part[:, : self._used].nbytes for part in (self._filled() | self._restless()).values())

    def write_ahead(self, run: Run, limit_mb: float) -> None:
        """From now on what is full is written at once, where it is large: so that checkpoints are saved quickly."""
        arrays = self._filled()
        if sum(part.nbytes for part in arrays.values()) > BLOCKS_FROM_MB * MEGABYTE:
            self._blocks = Blocks(run.folder.checkpoints, arrays)
            self._limit_mb = limit_mb

    def record(self, limit_mb: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays and facts for a checkpoint. Beyond the limit only the facts: then `restore` says so."""
        is_saved = self.filled_bytes <= limit_mb * MEGABYTE
        facts = {
            "is_saved": is_saved,
            "size_bytes": self.filled_bytes,
            "limit_mb": limit_mb,
            "count": self._count,
            "head": self._head,
            "used": self._used,
            "length": self._length,
            "rng": plain(self._rng.bit_generator.state),
        }
        if not is_saved:
            return {}, facts
        parts = self._written_parts()
        facts["block_rows"] = self._blocks.rows if parts and self._blocks else None
        whole = self._restless() if parts else self._filled() | self._restless()
        arrays: dict[str, Any] = {f"replay.{name}": part[:, : self._used] for name, part in whole.items()}
        arrays |= parts
        if self._cut:
            spots = sorted(self._cut)
            arrays["replay.cut.spots"] = np.array(spots, np.int64)
            arrays["replay.cut.observations"] = np.stack([self._cut[spot] for spot in spots])
        return arrays, facts

    def _written_parts(self) -> dict[str, Part]:
        try:
            return {} if self._blocks is None else self._blocks.parts(self._used)
        except OSError:  # the disk is full, say: then nothing can be saved, and the checkpoint tells
            return {}

    def restore(
        self, arrays: Mapping[str, Array], facts: Mapping[str, Any], parts: Mapping[str, Part] | None = None
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
        if facts["length"] != self._length and (is_wrapped or facts["used"] > self._length):
            return "the replay buffer has another size than before and is filled anew"
        self._count, self._head, self._used = facts["count"], facts["head"], facts["used"]
        whole = self._restless() if is_in_blocks else self._filled() | self._restless()
        if is_in_blocks:
            total = facts["length"] + 1
            read_blocks(self._filled(), parts or {}, facts["block_rows"], self._used, total)
            if self._blocks is not None and (self._blocks.rows, self._stride) == (facts["block_rows"], total):
                self._blocks.adopt(parts or {})
        for name, part in whole.items():
            part[:, : self._used] = arrays[f"replay.{name}"]
        spots = arrays.get("replay.cut.spots")
        if spots is not None:
            before = facts["length"] + 1
            moved = (spot // before * self._stride + spot % before for spot in spots.tolist())
            self._cut = dict(zip(moved, arrays["replay.cut.observations"], strict=True))
        return None
