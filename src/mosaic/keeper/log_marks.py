"""Records in which order the worker writes to stdout and stderr."""

from __future__ import annotations

import time
from contextlib import suppress

from mosaic.common.files import file_size
from mosaic.common.log_order import LogMark, append_mark
from mosaic.contracts.folder import RunFolder

_FREQUENT_MARKS = 1000
"""This number may follow each other with every tick of the keeper; later ones are a second apart."""
_RARE_S = 1.0


class LogMarks:
    """Appends a mark where stderr has grown, so that a log on stdout alone costs nothing."""

    def __init__(self, folder: RunFolder, log_name: str, stderr_begin: int) -> None:
        """`stderr_begin`: the size of stderr before this attempt."""
        self._stdout, self._stderr = folder.stdout_log(log_name), folder.stderr_log(log_name)
        self._path = folder.log_order(log_name)
        self._marked_size = stderr_begin
        self._count = 0
        self._next_at = 0.0

    def poll(self, now: float) -> None:
        if now >= self._next_at:
            self.mark_growth()
            self._next_at = now + (0.0 if self._count < _FREQUENT_MARKS else _RARE_S)

    def mark_growth(self) -> None:
        """Also called once at the end."""
        with suppress(OSError):  # the run does not depend on it
            # In this order: what is written in between belongs to the next mark.
            stderr_size = file_size(self._stderr)
            if stderr_size == self._marked_size:
                return
            append_mark(self._path, LogMark(time.time(), file_size(self._stdout), stderr_size))
            self._marked_size, self._count = stderr_size, self._count + 1
