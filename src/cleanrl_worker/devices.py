"""Which of numpy and torch computes, and with how many threads. torch is imported only where there may be a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Backend = Literal["numpy", "torch"]


def has_gpu() -> bool:
    """Whether torch finds a GPU. It is asked only where there is a driver: importing it takes seconds."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        return False
    import torch

    return torch.cuda.is_available()


def choose_backend(
    backend: Literal["auto", "numpy", "torch"], cuda: bool, previous_backend: str | None = None
) -> Backend:
    """For networks some hundred units wide: numpy on a CPU, torch on a GPU. A resumed run keeps to what it had."""
    if backend != "auto":
        return backend
    if previous_backend in ("numpy", "torch"):
        return "torch" if previous_backend == "torch" else "numpy"
    return "torch" if cuda and has_gpu() else "numpy"


def thread_count() -> int:
    """As many as the run was given: the daemon sets this from the run's `resources.cpus`, one where it is unset."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return int(told) if told.isdecimal() and int(told) else 1
