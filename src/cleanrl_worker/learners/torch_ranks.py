"""Several processes that train one network together: each has a rank, and all average their gradients.

Needs torch, and modules that need nothing else. Messages go through gloo on this machine; gradients may use another
backend. Nothing here times out: while the run is paused the other processes wait.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cleanrl_worker.learners.torch_backend import TorchAdam

_TIMEOUT = timedelta(days=3650)


class Ranks:
    """The processes of a training, as one of them sees them."""

    def __init__(self, rank: int, size: int, rendezvous: Path, backend: str) -> None:
        """`rendezvous` is a file that does not exist yet, by which the processes find each other."""
        self.rank, self.size = rank, size
        self.is_ending = False
        """Whether the first process ends the training, as of the latest `agree_on_end`."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=_TIMEOUT
        )
        self._gradient_group: Any = None if backend == "gloo" else dist.new_group(backend=backend, timeout=_TIMEOUT)

    def close(self) -> None:
        dist.destroy_process_group()

    def from_first(self, value: bool) -> bool:
        """Return what the first process passed."""
        message = torch.tensor([value], dtype=torch.uint8)
        dist.broadcast(message, 0)
        return bool(message.item())

    def agree_on_end(self, is_ending: bool) -> None:
        self.is_ending = self.from_first(is_ending)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in the first one, and an empty list in the others."""
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values)
        return values or []

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over all processes, in one message."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat, group=self._gradient_group)
        flat /= self.size
        for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))


class AveragingAdam(TorchAdam):
    """Adam on the mean gradient of all processes, so that their weights stay equal."""

    def __init__(self, *args: Any, ranks: Ranks) -> None:
        super().__init__(*args)
        self._ranks = ranks

    def _compute_gradients(self, loss: Tensor, is_last: bool) -> None:
        super()._compute_gradients(loss, is_last)
        self._ranks.average(self._gradients())
