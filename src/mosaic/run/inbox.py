"""Reads commands from the daemon to a running run."""

from __future__ import annotations

import os
import time
from typing import Any

from mosaic.common.processes import start_time
from mosaic.contracts.folder import INBOX_OFFSET_VARIABLE, RUN_DIR_VARIABLE, RunFolder
from mosaic.journal import Follower


class Inbox:
    """Returns new commands, oldest first.

    It starts where this attempt does: at the offset given by the keeper, else at this process's start time. Commands
    for an earlier attempt in the same process are skipped too. `is_whole`: it starts with the run's first command.
    """

    def __init__(self, folder: RunFolder, is_whole: bool = False) -> None:
        offset = os.environ.get(INBOX_OFFSET_VARIABLE, "")
        self._since = 0.0
        if not is_whole and os.environ.get(RUN_DIR_VARIABLE) == str(folder.origin) and offset.isdecimal():
            self._follower = Follower(folder.inbox, int(offset))
            return
        self._follower = Follower(folder.inbox)
        self._since = 0.0 if is_whole else _process_started_at()
        if not is_whole and folder.journal.exists():
            self._since = max(self._since, folder.journal.stat().st_mtime)

    def read(self) -> list[dict[str, Any]]:
        """Return new commands; costs one os.stat if there are none."""
        try:
            lines = self._follower.read()
        except OSError:
            return []  # it is read again in a moment: no reason to stop the training
        return [line.body for line in lines if line.body.get("at", self._since) >= self._since]


def _process_started_at() -> float:
    """Return this process's start time in seconds since the epoch; the current time if it is unknown."""
    try:
        with open("/proc/uptime", "rb") as file:
            uptime_s = float(file.read().split()[0])
        return time.time() - uptime_s + int(start_time(os.getpid())) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return time.time()
