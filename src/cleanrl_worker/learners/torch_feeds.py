"""How samples of a replay buffer of vectors reach the device on which a network learns.

A feed prepares a sample on the host before each step; `copy_to_device` is the first part of the step itself, so that it
can be captured in a CUDA graph. Both feeds give the same samples. Imports only torch, numpy and modules that need
nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cleanrl_worker.learners.torch_backend import TorchContext, unpack_fields

if TYPE_CHECKING:
    from cleanrl_worker.replay.buffers import Replay

MAX_MEMORY_FRACTION = 0.25
"""A buffer that would take more of the device's free memory stays on the host."""
UPLOAD_ROWS = 65_536
"""Transitions that are copied to the device at a time when all of them are."""


class Feed:
    """Transfer memory that a step reads, and that must not be overwritten before it has."""

    def __init__(self, compute: TorchContext) -> None:
        self._is_read: Any = torch.cuda.Event() if compute.is_cuda else None  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Wait until the latest step has read its sample."""
        if self._is_read is not None:
            self._is_read.synchronize()

    def record_launch(self) -> None:
        """Record that a step has been launched."""
        if self._is_read is not None:
            self._is_read.record()


class HostFeed(Feed):
    """Samples on the host and copies the sample to the device."""

    def __init__(self, replay: Replay, rows: int, compute: TorchContext) -> None:
        super().__init__(compute)
        self._host = compute.host_buffer(rows, replay.window_bytes, dtype=torch.uint8)
        self._batch = replay.allocate_batch(rows, self._host.numpy())
        self._device = self._host.to(compute.device)
        self.fields = unpack_fields(self._device, self._batch.layout)

    def prepare(self, replay: Replay) -> None:
        """Draw the sample of the next step."""
        self.synchronize()
        replay.sample(self._batch)

    def copy_to_device(self) -> None:
        self._device.copy_(self._host, non_blocking=True)


class DeviceFeed(Feed):
    """Keeps a copy of the buffer on the device: a step adds the newest transitions to it and gathers its sample there.

    Only the newest transitions and the indices of the sample are transferred.
    """

    def __init__(self, replay: Replay, rows: int, compute: TorchContext) -> None:
        super().__init__(compute)
        self._rows, num_envs = rows, replay.num_envs
        index_bytes = 8 * (rows + num_envs)
        self._host = compute.host_buffer(index_bytes + num_envs * replay.window_bytes, dtype=torch.uint8)
        self._device = torch.zeros_like(self._host, device=compute.device)
        host, words = self._host.numpy(), replay.window_bytes // 4
        indices = host[:index_bytes].view(np.int64)
        self._newest = replay.allocate_batch(num_envs, host[index_bytes:].reshape(num_envs, replay.window_bytes))
        self._newest.indices = indices[rows:]
        self._sample = replay.allocate_batch(rows)
        self._sample.indices = indices[:rows]
        self._indices = self._device[:index_bytes].view(torch.int64)
        self._newest_windows = self._device[index_bytes:].view(torch.int32).view(num_envs, words)
        self._windows = torch.zeros((replay.index_count, words), dtype=torch.int32, device=compute.device)
        self._gathered = torch.zeros((rows, words), dtype=torch.int32, device=compute.device)
        self.fields = unpack_fields(self._gathered.view(torch.uint8), self._sample.layout)
        self._known_steps: int | None = None
        """The steps that had been added to the buffer at the latest sample."""

    @staticmethod
    def fits(replay: Replay, compute: TorchContext) -> bool:
        """Return whether the device has room for the buffer, and samples are what is stored in it."""
        if not compute.is_cuda or replay.relabels_samples:
            return False
        free_bytes, _ = torch.cuda.mem_get_info(compute.device)
        return replay.index_count * replay.window_bytes <= MAX_MEMORY_FRACTION * free_bytes

    def prepare(self, replay: Replay) -> None:
        """Draw the sample of the next step, and note the newest transitions."""
        self.synchronize()
        if self._known_steps is None or replay.added_steps - self._known_steps not in (0, 1):
            self._upload(replay, replay.stored_indices())
        self._known_steps = replay.added_steps
        replay.newest_indices(self._newest.indices)
        replay.fill(self._newest)
        replay.draw(self._sample)

    def _upload(self, replay: Replay, indices: Any) -> None:
        for part in np.array_split(indices, -(-len(indices) // UPLOAD_ROWS)):
            batch = replay.allocate_batch(len(part))
            batch.indices = part
            replay.fill(batch)
            windows = torch.from_numpy(batch.packed).view(torch.int32)
            self._windows[torch.from_numpy(part)] = windows.to(self._windows.device)

    def copy_to_device(self) -> None:
        self._device.copy_(self._host, non_blocking=True)
        self._windows.index_copy_(0, self._indices[self._rows :], self._newest_windows)
        torch.index_select(self._windows, 0, self._indices[: self._rows], out=self._gathered)


def make_feed(replay: Replay, rows: int, compute: TorchContext) -> HostFeed | DeviceFeed:
    """Make the feed that keeps samples on the device, where that is possible."""
    return DeviceFeed(replay, rows, compute) if DeviceFeed.fits(replay, compute) else HostFeed(replay, rows, compute)
