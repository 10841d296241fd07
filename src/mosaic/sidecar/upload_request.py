"""Uploads runs to W&B because somebody asked for it: `mosaic wandb sync`, or the window's Sync button.

`uploads()` starts the process that does it (upload_process.py) and reads along.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from mosaic.contracts.folder import RunFolder
from mosaic.plugins import python_module

Json = dict[str, Any]


def uploader_command() -> list[str]:
    return list(python_module("mosaic.sidecar.upload_process"))


def format_request(folders: Iterable[RunFolder]) -> str:
    """For the standard input of `command`."""
    return json.dumps([str(folder.path) for folder in folders])


def upload_runs(folders: Iterable[RunFolder]) -> Iterator[Json]:
    """What it says: states as `SyncState.to_json` has them, each with `is_last` where nothing more comes of its run."""
    process = subprocess.Popen(
        uploader_command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is ours to answer
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with process.stdin as stdin:
            stdin.write(format_request(folders))
        with process.stdout as stdout:
            for line in stdout:
                yield json.loads(line)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()
