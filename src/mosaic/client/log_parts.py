"""Parts of a run's log, and the lines of it that a search has found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mosaic.contracts import trainer_pb2 as pb


class LogChunk(NamedTuple):
    data: bytes
    offset: int
    """Byte offset after it."""
    is_stderr: bool = False


class LogMatch(NamedTuple):
    """A line of a log that was searched for."""

    offset: int
    """Byte offset of the line, as `log` counts it."""
    line: int
    """From 1, in its own file."""
    is_stderr: bool
    text: str
    """A long one is cut."""


class LogMatches(NamedTuple):
    lines: list[LogMatch]
    """In the order of the log."""
    is_limited: bool
    """There are more."""


def collect_matches(replies: Iterable[pb.LogSearchReply]) -> LogMatches:
    lines: list[LogMatch] = []
    is_limited = False
    for reply in replies:
        lines += (LogMatch(match.offset, match.line, match.is_stderr, match.text) for match in reply.matches)
        is_limited = is_limited or reply.is_limited
    return LogMatches(sorted(lines), is_limited)
