"""What every worker of ours has in its environment, whatever machine it runs on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mosaic.base.processes import without_working_directory
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import RUN_DIR_VARIABLE, TENSORBOARD_VARIABLE, RunFolder
from mosaic.contracts.payload import Payload

CROWDED_LOAD = 2.0
"""Processes per core from which on a thread that spins keeps the core from the thread that it waits for."""


def worker_environment(inherited: Mapping[str, str], folder: RunFolder, config: Path, threads: int) -> dict[str, str]:
    """`inherited`: what the machine's own environment contributes; `config`: the file that the worker is given.

    The offset in the inbox is added with the launch.
    """
    is_crowded = threads > 1 and os.getloadavg()[0] >= CROWDED_LOAD * (os.cpu_count() or 1)
    return {
        **({"OMP_WAIT_POLICY": "passive"} if is_crowded else {}),
        **without_working_directory(inherited),
        # Not all cores: next to another run, spinning barriers would slow both a hundredfold.
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)),
        "PYTHONUNBUFFERED": "1",
        RUN_DIR_VARIABLE: str(folder.path),
        TENSORBOARD_VARIABLE: str(_event_files_folder(folder, config)),
    }


def _event_files_folder(folder: RunFolder, config: Path) -> Path:
    try:
        directory = Payload.read(config).artifacts.tensorboard.directory
    except (OSError, ValueError, MosaicError):
        directory = None
    return folder.path / directory if directory else folder.tensorboard
