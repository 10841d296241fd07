"""The logs of the window and the command line, in the form of the daemon's: one JSON object a line."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from mosaic.base.files import file_size
from mosaic.contracts.names import topic

MAX_LOG_BYTES = 2 << 20
"""A longer log is renamed to `<name>.1`, which replaces an earlier one."""


def append_log(path: Path, event: str, level: str = "info", **fields: object) -> None:
    """Append one line, unless its folder does not exist: a log alone must not create a workspace.

    A log that cannot be written does not stop the program.
    """
    line = {"event": event, "topic": topic(event), **fields, "level": level, "timestamp": datetime.now(UTC).isoformat()}
    with suppress(OSError):
        if file_size(path) > MAX_LOG_BYTES:
            os.replace(path, path.with_name(f"{path.name}.1"))
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, json.dumps(line, default=str).encode() + b"\n")
        finally:
            os.close(descriptor)
