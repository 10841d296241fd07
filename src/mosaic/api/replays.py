"""Replays what a run recorded, in a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mosaic.contracts.errors import MosaicError, error_class
from mosaic.contracts.replays import ReplayReport
from mosaic.workers import python_module

REPLAY_COMMAND = python_module("mosaic.arena.replay_worker")


def replay_episodes(recording: Path, number: int | None = None) -> Iterator[ReplayReport]:
    """Simulate one recorded episode again, or all of them; yields each report when it is there."""
    command = [*REPLAY_COMMAND, "verify", str(recording), *([] if number is None else [str(number)])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for line in process.stdout:
                reply = json.loads(line)
                if "error" in reply:
                    raise error_class(reply["error"])(reply["message"])
                yield ReplayReport.model_validate(reply)
            if process.wait() != 0:
                last_words = process.stderr.read().strip().splitlines()[-1:]
                raise MosaicError(f"The replay ended with exit code {process.returncode}. {' '.join(last_words)}")
        finally:
            process.kill()
