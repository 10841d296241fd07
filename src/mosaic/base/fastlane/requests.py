"""What a reader asks of the writer of a lane, as it is stated in the lane's heartbeat file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

RATE_BOUNDS_HZ = (0.5, 120.0)
BUDGET_BOUNDS = (0.001, 0.5)
"""What a reader may ask for."""
MAX_TOTAL_HZ = 60.0
"""Frames per second of all environments together, unless more are asked for of each: drawing them takes processor time
from a small machine, too."""
FOCUS_SHARE = 0.5
"""Of the budget, for the environment that somebody looks at among several."""


class FrameRequest(NamedTuple):
    rate_hz: float | None = None
    """Frames per second of each environment; None: the writer's own rate, divided among those that are watched."""
    budget: float | None = None
    """Share of the run's time that the frames of all environments may take; None: the writer's own limit."""
    share: float | None = None
    """Of the budget, for this lane; None: equal parts for all lanes that are watched."""
    lane_count: int = 1
    """The lanes among which the reader divides the budget."""


NO_REQUEST = FrameRequest()


def divide_request(
    request: FrameRequest, envs: Sequence[int], focused_env: int | None = None
) -> dict[int, FrameRequest]:
    """Return what to ask of the lane of each environment; most goes to the one that somebody looks at."""
    count = len(envs)
    if request == NO_REQUEST or not count:
        return dict.fromkeys(envs, request)
    if count == 1 or focused_env not in envs:
        return dict.fromkeys(envs, _part(request, 1 / count, count))
    focused = _part(request, FOCUS_SHARE, count)._replace(rate_hz=request.rate_hz)
    other = _part(request, (1 - FOCUS_SHARE) / (count - 1), count)
    return {env: focused if env == focused_env else other for env in envs}


def _part(request: FrameRequest, share: float, count: int) -> FrameRequest:
    rate_hz = request.rate_hz
    if rate_hz is not None:
        rate_hz = min(rate_hz, max(rate_hz, MAX_TOTAL_HZ) * share)
    return FrameRequest(rate_hz, request.budget, share, count)


def encode_request(request: FrameRequest, written_at: float) -> bytes:
    return b"" if request == NO_REQUEST else json.dumps({**request._asdict(), "at": written_at}).encode()


def decode_request(content: bytes) -> tuple[FrameRequest, float]:
    """Return a request and when it was written (seconds since the epoch). Raises ValueError if it is incomplete.

    Values of a wrong kind count as not given, others are moved into their bounds.
    """
    if not content:
        return NO_REQUEST, 0.0
    fields: Any = json.loads(content)
    if not isinstance(fields, dict):
        return NO_REQUEST, 0.0
    request = FrameRequest(
        _clamp(fields.get("rate_hz"), RATE_BOUNDS_HZ),
        _clamp(fields.get("budget"), BUDGET_BOUNDS),
        _clamp(fields.get("share"), (0.001, 1.0)),
        int(_clamp(fields.get("lane_count"), (1, 1e6)) or 1),
    )
    return request, _clamp(fields.get("at"), (0.0, math.inf)) or 0.0


def _clamp(value: object, bounds: tuple[float, float]) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return None
    return min(max(float(value), bounds[0]), bounds[1])
