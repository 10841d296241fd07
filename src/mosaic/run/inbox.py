"""What the daemon tells this run while it goes on."""

from __future__ import annotations

import os
import time
from typing import Any

from mosaic.contracts.processes import start_time
from mosaic.journal import Follower


def process_started_at() -> float:
    """Seconds since the epoch; now, where the kernel does not tell."""
    try:
        with open("/proc/uptime", "rb") as file:
            uptime_s = float(file.read().split()[0])
        return time.time() - uptime_s + int(start_time(os.getpid())) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return time.time()


class Inbox:
    """New commands, oldest first. Those before `offset` (bytes) or `since` (a time) are passed over."""

    def __init__(self, path: str | os.PathLike[str], *, offset: int = 0, since: float = 0.0) -> None:
        self._follower = Follower(path, offset)
        self._since = since

    def read(self) -> list[dict[str, Any]]:
        """One os.stat when nothing is new."""
        return [line.body for line in self._follower.read() if line.body.get("at", self._since) >= self._since]
