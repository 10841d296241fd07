"""Reads parts of a run's logs and of the daemon's, and searches them. No widget here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from mosaic.client import TrainerClient
from mosaic.client.trainer_client import LogMatch, LogMatches
from mosaic.contracts.errors import BadReply, NotAllowed
from mosaic.gui.models.log_text import LogLine, LogLines, format_daemon_line

MAX_READ_BYTES = 1024 * 1024
"""The most that is read at once, so that a run with much output does not delay the others."""
MAX_DAEMON_MATCHES = 10_000


class LogStream(StrEnum):
    BOTH = "both"
    STDOUT = "stdout"
    STDERR = "stderr"
    DAEMON = "daemon"
    """What the daemon logged about the run."""


class LogPart(NamedTuple):
    data: bytes
    is_stderr: bool = False


@dataclass(frozen=True)
class LogSlice:
    """A part of a log."""

    parts: tuple[LogPart, ...]
    start: int
    end: int


@dataclass(frozen=True)
class LogSource:
    """One log of one run. Its methods are called in a background thread."""

    run_id: str
    stream: LogStream
    daemon_log: Path
    is_remote: bool

    def read(self, trainer: TrainerClient, offset: int, until: int | None = None) -> LogSlice:
        """Read from `offset`, or from `-offset` bytes before the end, up to `until` or to the end."""
        if self.stream is LogStream.DAEMON:
            return _read_daemon_log(self._daemon_path(), offset, until)
        return _read_run_log(trainer, self.run_id, self.stream, offset, until)

    def search(self, trainer: TrainerClient, text: str) -> LogMatches:
        """Find the lines of the whole log that contain a text."""
        if self.stream is LogStream.DAEMON:
            return _search_daemon_log(self._daemon_path(), self.run_id, lambda line: text.lower() in line.lower())
        return trainer.search_log(self.run_id, text, *self._flags)

    def find_errors(self, trainer: TrainerClient) -> LogMatches:
        if self.stream is LogStream.DAEMON:
            is_error = '"level": "error"'.__contains__
            return _search_daemon_log(self._daemon_path(), self.run_id, lambda line: is_error(line))
        return trainer.find_log_errors(self.run_id, *self._flags)

    def visible_lines(self, lines: list[LogLine]) -> list[LogLine]:
        """Return what is shown of them: of the daemon's log, the lines about the run."""
        if self.stream is not LogStream.DAEMON:
            return lines
        return [line._replace(text=format_daemon_line(line.text)) for line in lines if self.run_id in line.text]

    @property
    def _flags(self) -> tuple[bool, bool]:
        return self.stream is LogStream.STDERR, self.stream is LogStream.BOTH

    def _daemon_path(self) -> Path:
        if self.is_remote:
            raise NotAllowed("The daemon's log is on the trainer's machine: logs/trainer.log in its workspace.")
        return self.daemon_log


def _read_run_log(trainer: TrainerClient, run_id: str, stream: LogStream, offset: int, until: int | None) -> LogSlice:
    parts: list[LogPart] = []
    size, end = 0, max(0, offset)
    is_stderr, is_both = stream is LogStream.STDERR, stream is LogStream.BOTH
    chunks: Any = trainer.log(run_id, is_stderr, offset, is_both=is_both)
    for chunk in chunks:
        data = chunk.data
        if until is not None and chunk.offset > until:
            data = data[: len(data) - (chunk.offset - until)]
        parts.append(LogPart(data, chunk.is_stderr))
        size += len(data)
        if chunk.offset < len(chunk.data):
            raise BadReply("The trainer sent a part of a log that ends before it begins.")
        end = chunk.offset if until is None else min(until, chunk.offset)
        if size >= MAX_READ_BYTES or end == until:
            chunks.close()
            break
    return LogSlice(tuple(parts), end - size, end)


# --- the daemon's log: one file for all runs


def _read_daemon_log(path: Path, offset: int, until: int | None) -> LogSlice:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            file.seek(start)
            data = file.read(MAX_READ_BYTES if until is None else until - start)
    except FileNotFoundError:
        return LogSlice((), 0, 0)
    return LogSlice((LogPart(data),) if data else (), start, start + len(data))


def _search_daemon_log(path: Path, run_id: str, fits: Callable[[str], bool]) -> LogMatches:
    matches: list[LogMatch] = []
    for number, line in enumerate(_read_daemon_lines(path), 1):
        if run_id in line.text and fits(line.text):
            if len(matches) == MAX_DAEMON_MATCHES:
                return LogMatches(matches, True)
            matches.append(LogMatch(line.offset, number, False, line.text))
    return LogMatches(matches, False)


def _read_daemon_lines(path: Path) -> Iterator[LogLine]:
    lines, at = LogLines(), 0
    while True:
        part = _read_daemon_log(path, at, None)
        if not part.parts:
            return
        yield from lines.add(part.parts[0].data)
        at = part.end
