"""What the trainer works on and what is queued, in the daemon's start order. No Qt."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView


def sort_queue(views: Iterable[RunView]) -> list[RunView]:
    """Return the unfinished runs: those that hold a slot, oldest first, then the queue by the daemon's positions."""
    active = [view for view in views if view.stage != "finished"]
    return sorted(active, key=lambda view: (*_queue_key(view), view.run_id))


def _queue_key(view: RunView) -> tuple[bool, float]:
    position = view.queue_position
    return view.stage == "queued", math.inf if position is None else position
