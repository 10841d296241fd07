"""The worker `script`: any program of the user, unmodified."""

from __future__ import annotations

from mosaic import __version__
from mosaic.base.worker_registry import WorkerDescription


def describe() -> WorkerDescription:
    return WorkerDescription(
        id="script",
        title="Your own script",
        version=__version__,
        command=(),
        has_own_command=True,
        programs=("argv",),
    )
