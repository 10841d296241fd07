"""Decodes the bytes of a log into lines that can be shown: complete, of limited length, printable."""

from __future__ import annotations

import codecs
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


class LogDecoder:
    """Converts chunks of bytes to complete lines, and keeps the incomplete last one."""

    def __init__(self, starts_mid_line: bool = False) -> None:
        """`starts_mid_line`: the first line is incomplete and is skipped."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._partial_line = ""
        self._starts_mid_line = starts_mid_line
        self.skipped_prefix = ""
        """The end of a line that starts in an earlier part."""

    @property
    def partial_line(self) -> str:
        """The last line, as far as it is written."""
        return "" if self._starts_mid_line else self._partial_line

    def decode(self, data: bytes, is_last: bool = False) -> list[str]:
        *lines, rest = (self._partial_line + self._decoder.decode(data, is_last)).split("\n")
        if len(rest) > 4 * MAX_LINE_CHARS:
            rest = rest[: 2 * MAX_LINE_CHARS]  # an endless line: the rest would never be shown
        self._partial_line = rest
        if self._starts_mid_line and lines:
            self._starts_mid_line = False
            self.skipped_prefix = lines.pop(0)
        return [visible_text(line) for line in lines]


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
