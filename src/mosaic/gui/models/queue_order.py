"""What the trainer works on and what waits, in the order in which it will be started. No Qt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]
ACTIVE_STAGES = ("starting", "running", "paused", "stopping")


def sort_queue(views: Iterable[Json]) -> list[Json]:
    """Those that hold a slot, oldest first; then the queue: higher priority first, then first come, first served."""
    active = [view for view in views if view["stage"] != "finished"]
    held = sorted((view for view in active if view["stage"] in ACTIVE_STAGES), key=lambda view: view["run_id"])
    queued = [view for view in active if view["stage"] == "queued"]
    return held + sorted(queued, key=lambda view: (-view["priority"], view["queued_at"], view["run_id"]))
