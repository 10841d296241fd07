"""How figures are spread, in lines of text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from mosaic.cli import output

MOST_BINS = 10
WIDTH = 40
_PARTS = " ▏▎▍▌▋▊▉"


def histogram(values: Sequence[float | None], width: int = WIDTH) -> list[tuple[str, str, int]]:
    """For each bin its span in words, a bar and how many are in it. Equal figures are one bin."""
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    if not known:
        return []
    low, high = known[0], known[-1]
    bins = 1 if low == high else min(MOST_BINS, max(3, math.ceil(math.sqrt(len(known)))))
    size = (high - low) / bins
    counts = [0] * bins
    for value in known:
        counts[min(bins - 1, int((value - low) / size)) if size else 0] += 1
    most = max(counts)
    edges = [low + size * at for at in range(bins)] + [high]
    spans = [
        output.figure(a) if a == b else f"{output.figure(a)} to {output.figure(b)}"
        for a, b in itertools.pairwise(edges)
    ]
    return [(span, bar(count / most, width), count) for span, count in zip(spans, counts, strict=True)]


def bar(share: float, width: int) -> str:
    """To an eighth of a sign."""
    eighths = math.ceil(share * width * 8)
    return ("█" * (eighths // 8) + _PARTS[eighths % 8]).rstrip()
