"""How means and their intervals are printed."""

from __future__ import annotations

import math

from mosaic.base import formatting
from mosaic.base.curves import ConfidenceInterval


def format_with_interval(value: ConfidenceInterval) -> str:
    """`482.1 [450.2, 500]`; without the interval where there is none."""
    if not math.isfinite(value.point):
        return formatting.PLACEHOLDER
    if not math.isfinite(value.low) or value.low == value.high:
        return formatting.format_number(value.point)
    point, low, high = map(formatting.format_number, (value.point, value.low, value.high))
    return f"{point} [{low}, {high}]"


def format_interval(value: ConfidenceInterval) -> str:
    """`450.2 to 500`."""
    if not math.isfinite(value.low):
        return formatting.PLACEHOLDER
    return f"{formatting.format_number(value.low)} to {formatting.format_number(value.high)}"
