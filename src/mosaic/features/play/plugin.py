"""The worker `play`: sessions in which actors act in an environment."""

from __future__ import annotations

from mosaic import __version__
from mosaic.base.worker_registry import WorkerDescription, python_module
from mosaic.contracts.play import PLAY_WORKER


def describe() -> WorkerDescription:
    command = python_module("mosaic.features.play.worker")
    return WorkerDescription(
        id=PLAY_WORKER, title="Play", version=__version__, command=command, checker=(*command, "--checker")
    )
