"""What an agent has lived through, to learn from again and again.

An observation is stored once: what follows a step is the beginning of the next row. Rows lie packed one behind the
other, so that a transition with its next observation is one stretch of memory and a sample one indexing. Behind an
episode that was cut short lies its successor's first observation; the true last one is kept aside and put into place
when such a row is drawn. Behind a terminal row it does not matter: nothing is estimated from there.

Each environment has a ring of its own: see replay_ring.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.replay_ring import ReplayRing, TransitionBatch
from cleanrl_worker.vector_envs import EpisodeEnd
from mosaic.contracts.errors import BadInput

if TYPE_CHECKING:
    from mosaic.run import Checkpoint, Run

Array = npt.NDArray[Any]


class PackedBatch(TransitionBatch):
    def __init__(self, rows: int, window: np.dtype[Any], buffer: Array | None = None) -> None:
        super().__init__(rows)
        self.packed = np.zeros((rows, window.itemsize), np.uint8) if buffer is None else buffer
        """All of it, as bytes: one copy brings it to another device."""
        self.layout = {name: _field_layout(*place[:2]) for name, place in (window.fields or {}).items()}
        """Where in a row each field begins, how many numbers it has, and their type."""
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
    """Transitions whose observations are vectors: `start`, then `add` after each step, `sample` as often as wanted."""

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
        """Every row with the observation behind it. They overlap, so they are for reading."""

    @staticmethod
    def size_bytes(capacity: int, observation: tuple[int, npt.DTypeLike], action: tuple[int, npt.DTypeLike]) -> int:
        """What so many transitions take, once they are there."""
        return capacity * row_dtype(observation, action).itemsize

    def allocate_batch(self, rows: int, buffer: Array | None = None) -> PackedBatch:
        """What `sample` fills. The bytes of a `buffer` [rows, window_bytes] serve where it has to be special memory."""
        return PackedBatch(rows, self._window, buffer)

    @property
    def window_bytes(self) -> int:
        return self._window.itemsize

    def sample(self, batch: PackedBatch) -> None:
        """Uniformly, with repetition."""
        self._draw_uniform(batch)
        self.fill(batch)

    def fill(self, batch: PackedBatch) -> None:
        """What lies at the batch's spots."""
        batch._windows[...] = self._windows[batch.indices]
        if self._truncated_observations and batch._truncations.any():
            for row in np.flatnonzero(batch._truncations):
                batch.next_observations[row] = self._truncated_observations[int(batch.indices[row])]

    def _stored_arrays(self) -> dict[str, Array]:
        return {"rows": self._packed}


def row_dtype(observation: tuple[int, npt.DTypeLike], action: tuple[int, npt.DTypeLike]) -> np.dtype[Any]:
    """A row as it lies in memory; each field where its type wants to be."""
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
    """A row and the observation at the beginning of the next one."""
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
        """Each row's stack and the frame that followed: the next stack is the same, one frame on."""
        self._flat = self.frames.reshape(rows * (stack + 1), -1)
        self.observations = self.frames[:, :-1]
        self.next_observations = self.frames[:, 1:]
        self.actions = np.zeros(rows, np.int64)
        self.rewards = np.zeros(rows, np.float32)
        self.terminals = np.zeros(rows, np.float32)


