"""The matches of a search in a log, and which of them is shown."""

from __future__ import annotations

from mosaic.client.trainer_client import LogMatch, LogMatches
from mosaic.formatting import format_count


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
