"""Decodes the bytes of a log into lines that can be shown: complete, of limited length, printable."""

from __future__ import annotations

import json
import re
import time
from typing import Any, NamedTuple

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
