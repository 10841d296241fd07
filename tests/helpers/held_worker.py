"""Small networks for a worker, and a run that waits for orders.

A few hundred steps are over before a test could send "pause". So this file is installed as `sitecustomize.py` at the
start of the path of a daemon's children. Only in the processes of runs, convolutional networks get a few units. If the
payload has `held_at` under `metadata.ui`, the run waits at that step until its inbox has a pause, and at the next
update until it has a stop. How the run obeys is the worker's own code.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HELD_AT = "held_at"
_SIZES = ((4, 4, 4), (8,), None)
"""Channels of the convolutions, units of the layer after them, and no network instead."""


def install_held_worker(plugins: Path) -> None:
    plugins.mkdir(parents=True, exist_ok=True)
    shutil.copy(__file__, plugins / "sitecustomize.py")


def _prepare(run_dir: str) -> None:
    from cleanrl_worker.algorithms import qdagger_dqn_atari_impalacnn
    from cleanrl_worker.learners import conv_network
    from cleanrl_worker.shell import launcher
    from mosaic.contracts.folder import RunFolder

    conv_network.ConvNetworkSizes.__new__.__defaults__ = _SIZES
    qdagger_dqn_atari_impalacnn.SIZES = conv_network.ConvNetworkSizes()
    folder = RunFolder(run_dir)
    held_at = (json.loads(folder.config.read_bytes())["metadata"].get("ui") or {}).get(HELD_AT)
    if held_at is not None:
        run_class: Any = launcher.ConsoleRun
        run_class.update = _held(run_class.update, int(held_at), folder.inbox)


def _held(update: Callable[[Any, int], None], held_at: int, inbox: Path) -> Callable[[Any, int], None]:
    from mosaic.base.journal import read_all
    from mosaic.worker.run import INBOX_S

    orders = ["pause", "stop"]

    def held_update(run: Any, global_step: int) -> None:
        if orders and global_step >= held_at:
            order = orders.pop(0)
            while not any(line["kind"] == order for line in read_all(inbox)):
                time.sleep(0.01)
            time.sleep(INBOX_S)  # so that the inbox is due to be read again
        update(run, global_step)

    return held_update


if __name__ == "sitecustomize" and "MOSAIC_RUN_DIR" in os.environ:
    _prepare(os.environ["MOSAIC_RUN_DIR"])
