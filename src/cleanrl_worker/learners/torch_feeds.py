"""How samples of a replay buffer of vectors reach the device on which a network learns.

A feed prepares a sample before each step; `load` is the first part of the step itself, so that it can be captured in a
CUDA graph. Both feeds give the same samples. Imports only torch, numpy and modules that need
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
        """Wait until what was launched before the latest `record_launch` has read the memory."""
        if self._is_read is not None:
            self._is_read.synchronize()

    def record_launch(self) -> None:
        """Record that what reads the memory has been launched."""
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

    def load(self) -> None:
        """Load the sample; the first part of the step."""
        self._device.copy_(self._host, non_blocking=True)


class _Transfer(Feed):
    """Memory for the newest transitions and for the indices of a sample."""

    def __init__(self, replay: Replay, rows: int, compute: TorchContext) -> None:
        super().__init__(compute)
        num_envs, index_bytes = replay.num_envs, 8 * (rows + replay.num_envs)
        self.host = compute.host_buffer(index_bytes + num_envs * replay.window_bytes, dtype=torch.uint8)
        memory = self.host.numpy()
        indices = memory[:index_bytes].view(np.int64)
        self.newest = replay.allocate_batch(num_envs, memory[index_bytes:].reshape(num_envs, replay.window_bytes))
        self.newest.indices = indices[rows:]
        self.sample = replay.allocate_batch(rows)
        self.sample.indices = indices[:rows]


class DeviceFeed:
    """Keeps a copy of the buffer on the device: a step adds the newest transitions to it and gathers its sample there.

    Only the newest transitions and the indices of the sample are transferred. Two transfers take turns, so that the
    next one is prepared while the device is still busy.
    """

    def __init__(self, replay: Replay, rows: int, compute: TorchContext) -> None:
        self._rows, num_envs, words = rows, replay.num_envs, replay.window_bytes // 4
        self._transfers = [_Transfer(replay, rows, compute) for _ in range(2)]
        self._device = torch.zeros_like(self._transfers[0].host, device=compute.device)
        index_bytes = 8 * (rows + num_envs)
        self._indices = self._device[:index_bytes].view(torch.int64)
        self._newest_windows = self._device[index_bytes:].view(torch.int32).view(num_envs, words)
        self._windows = torch.zeros((replay.index_count, words), dtype=torch.int32, device=compute.device)
        self._gathered = torch.zeros((rows, words), dtype=torch.int32, device=compute.device)
        self.fields = unpack_fields(self._gathered.view(torch.uint8), self._transfers[0].sample.layout)
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
        """Draw the sample of the next step, and transfer its indices and the newest transitions."""
        if self._known_steps is None or replay.added_steps - self._known_steps not in (0, 1):
            self._upload(replay, replay.stored_indices())
        self._known_steps = replay.added_steps
        self._transfers.reverse()
        transfer = self._transfers[0]
        transfer.synchronize()
        replay.newest_indices(transfer.newest.indices)
        replay.fill(transfer.newest)
        replay.draw(transfer.sample)
        self._device.copy_(transfer.host, non_blocking=True)
        transfer.record_launch()

    def _upload(self, replay: Replay, indices: Any) -> None:
        for part in np.array_split(indices, -(-len(indices) // UPLOAD_ROWS)):
            batch = replay.allocate_batch(len(part))
            batch.indices = part
            replay.fill(batch)
            windows = torch.from_numpy(batch.packed).view(torch.int32)
            self._windows[torch.from_numpy(part)] = windows.to(self._windows.device)

    def load(self) -> None:
        """Load the sample; the first part of the step."""
        self._windows.index_copy_(0, self._indices[self._rows :], self._newest_windows)
        torch.index_select(self._windows, 0, self._indices[: self._rows], out=self._gathered)

    def record_launch(self) -> None:
        """Do nothing: only the transfers read memory of the host."""


def make_feed(replay: Replay, rows: int, compute: TorchContext) -> HostFeed | DeviceFeed:
    """Make the feed that keeps samples on the device, where that is possible."""
    return DeviceFeed(replay, rows, compute) if DeviceFeed.fits(replay, compute) else HostFeed(replay, rows, compute)
