"""Parses metrics from stdout for programs that the probe cannot enter: `python -I`, or not Python at all.

Only while no process of the run writes a journal: a journal is more precise, and nothing may be counted twice.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path

from mosaic.common.console_parser import ConsoleParser, ConsoleReading
from mosaic.common.files import file_size
from mosaic.contracts.folder import RunFolder
from mosaic.journal import Journal
from mosaic.journal.points import finite_or_none

_POLL_S = 1.0
_CHUNK_BYTES = 1 << 20


class ConsoleMetrics:
    def __init__(self, folder: RunFolder, log_name: str) -> None:
        self._folder = folder
        self._path = folder.stdout_log(log_name)
        self._console_journal = folder.path / "journal.console.jsonl"
        self._offset = self._size = file_size(self._path)
        self._reader = ConsoleParser()
        self._journal: Journal | None = None
        self._episodes = 0
        self._next_poll_at = 0.0
        self._is_disabled = False

    def poll(self, now: float) -> None:
        """Reads up to the size seen by the previous poll, so that a process with a journal had time to write to it."""
        if now < self._next_poll_at or self._is_disabled:
            return
        self._next_poll_at = now + _POLL_S
        until, self._size = self._size, file_size(self._path)
        self._read(until)

    def close(self) -> None:
        self._read(file_size(self._path))
        if self._journal is not None:
            self._journal.close()

    def _read(self, until: int) -> None:
        if self._is_disabled or until <= self._offset:
            return
        if any(_has_records(path) for path in self._folder.journals() if path != self._console_journal):
            self._is_disabled = True
            return
        with suppress(OSError), open(self._path, "rb") as file:
            file.seek(self._offset)
            while self._offset < until:
                data = file.read(min(_CHUNK_BYTES, until - self._offset))
                if not data:
                    break
                self._offset += len(data)
                self._write_readings(self._reader.feed(data.decode(errors="replace")))

    def _write_readings(self, readings: list[ConsoleReading]) -> None:
        rows, series, now = [], dict[str, list[list[object]]](), time.time()
        for reading in readings:
            step = reading.step or 0
            if reading.episodic_return is not None and math.isfinite(reading.episodic_return):
                self._episodes += 1
                rows.append([self._episodes, 0, step, now, reading.episodic_return, reading.episodic_length or 0])
            for tag, value in reading.scalars.items():
                series.setdefault(tag, []).append([step, now, finite_or_none(value)])
        if not readings:
            return
        if self._journal is None:
            self._journal = Journal(self._console_journal)
        if rows:
            self._journal.append("episodes", rows=rows)
        if series:
            self._journal.append("metrics", series=series)
        last = readings[-1]
        total = {} if last.total_timesteps is None else {"total_timesteps": last.total_timesteps}
        self._journal.append("progress", global_step=last.step, **total)


def _has_records(path: Path) -> bool:
    """Return whether a journal has more than the handshake, which is its first line."""
    try:
        with open(path, "rb") as file:
            file.readline()
            return bool(file.read(1))
    except OSError:
        return False
