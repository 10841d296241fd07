"""How figures are spread, in lines of text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from mosaic import formatting

MAX_BINS = 10
WIDTH = 40
_EIGHTH_BLOCKS = " ▏▎▍▌▋▊▉"


def histogram_rows(values: Sequence[float | None], width: int = WIDTH) -> list[tuple[str, str, int]]:
    """For each bin: its range, a bar and its count. Equal values share one bin."""
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    if not known:
        return []
    low, high = known[0], known[-1]
    bins = 1 if low == high else min(MAX_BINS, max(3, math.ceil(math.sqrt(len(known)))))
    size = (high - low) / bins
    counts = [0] * bins
    for value in known:
        counts[min(bins - 1, int((value - low) / size)) if size else 0] += 1
    most = max(counts)
    edges = [low + size * at for at in range(bins)] + [high]
    spans = [
        formatting.format_number(a) if a == b else f"{formatting.format_number(a)} to {formatting.format_number(b)}"
        for a, b in itertools.pairwise(edges)
    ]
    return [(span, format_bar(count / most, width), count) for span, count in zip(spans, counts, strict=True)]


def format_bar(fraction: float, width: int) -> str:
    """To an eighth of a sign."""
    eighths = math.ceil(fraction * width * 8)
    return ("█" * (eighths // 8) + _EIGHTH_BLOCKS[eighths % 8]).rstrip()
