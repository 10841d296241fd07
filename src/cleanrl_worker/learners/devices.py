"""The choice between numpy and torch, and the number of threads. torch is imported only if there may be a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Protocol

from cleanrl_worker.learners.architecture import Architecture

Backend = Literal["numpy", "torch"]


class BackendSettings(Protocol):
    @property
    def backend(self) -> Literal["auto", "numpy", "torch"]: ...
    @property
    def cuda(self) -> bool: ...
    @property
    def architecture(self) -> Architecture: ...
    @property
    def has_kernels(self) -> bool: ...
    @property
    def kernel_units(self) -> int:
        """Units of the widest layer for which numpy is at least 1.2 times as fast as torch on a CPU."""


def has_gpu() -> bool:
    """Return whether torch finds a GPU. torch is imported only if there is a driver: that takes seconds."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        return False
    import torch

    return torch.cuda.is_available()


def choose_backend(
    config: BackendSettings, previous_backend: str | None = None, architecture: Architecture | None = None
) -> Backend:
    """Choose for an actor and critics: on a CPU numpy up to a width, else torch. A resumed run keeps its backend."""
    if config.backend != "auto":
        return config.backend
    if not config.has_kernels:
        return "torch"
    if previous_backend in ("numpy", "torch"):
        return "torch" if previous_backend == "torch" else "numpy"
    architecture = architecture or config.architecture
    if not architecture.has_kernels or max(architecture.hidden) > config.kernel_units:
        return "torch"
    return "torch" if config.cuda and has_gpu() else "numpy"


def thread_count() -> int:
    """Return the run's number of threads, which the daemon sets from `resources.cpus`; 1 if it is not set."""
    value = os.environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdecimal() and int(value) else 1
