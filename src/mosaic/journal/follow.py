"""Reads a journal from a byte offset while another process appends to it."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

from mosaic.contracts.semconv import MAX_TIME

MAX_LINE_BYTES = 4 << 20
"""A longer line is skipped."""
MAX_DEPTH = 32
"""Of nested lists and objects in a line."""
_CHUNK_BYTES = 1 << 20


class Line(NamedTuple):
    body: dict[str, Any]
    end: int
    """The byte offset after the line."""


class Follower:
    """Returns the complete lines after `offset`. A line that is not a valid event is counted and skipped.

    A file that is shorter than before was emptied or replaced: it is read from its beginning.
    Any program may write to these files: what is returned is safe to store and to encode again.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.begin = offset
        """Where the last `read` started."""
        self.malformed_count = 0
        """Number of lines that were not events. Of a line that is too long, each part counts."""

    def read(self, limit_bytes: int = 8 * _CHUNK_BYTES) -> list[Line]:
        """Return new lines, up to about `limit_bytes`; an incomplete last line is left for the next call."""
        try:
            status = os.stat(self.path)
            if status.st_size < self.offset:
                self.offset = 0
            self.begin = self.offset
            if status.st_size == self.offset or not stat.S_ISREG(status.st_mode):
                return []
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read(limit_bytes)
                while b"\n" not in data and len(data) < MAX_LINE_BYTES:
                    more = file.read(_CHUNK_BYTES)
                    if not more:
                        return []
                    data += more
        except FileNotFoundError:
            return []
        if b"\n" not in data:
            self.offset += len(data)
            self.malformed_count += 1
            return []
        lines = []
        end = self.offset
        for raw in data[: data.rfind(b"\n")].split(b"\n"):
            end += len(raw) + 1
            body = parse_event(raw)
            if body is None:
                self.malformed_count += 1 if raw else 0
            else:
                lines.append(Line(body, end))
        self.offset = end
        return lines

    def read_rest(self) -> Iterator[Line]:
        """Yield all new lines, however many they are."""
        while True:
            before = self.offset
            yield from self.read()
            if self.offset == before:
                return


def parse_event(raw: bytes) -> dict[str, Any] | None:
    """Decode a line; None where it is not an event or cannot be stored. Numbers that are not finite become None."""
    if len(raw) > MAX_LINE_BYTES:
        return None
    try:
        text = raw.decode()
        body = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:  # an escaped surrogate without its pair cannot be encoded
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or type(body.get("seq")) is not int or not isinstance(body.get("kind"), str):
        return None
    at = body.get("at", 0.0)
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at <= MAX_TIME:
        return None
    return None if _is_deeper(body, MAX_DEPTH) else body


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        nested = [part for part in level if isinstance(part, (dict, list))]
        if not nested:
            return False
        level = [part for parts in nested for part in (parts.values() if isinstance(parts, dict) else parts)]
    return True


def _parse_int(text: str) -> int:
    value = int(text)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("The number does not fit into 64 bits.")
    return value


def _parse_float(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


_DECODER = json.JSONDecoder(parse_int=_parse_int, parse_float=_parse_float, parse_constant=lambda _: None)


def read_all(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return every event of a file that is no longer written to."""
    return [line.body for line in Follower(path).read_rest()]
