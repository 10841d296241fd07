"""Reading a journal from a byte offset, while somebody else appends to it."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

_CHUNK_BYTES = 1 << 20


class Line(NamedTuple):
    body: dict[str, Any]
    end: int
    """The byte offset behind it."""


class Follower:
    """Gives the complete lines behind `offset`. A line that is no event is counted and passed over."""

    def __init__(self, path: str | os.PathLike[str], offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.malformed_count = 0
        """Lines that were no JSON object with seq and kind."""

    def read(self, limit_bytes: int = 8 * _CHUNK_BYTES) -> list[Line]:
        """What is new, up to about `limit_bytes`; an unfinished last line waits for the next call."""
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
        at = self.offset
        for raw in data[: data.rfind(b"\n")].split(b"\n"):
            at += len(raw) + 1
            body = _event(raw)
            if body is None:
                self.malformed_count += 1 if raw else 0
            else:
                lines.append(Line(body, at))
        self.offset = at
        return lines


def _event(raw: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    if isinstance(body, dict) and isinstance(body.get("seq"), int) and isinstance(body.get("kind"), str):
        return body
    return None


def read_all(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return every event of a file that is no longer appended to."""
    follower = Follower(path)
    events: list[dict[str, Any]] = []
    while lines := follower.read():
        events += (line.body for line in lines)
    return events
