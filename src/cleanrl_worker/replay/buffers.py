"""Replay buffers.

Each observation is stored once: the next observation of a row is the observation of the following row. Rows are packed
one after the other, so that a transition with its next observation is one contiguous block of memory and a sample is
one indexing operation. After a truncated episode the following row holds the first observation of the next episode; the
true final observation is stored separately and filled in when such a row is sampled. After a terminal row the next
observation does not matter, because nothing is bootstrapped from it.

Each environment has its own ring buffer: see ring.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.replay.ring import ReplayRing, TransitionBatch
from mosaic.contracts.errors import BadInput

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]


class PackedBatch(TransitionBatch):
    def __init__(self, rows: int, window: np.dtype[Any], buffer: Array | None = None) -> None:
        super().__init__(rows)
        self.packed = np.zeros((rows, window.itemsize), np.uint8) if buffer is None else buffer
        """The whole batch as bytes, so that one copy transfers it to another device."""
        self.layout = {name: _field_layout(*field[:2]) for name, field in (window.fields or {}).items()}
        """The offset of each field in a row, its number of elements, and their type."""
        self._windows = self.packed.view(np.dtype((np.void, window.itemsize)))[:, 0]
        fields = self.packed.view(window)[:, 0]
        self.observations = fields["observation"]
        self.actions = fields["action"]
        self.rewards = fields["reward"]
        self.terminals = fields["terminal"]
        self.next_observations = fields["next_observation"]
        self._truncations = fields["cut"]


def _field_layout(kind: np.dtype[Any], offset: int) -> tuple[int, int, str]:
    return offset, int(np.prod(kind.shape)), kind.base.name


class Replay(ReplayRing):
    """A replay buffer for vector observations: call `start`, then `add` after each step and `sample` at any time."""

    relabels_samples = False
    """Whether samples differ from what is stored."""

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        observation: tuple[int, npt.DTypeLike],
        action: tuple[int, npt.DTypeLike],
        seed: int,
    ) -> None:
        super().__init__(capacity, num_envs, seed)
        row = row_dtype(observation, action)
        self._window = window_dtype(row)
        self._packed = np.zeros((num_envs, self._allocated_rows, row.itemsize), np.uint8)
        fields = self._packed.view(row)[..., 0]
        self._observations = fields["observation"]
        self._actions = fields["action"]
        self._rewards = fields["reward"]
        self._terminals = fields["terminal"]
        self._truncations = fields["cut"]
        self._windows: Array = np.ndarray(
            (num_envs * self._allocated_rows - 1,),
            np.dtype((np.void, self._window.itemsize)),
            self._packed.data,
            0,
            (row.itemsize,),
        )
        """Each row together with the next observation. The windows overlap, so they are read-only."""

    @staticmethod
    def size_bytes(capacity: int, observation: tuple[int, npt.DTypeLike], action: tuple[int, npt.DTypeLike]) -> int:
        """Return the size of a full buffer."""
        return capacity * row_dtype(observation, action).itemsize

    def allocate_batch(self, rows: int, buffer: Array | None = None) -> PackedBatch:
        """Create a batch for `sample`, in the memory of `buffer` [rows, window_bytes] if given (e.g. pinned memory)."""
        return PackedBatch(rows, self._window, buffer)

    @property
    def window_bytes(self) -> int:
        return self._window.itemsize

    def fill(self, batch: PackedBatch) -> None:
        batch._windows[...] = self._windows[batch.indices]
        if self._truncated_observations and batch._truncations.any():
            for row in np.flatnonzero(batch._truncations):
                batch.next_observations[row] = self._truncated_observations[int(batch.indices[row])]

    def _stored_arrays(self) -> dict[str, Array]:
        return {"rows": self._packed}


def row_dtype(observation: tuple[int, npt.DTypeLike], action: tuple[int, npt.DTypeLike]) -> np.dtype[Any]:
    """Return the memory layout of a row, with aligned fields."""
    return np.dtype(
        [
            ("observation", observation[1], (observation[0],)),
            ("action", action[1], (action[0],)),
            ("reward", np.float32),
            ("terminal", np.float32),
            ("cut", np.uint8),
        ],
        align=True,
    )


def window_dtype(row: np.dtype[Any]) -> np.dtype[Any]:
    """Return the layout of a row followed by the observation of the next row."""
    fields = dict(row.fields or {})
    kinds = {name: kind for name, (kind, *_) in fields.items()}
    offsets = [offset for _, offset, *_ in fields.values()]
    size = row.itemsize + kinds["observation"].itemsize
    return np.dtype(
        {
            "names": [*kinds, "next_observation"],
            "formats": [*kinds.values(), kinds["observation"]],
            "offsets": [*offsets, row.itemsize],
            "itemsize": -(-size // row.alignment) * row.alignment,
        }
    )


class FrameBatch(TransitionBatch):
    def __init__(self, rows: int, stack: int, shape: tuple[int, ...], buffer: Array | None = None) -> None:
        super().__init__(rows)
        self.frames = np.zeros((rows, stack + 1, *shape), np.uint8) if buffer is None else buffer
        """The stack of each row and the next frame; the next stack is the same, shifted by one frame."""
        self._flat = self.frames.reshape(rows * (stack + 1), -1)
        self.observations = self.frames[:, :-1]
        self.next_observations = self.frames[:, 1:]
        self.actions = np.zeros(rows, np.int64)
        self.rewards = np.zeros(rows, np.float32)
        self.terminals = np.zeros(rows, np.float32)


class FrameReplay(ReplayRing):
    """A replay buffer for stacks of the latest `stack` frames. Each frame is stored once.

    A stack does not reach across the start of an episode: the first frame is repeated instead.
    """

    def __init__(self, capacity: int, num_envs: int, shape: tuple[int, ...], stack: int, seed: int) -> None:
        super().__init__(capacity, num_envs, seed, history_rows=stack - 1)
        self.shape = shape
        self.stack = stack
        self._observations = np.zeros((num_envs, self._allocated_rows, *shape), np.uint8)
        self._flat = self._observations.reshape(num_envs * self._allocated_rows, -1)
        self._frames_since_start = np.zeros((num_envs, self._allocated_rows), np.uint8)
        """Earlier frames of the same episode, at most `stack - 1`."""
        self._actions = np.zeros((num_envs, self._allocated_rows), np.int64)
        self._rewards = np.zeros((num_envs, self._allocated_rows), np.float32)
        self._terminals = np.zeros((num_envs, self._allocated_rows), np.float32)
        self._truncations = np.zeros((num_envs, self._allocated_rows), np.bool_)
        self._stack_offsets = np.arange(stack - 1, -1, -1)

    @staticmethod
    def size_bytes(capacity: int, shape: tuple[int, ...]) -> int:
        """Return the size of a full buffer."""
        return capacity * (int(np.prod(shape)) + 18)

    def start(self, frames: Array) -> None:
        """Clear the buffer and store the first frame [environments, …] of each environment."""
        super().start(frames)
        self._frames_since_start[:, 0] = 0

    def mark_truncated(self, frames: Array) -> None:
        super().mark_truncated(frames)
        self._frames_since_start[:, self._head] = 0

    def add(self, actions: Array, rewards: Array, episode_ends: Sequence[EpisodeEnd], frames: Array) -> None:
        """Add one step of each environment; `frames` are the latest, after the reset if an episode ended."""
        ages = np.minimum(self._frames_since_start[:, self._head] + 1, self.stack - 1)
        for episode_end in episode_ends:
            ages[episode_end.env] = 0
        super().add(actions, rewards, episode_ends, frames)
        self._frames_since_start[:, self._head] = ages

    def _final_observation(self, ending: EpisodeEnd) -> Array:
        """Return the last frame of an episode's final stack."""
        stack: Array = ending.observation.reshape(-1, *self.shape)
        return np.asarray(stack[-1])

    def allocate_batch(self, rows: int, buffer: Array | None = None) -> FrameBatch:
        """Create a batch for `sample`, in the memory of `buffer` [rows, stack + 1, …] if given (e.g. pinned memory)."""
        return FrameBatch(rows, self.stack, self.shape, buffer)

    def fill(self, batch: FrameBatch) -> None:
        indices = batch.indices
        env_offsets, rows = (
            (indices // self._allocated_rows * self._allocated_rows)[:, None],
            (indices % self._allocated_rows)[:, None],
        )
        frame_indices = np.empty((len(indices), self.stack + 1), np.intp)
        ages = self._frames_since_start.reshape(-1)[indices][:, None]
        frame_indices[:, :-1] = env_offsets + (rows - np.minimum(self._stack_offsets, ages)) % self._ring_rows
        frame_indices[:, -1] = indices + 1
        self._flat.take(frame_indices.reshape(-1), 0, out=batch._flat, mode="clip")
        self._actions.take(indices, out=batch.actions)
        self._rewards.take(indices, out=batch.rewards)
        self._terminals.take(indices, out=batch.terminals)
        if self._truncated_observations:
            for row in np.flatnonzero(self._truncations.take(indices)):
                batch.frames[row, -1] = self._truncated_observations[int(indices[row])]

    def _stored_arrays(self) -> dict[str, Array]:
        return {
            "frames": self._observations, "ages": self._frames_since_start, "actions": self._actions,
            "rewards": self._rewards, "terminals": self._terminals, "cuts": self._truncations,
        }  # fmt: skip


# --- memory


def available_memory_bytes() -> int:
    """Return the memory that is available on this machine or in its container."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(free, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8")))
    except (OSError, ValueError):  # no container, or one without limit ("max")
        return free


def check_memory(algorithm: str, capacity: int, size_bytes: int) -> None:
    """Refuse a replay buffer that does not fit into memory."""
    free = available_memory_bytes()
    if size_bytes > free:
        fitting = int(capacity * free / size_bytes * 0.8)
        raise BadInput(
            f"{algorithm} needs {size_bytes / 1e9:,.1f} GB for its replay buffer of {capacity:,} transitions, but only "
            f"{free / 1e9:,.1f} GB of memory are available. Lower buffer_size to {fitting:,} or less."
        )


def restore_replay(run: Run, replay: Replay | FrameReplay, resume: Checkpoint) -> bool:
    """Restore a replay buffer; on failure warn, return False, and leave it to the caller to `start` it.

    If the environments had to be reset, the caller must call `mark_truncated`.
    """
    problem = replay.restore(resume.arrays, resume.facts["replay"], resume.parts)
    if problem is not None:
        run.warn(
            f"The run resumes, but not exactly as if it had not been interrupted: {problem}.",
            code="resumed_inexactly",
        )
    return problem is None
