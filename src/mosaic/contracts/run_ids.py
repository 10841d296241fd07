"""Short forms of run ids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

SHORT_ID_LENGTH = 10
"""The part of a run id that encodes the millisecond."""


def short_id(run_id: str) -> str:
    return run_id[:SHORT_ID_LENGTH]


def short_ids(run_ids: Sequence[str]) -> dict[str, str]:
    """Return the shortest prefixes that distinguish these runs."""
    length = SHORT_ID_LENGTH
    for one, other in itertools.pairwise(sorted(run_ids)):
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
        length = max(length, same + 1)
    return {run_id: run_id[:length] for run_id in run_ids}
