"""Reads a journal from a byte offset while another process appends to it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

_CHUNK_BYTES = 1 << 20


class Line(NamedTuple):
    body: dict[str, Any]
    end: int
    """The byte offset after the line."""


class Follower:
    """Returns the complete lines after `offset`. A line that is not a valid event is counted and skipped."""

    def __init__(self, path: str | os.PathLike[str], offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.malformed_count = 0
        """Number of lines that were not a JSON object with `seq` and `kind`."""

    def read(self, limit_bytes: int = 8 * _CHUNK_BYTES) -> list[Line]:
        """Return new lines, up to about `limit_bytes`; an incomplete last line is left for the next call."""
        try:
            if os.stat(self.path).st_size <= self.offset:
                return []
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read(limit_bytes)
                while b"\n" not in data:
                    more = file.read(_CHUNK_BYTES)
                    if not more:
                        return []
                    data += more
        except FileNotFoundError:
            return []
        lines = []
        end = self.offset
        for raw in data[: data.rfind(b"\n")].split(b"\n"):
            end += len(raw) + 1
            body = _parse_event(raw)
            if body is None:
                self.malformed_count += 1 if raw else 0
            else:
                lines.append(Line(body, end))
        self.offset = end
        return lines

    def read_rest(self) -> Iterator[Line]:
        """Yield all new lines, however many they are."""
        while lines := self.read():
            yield from lines


def _parse_event(raw: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    if isinstance(body, dict) and isinstance(body.get("seq"), int) and isinstance(body.get("kind"), str):
        return body
    return None


def read_all(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return every event of a file that is no longer written to."""
    return [line.body for line in Follower(path).read_rest()]
