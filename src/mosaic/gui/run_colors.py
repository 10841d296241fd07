"""Which color of the cycle each run has: the same in the list, in charts and in comparisons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MAX_SAVED = 1000
"""Runs whose colors are remembered: the newest ones."""


class RunColors:
    """Runs take the colors of a cycle in turn, so that runs submitted one after the other differ."""

    def __init__(self, count: int) -> None:
        self._count = count
        """Of colors."""
        self._numbers: dict[str, int] = {}
        self._next = 0

    def load(self, saved: Any) -> None:
        """Take over what `save` returned, and nothing that is not a color."""
        if isinstance(saved, dict):
            self._numbers |= {
                run_id: number for run_id, number in saved.items() if type(number) is int and 0 <= number < self._count
            }
        if self._numbers:
            self._next = self._numbers[max(self._numbers)] + 1

    def save(self) -> dict[str, int]:
        return {run_id: self._numbers[run_id] for run_id in sorted(self._numbers)[-MAX_SAVED:]}

    def number(self, run_id: str) -> int:
        """The number of a run's color; a run that is not known yet gets the next one."""
        if run_id not in self._numbers:
            self._numbers[run_id] = self._next % self._count
            self._next += 1
        return self._numbers[run_id]

    def assign(self, run_ids: Iterable[str]) -> None:
        """Give colors to those that have none, the oldest first."""
        for run_id in sorted(run_ids):
            self.number(run_id)

    def separate(self, run_ids: Iterable[str]) -> bool:
        """Give runs that are shown together different colors, as far as there are enough. Return whether any changed.

        The first of two runs with the same color keeps it.
        """
        used: set[int] = set()
        repeated = []
        for run_id in run_ids:
            number = self.number(run_id)
            if number in used:
                repeated.append(run_id)
            used.add(number)
        free = [number for number in range(self._count) if number not in used]
        for run_id, number in zip(repeated, free, strict=False):
            self._numbers[run_id] = number
        return bool(repeated and free)
