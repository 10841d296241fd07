"""Starts the process that uploads runs to W&B, for `mosaic wandb sync` and the window's Sync button."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from mosaic.contracts.folder import RunFolder
from mosaic.workers import python_module


def uploader_command() -> list[str]:
    return [*python_module("mosaic.sidecar"), "sync"]


def format_request(folders: Iterable[RunFolder]) -> str:
    """For the standard input of the command."""
    return json.dumps([str(folder.path) for folder in folders])


def upload_runs(folders: Iterable[RunFolder]) -> Iterator[dict[str, Any]]:
    """Yields states in the form of `SyncState.to_json`; the last one of each run has `is_last`."""
    process = subprocess.Popen(
        uploader_command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is handled by us
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
