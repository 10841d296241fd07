"""Decodes the bytes of a log into lines that can be shown: complete, of limited length, printable."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from mosaic.base.formatting import format_count
from mosaic.contracts.errors import BadReply, NotAllowed
from mosaic.trainer.client.trainer_client import LogMatch, LogMatches, TrainerClient

MAX_LINE_CHARS = 4000
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
"""Control sequences of terminals: colors, moves of the cursor, titles of the window."""
_COLOR_SEQUENCE = re.compile(r"\x1b\[([0-9;]*)m")


class Span(NamedTuple):
    """Some characters in one style."""

    text: str
    color: str = ""
    """One of COLORS; empty: the default."""
    is_bold: bool = False


COLORS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def parse_spans(line: str) -> list[Span]:
    """Split a line by its styles, and remove control sequences."""
    if "\x1b" not in line:
        return [Span(_strip_control_characters(line))]
    spans: list[Span] = []
    color, is_bold, at = "", False, 0
    for match in _COLOR_SEQUENCE.finditer(line):
        text = _strip_control_characters(line[at : match.start()])
        if text:
            spans.append(Span(text, color, is_bold))
        color, is_bold = _apply_style_codes(match.group(1), color, is_bold)
        at = match.end()
    rest = _strip_control_characters(line[at:])
    if rest or not spans:
        spans.append(Span(rest, color, is_bold))
    return spans


def _apply_style_codes(codes: str, color: str, is_bold: bool) -> tuple[str, bool]:
    numbers = [int(code) if code else 0 for code in codes.split(";")]
    while numbers:
        code = numbers.pop(0)
        if code == 0:
            color, is_bold = "", False
        elif code == 1:
            is_bold = True
        elif code == 22:
            is_bold = False
        elif 30 <= code <= 37 or 90 <= code <= 97:
            color = COLORS[code % 10]
        elif code == 39:
            color = ""
        elif code in (38, 48):
            # One of 256 colors (5;n), or red, green and blue (2;r;g;b): the first eight have names, others are ignored.
            kind = numbers.pop(0) if numbers else 0
            taken, numbers = numbers[: 1 if kind == 5 else 3], numbers[1 if kind == 5 else 3 :]
            if code == 38:
                color = COLORS[taken[0] % 8] if kind == 5 and taken and taken[0] < 16 else ""
    return color, is_bold


def _strip_control_characters(text: str) -> str:
    if text.isprintable():
        return text
    text = _ESCAPE_SEQUENCE.sub("", text)
    return "".join(char if char == "\t" or char.isprintable() else "�" for char in text)


class LogLine(NamedTuple):
    text: str
    offset: int
    """Of its first byte in the log."""
    is_stderr: bool = False


class _Partial:
    """The last line of a stream, as far as it is written."""

    def __init__(self) -> None:
        self.data = b""
        self.offset = 0


class LogLines:
    """Splits chunks of one stream, or of two that alternate, into lines, and keeps the incomplete last ones."""

    def __init__(self, offset: int = 0, starts_mid_line: bool = False) -> None:
        """`offset`: of the first chunk. `starts_mid_line`: its first line is incomplete and is skipped."""
        self.first_offset = offset
        """Of the first line that is not skipped."""
        self.end = offset
        self._starts_mid_line = starts_mid_line
        self._partials = {False: _Partial(), True: _Partial()}
        self._newest = False
        """The stream of the last chunk."""

    def add(self, data: bytes, is_stderr: bool = False) -> list[LogLine]:
        begin = self.end
        self.end += len(data)
        if self._starts_mid_line:
            skipped = data.find(b"\n") + 1
            if skipped == 0:
                self.first_offset = self.end
                return []
            self._starts_mid_line = False
            begin, data = begin + skipped, data[skipped:]
            self.first_offset = begin
        self._newest = is_stderr
        partial = self._partials[is_stderr]
        *complete, rest = data.split(b"\n")
        lines = []
        for line in complete:
            offset = partial.offset if partial.data else begin
            lines.append(LogLine(_decode(partial.data + line), offset, is_stderr))
            partial.data = b""
            begin += len(line) + 1
        if not partial.data:
            partial.offset = begin
        partial.data += rest
        if len(partial.data) > 8 * MAX_LINE_CHARS:
            partial.data = partial.data[: 4 * MAX_LINE_CHARS]  # an endless line: the rest would never be shown
        return lines

    @property
    def partial_line(self) -> LogLine | None:
        """The incomplete line of the stream that was written last."""
        partial = self._partials[self._newest]
        return LogLine(_decode(partial.data), partial.offset, self._newest) if partial.data else None

    def take_partial_lines(self) -> list[LogLine]:
        """What is incomplete, where nothing follows."""
        lines = []
        for is_stderr, partial in self._partials.items():
            if partial.data:
                lines.append(LogLine(_decode(partial.data), partial.offset, is_stderr))
            partial.data = b""
        return sorted(lines, key=lambda line: line.offset)


def _decode(data: bytes) -> str:
    return visible_text(data.decode(errors="replace"))


def visible_text(line: str) -> str:
    """Return what a terminal would show last: a carriage return starts the line again."""
    line = line.rstrip("\r")
    if "\r" in line:
        line = line[line.rindex("\r") + 1 :]
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} … ({len(line):,} characters)"


def format_daemon_line(line: str) -> str:
    """Format a line of the daemon's log, which is JSON: time, level, event and its fields."""
    try:
        record: Any = json.loads(line)
    except ValueError:
        return line
    if not isinstance(record, dict) or "event" not in record:
        return line
    level = str(record.pop("level", "info")).lower()
    at = record.pop("timestamp", record.pop("at", ""))
    if isinstance(at, (int, float)):
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    event = record.pop("event")
    color = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}.get(level, "")
    fields = " ".join(f"{name}={_format_value(value)}" for name, value in record.items())
    return f"{at}  {color}{level:7} {event}\x1b[0m  {fields}"


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) and " " not in value else json.dumps(value, ensure_ascii=False)


# --- Reads parts of a run's logs and of the daemon's, and searches them. No widget here.


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


# --- The matches of a search in a log, and which of them is shown.


class MatchCursor:
    def __init__(self, text: str = "", is_errors: bool = False, after: int = 0, is_silent: bool = False) -> None:
        """`after`: the offset of what is visible, at or after which the first match to show is.

        `is_silent`: that nothing was found is not reported.
        """
        self.text = text
        """What was searched for; empty: nothing, or errors."""
        self.is_errors = is_errors
        self._after = after
        self._is_silent = is_silent
        self._matches: LogMatches | None = None
        self._index = 0

    def set_matches(self, matches: LogMatches) -> None:
        self._matches = matches
        following = (index for index, match in enumerate(matches.lines) if match.offset >= self._after)
        self._index = next(following, 0)

    @property
    def current(self) -> LogMatch | None:
        return self._matches.lines[self._index] if self._matches is not None and self._matches.lines else None

    def step(self, direction: int) -> bool:
        """Go to the next (1) or the previous match (-1), continuing at the other end; False where there is none."""
        if self.current is None or self._matches is None:
            return False
        self._index = (self._index + direction) % len(self._matches.lines)
        return True

    def describe(self) -> str:
        """`3 of 10`."""
        if self._matches is None:
            return ""
        count = len(self._matches.lines)
        if not count and self._is_silent:
            return ""
        if not count:
            return "no error found" if self.is_errors else "not found"
        of = f"{self._index + 1:,} of {format_count(count)}{'+' if self._matches.is_limited else ''}"
        return f"error {of}" if self.is_errors else of
