"""The choice between numpy and torch, and the number of threads. torch is imported only if there may be a GPU.

torch is an extra of its own: without it, numpy computes all that it can, and the rest is refused in the dry run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

from cleanrl_worker.learners.architecture import Architecture
from mosaic.base.packages import TORCH_COMMAND, has_torch
from mosaic.contracts.errors import MissingExtra, problems_of

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


def missing_torch_error(subject: str, alternative: str = "") -> MissingExtra:
    return MissingExtra(f"{subject} needs torch, which is not installed: {TORCH_COMMAND}{alternative}.")


@contextmanager
def names_missing_torch(subject: str) -> Iterator[None]:
    """Raise a sentence about the subject if the block fails because torch is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise missing_torch_error(subject) from None


def require_torch(algo: str, config: BackendSettings) -> None:
    """Raise if torch is not installed and numpy cannot compute an algorithm with these settings."""
    if has_torch():
        return
    if not config.has_kernels:
        with problems_of("algo"):
            raise missing_torch_error(algo)
    if config.backend == "torch":
        with problems_of("backend"):
            raise missing_torch_error("backend = torch", ", or leave backend out")
    architecture = config.architecture
    if architecture.body is not None:
        with problems_of("network"):
            raise missing_torch_error(f"network = {architecture.body}", ", or leave network out")
    if not architecture.has_kernels:
        with problems_of("activation"):
            raise missing_torch_error(f"activation = {architecture.activation}", ", or choose tanh or relu")


def torch_warnings(config: BackendSettings, given: Mapping[str, Any]) -> list[str]:
    """Return what torch would do for these settings, if it is not installed; `given` are those that a config states."""
    if has_torch():
        return []
    warnings = [
        f"{name}: only torch can do that, and it is not installed ({TORCH_COMMAND}). numpy computes on the CPU."
        for name in ("cuda", "compile")
        if given.get(name)
    ]
    units, limit = max(config.architecture.hidden), getattr(config, "kernel_units", None)
    if config.backend == "auto" and limit is not None and units > limit:
        warnings.append(
            f"hidden_sizes: torch is faster for {units} units, but is not installed ({TORCH_COMMAND}). numpy computes."
        )
    return warnings


def has_gpu() -> bool:
    """Return whether torch finds a GPU. torch is imported only if there is a driver: that takes seconds."""
    if not has_torch() or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        return False
    import torch

    return torch.cuda.is_available()


def choose_backend(
    config: BackendSettings, previous_backend: str | None = None, architecture: Architecture | None = None
) -> Backend:
    """Choose for an actor and critics: on a CPU numpy up to a width, else torch if it is installed.

    A resumed run keeps its backend.
    """
    if config.backend != "auto":
        return config.backend
    if not config.has_kernels:
        return "torch"
    if previous_backend in ("numpy", "torch"):
        if previous_backend == "torch" and not has_torch():
            raise missing_torch_error("This run has been computed by torch. Resuming it")
        return "torch" if previous_backend == "torch" else "numpy"
    architecture = architecture or config.architecture
    if not architecture.has_kernels:
        return "torch"
    if max(architecture.hidden) > config.kernel_units:
        return "torch" if has_torch() else "numpy"
    return "torch" if config.cuda and has_gpu() else "numpy"


def thread_count() -> int:
    """Return the run's number of threads, which the daemon sets from `resources.cpus`; 1 if it is not set."""
    value = os.environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdecimal() and int(value) else 1