class FrameReplay(ReplayRing):
    """Transitions whose observations are stacks of the newest `stack` frames. Each frame is stored once.

    A stack does not reach over an episode's beginning: its first frame stands there for those before it.
    """

    def __init__(self, capacity: int, num_envs: int, shape: tuple[int, ...], stack: int, seed: int) -> None:
        super().__init__(capacity, num_envs, seed, history_rows=stack - 1)
        self.shape = shape
        self.stack = stack
        self._observations = np.zeros((num_envs, self._allocated_rows, *shape), np.uint8)
        self._flat = self._observations.reshape(num_envs * self._allocated_rows, -1)
        self._frames_since_start = np.zeros((num_envs, self._allocated_rows), np.uint8)
        """Frames of the same episode before this one, as far as a stack reaches."""
        self._actions = np.zeros((num_envs, self._allocated_rows), np.int64)
        self._rewards = np.zeros((num_envs, self._allocated_rows), np.float32)
        self._terminals = np.zeros((num_envs, self._allocated_rows), np.float32)
        self._truncations = np.zeros((num_envs, self._allocated_rows), np.bool_)
        self._stack_offsets = np.arange(stack - 1, -1, -1)

    @staticmethod
    def size_bytes(capacity: int, shape: tuple[int, ...]) -> int:
        """What so many transitions take, once they are there."""
        return capacity * (int(np.prod(shape)) + 18)

    def start(self, frames: Array) -> None:
        """Begins anew with the first frame [environments, …] of each environment."""
        super().start(frames)
        self._frames_since_start[:, 0] = 0

    def mark_truncated(self, frames: Array) -> None:
        super().mark_truncated(frames)
        self._frames_since_start[:, self._head] = 0

    def add(self, actions: Array, rewards: Array, episode_ends: Sequence[EpisodeEnd], frames: Array) -> None:
        """One step of each environment; the frames are the newest ones, after a reset where an episode ended."""
        ages = np.minimum(self._frames_since_start[:, self._head] + 1, self.stack - 1)
        for ending in episode_ends:
            ages[ending.env] = 0
        super().add(actions, rewards, episode_ends, frames)
        self._frames_since_start[:, self._head] = ages

    def _final_observation(self, ending: EpisodeEnd) -> Array:
        """The newest frame of the stack that an episode ended with."""
        stack: Array = ending.observation.reshape(-1, *self.shape)
        return np.asarray(stack[-1])

    def allocate_batch(self, rows: int, buffer: Array | None = None) -> FrameBatch:
        """What `sample` fills. A `buffer` [rows, stack + 1, …] serves where it has to be special memory."""
        return FrameBatch(rows, self.stack, self.shape, buffer)

    def sample(self, batch: FrameBatch) -> None:
        """Uniformly, with repetition."""
        self._draw_uniform(batch)
        self.fill(batch)

    def fill(self, batch: FrameBatch) -> None:
        """What lies at the batch's spots."""
        spots = batch.indices
        lanes, rows = (
            (spots // self._allocated_rows * self._allocated_rows)[:, None],
            (spots % self._allocated_rows)[:, None],
        )
        places = np.empty((len(spots), self.stack + 1), np.intp)
        ages = self._frames_since_start.reshape(-1)[spots][:, None]
        places[:, :-1] = lanes + (rows - np.minimum(self._stack_offsets, ages)) % self._ring_rows
        places[:, -1] = spots + 1
        self._flat.take(places.reshape(-1), 0, out=batch._flat, mode="clip")
        self._actions.take(spots, out=batch.actions)
        self._rewards.take(spots, out=batch.rewards)
        self._terminals.take(spots, out=batch.terminals)
        if self._truncated_observations:
            for row in np.flatnonzero(self._truncations.take(spots)):
                batch.frames[row, -1] = self._truncated_observations[int(spots[row])]

    def _stored_arrays(self) -> dict[str, Array]:
        return {
            "frames": self._observations, "ages": self._frames_since_start, "actions": self._actions,
            "rewards": self._rewards, "terminals": self._terminals, "cuts": self._truncations,
        }  # fmt: skip


# --- memory


def available_memory_bytes() -> int:
    """What a process can still take of this machine's memory, or of its container's."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return free


def check_memory(algorithm: str, capacity: int, size_bytes: int) -> None:
    """Refuses a replay buffer that this machine has no room for."""
    free = available_memory_bytes()
    if size_bytes > free:
        fitting = int(capacity * free / size_bytes * 0.8)
        raise BadInput(
            f"{algorithm} would need {size_bytes / 1e9:,.1f} GB for its replay buffer of {capacity:,} transitions; "
            f"{free / 1e9:,.1f} GB of memory are free here. Lower buffer_size to {fitting:,} or less."
        )


def restore_replay(run: Run, replay: Replay | FrameReplay, resume: Checkpoint) -> bool:
    """Whether it holds again what it held; a warning says why not. Then it wants a `start`.

    Where the environments had to be reset, it wants an `interrupt`.
    """
    problem = replay.restore(resume.arrays, resume.facts["replay"], resume.parts)
    if problem is not None:
        run.warn(
            f"The run goes on, but not exactly as it would have without the interruption: {problem}.",
            code="resumed_inexactly",
        )
    return problem is None
