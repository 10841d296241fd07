"""Small networks for a worker, and a run that waits until it was told what to do.

A few hundred steps are over before anybody could say "pause". So this file lies as `sitecustomize.py` before all else
on the path of a daemon's children. In the processes of runs, and in no other, networks that look at pictures get a few
units. Where the payload says `held_at` under `metadata.ui`, the run stands at that step until a pause lies in its
inbox, and at the next update until a stop does. How it obeys is the worker's own affair.
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
_SIZES = ((4, 4, 4), 8)
"""Channels of the convolutions, and units behind them."""


def install_held_worker(plugins: Path) -> None:
    plugins.mkdir(parents=True, exist_ok=True)
    shutil.copy(__file__, plugins / "sitecustomize.py")


def _prepare(run_dir: str) -> None:
    from cleanrl_worker import conv_network, launcher
    from mosaic.contracts.folder import RunFolder

    conv_network.ConvNetworkSizes.__new__.__defaults__ = _SIZES
    folder = RunFolder(run_dir)
    held_at = (json.loads(folder.config.read_bytes())["metadata"].get("ui") or {}).get(HELD_AT)
    if held_at is not None:
        kind: Any = launcher.ConsoleRun
        kind.update = _held(kind.update, int(held_at), folder.inbox)


def _held(update: Callable[[Any, int], None], held_at: int, inbox: Path) -> Callable[[Any, int], None]:
    from mosaic.journal import read_all
    from mosaic.run.handle import INBOX_S

    orders = ["pause", "stop"]

    def held_update(run: Any, global_step: int) -> None:
        if orders and global_step >= held_at:
            order = orders.pop(0)
            while not any(line["kind"] == order for line in read_all(inbox)):
                time.sleep(0.01)
            time.sleep(INBOX_S)  # so that it is time to look into the inbox again
        update(run, global_step)

    return held_update


if __name__ == "sitecustomize" and "MOSAIC_RUN_DIR" in os.environ:
    _prepare(os.environ["MOSAIC_RUN_DIR"])
