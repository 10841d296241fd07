"""Reads commands from the daemon to a running run."""

from __future__ import annotations

import os
import time
from typing import Any

from mosaic.common.processes import start_time
from mosaic.journal import Follower


def process_started_at() -> float:
    """Return this process's start time in seconds since the epoch; the current time if it is unknown."""
    try:
        with open("/proc/uptime", "rb") as file:
            uptime_s = float(file.read().split()[0])
        return time.time() - uptime_s + int(start_time(os.getpid())) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return time.time()


class Inbox:
    """Returns new commands, oldest first. Those before `offset` (bytes) or `since` (a time) are skipped."""

    def __init__(self, path: str | os.PathLike[str], *, offset: int = 0, since: float = 0.0) -> None:
        self._follower = Follower(path, offset)
        self._since = since

    def read(self) -> list[dict[str, Any]]:
        """Return new commands; costs one os.stat if there are none."""
        return [line.body for line in self._follower.read() if line.body.get("at", self._since) >= self._since]
