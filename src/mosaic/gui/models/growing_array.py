"""Numbers that grow by a few at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class GrowingArray:
    """An array that doubles its room when it is full, so that adding to it rarely copies."""

    def __init__(self) -> None:
        self._buffer: Floats = np.empty(256)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def extend(self, more: Floats) -> None:
        end = self._count + len(more)
        if end > len(self._buffer):
            grown = np.empty(max(end, 2 * len(self._buffer)))
            grown[: self._count] = self._buffer[: self._count]
            self._buffer = grown
        self._buffer[self._count : end] = more
        self._count = end

    @property
    def values(self) -> Floats:
        """A view: numbers that are added later do not change it."""
        return self._buffer[: self._count]
