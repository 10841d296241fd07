"""Progress on stderr, for commands and scripts."""

from __future__ import annotations

import sys


class ProgressLine:
    """Shows progress on stderr: one line that is rewritten in a terminal, else a line for each session that ends."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._last = ""

    def __call__(self, line: str) -> None:
        if self._is_terminal:
            print("\r" + line.ljust(len(self._last)), end="", file=sys.stderr, flush=True)
            self._last = line
        elif (key := line.partition(",")[0]) != self._last:
            print(line, file=sys.stderr, flush=True)
            self._last = key

    def close(self) -> None:
        if self._is_terminal and self._last:
            print("\r" + " " * len(self._last) + "\r", end="", file=sys.stderr, flush=True)
