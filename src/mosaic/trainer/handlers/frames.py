"""Live frames for viewers on other machines: composed, compressed, the newest only."""

from __future__ import annotations

import asyncio
import io
import json
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import structlog

from mosaic.base.fastlane import (
    UNAVAILABLE,
    FrameRequest,
    LaneView,
    compose_grid,
    full_grid,
    lanes_folder,
    limit_size,
    scale_image_smoothly,
)
from mosaic.contracts import names as semconv
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput
from mosaic.contracts.trainer_pb2_handlers import Handlers
from mosaic.trainer.server import Context, iterate_in, run_in
from mosaic.trainer.services import Services

log = structlog.get_logger("mosaic.trainer.handlers.frames")

RATE_HZ = 30.0
RATES = (0.2, 60.0)
DEFAULT_SIDE_PX = 960
SIDE_RANGE_PX = (64, 1920)
STATE_S = 2.0
"""How often a viewer without frames is sent the state."""
TICK_S = 0.01
"""How often a viewer's frames are polled."""
_LEVELS = ((80, 1.0), (65, 1.0), (50, 0.75), (35, 0.5), (25, 0.35))
"""JPEG quality and share of the side, from a fast connection to a slow one."""
MAX_QUEUE_DELAY_S = 0.2
"""A frame that waits longer than this for earlier ones shows that the connection is saturated."""
MAX_IN_FLIGHT = 2
"""Frames on their way at once: enough for a distant viewer, few enough that what is seen is new."""
QUEUE_REPORT_S = 10.0
"""How often to log that a viewer has not seen the frames that are on their way."""
_FAST_FRAMES_TO_UPGRADE = 20
_WEIGHT = 0.3


class Throttle:
    """Adapts quality and size to the connection. Pure: it is given the latency of each frame."""

    def __init__(self) -> None:
        self._level = 0
        self._fast_count = 0
        self._fastest_s = math.inf
        """What the distance alone costs."""
        self._queue_delay_s = 0.0

    @property
    def quality(self) -> int:
        return _LEVELS[self._level][0]

    @property
    def scale(self) -> float:
        return _LEVELS[self._level][1]

    def record_latency(self, latency_s: float) -> None:
        """Frames that have to wait make the next ones smaller; many that need not, larger."""
        self._fastest_s = min(self._fastest_s, latency_s)
        waited_s = latency_s - self._fastest_s
        self._queue_delay_s += _WEIGHT * (waited_s - self._queue_delay_s)
        if self._queue_delay_s > MAX_QUEUE_DELAY_S:
            self._level = min(self._level + 1, len(_LEVELS) - 1)
            self._queue_delay_s = 0.0
            self._fast_count = 0
        elif waited_s < MAX_QUEUE_DELAY_S / 2:
            self._fast_count += 1
            if self._fast_count >= _FAST_FRAMES_TO_UPGRADE and self._level:
                self._level -= 1
                self._fast_count = 0


def relay_frames(
    folder: str,
    request: pb.FramesRequest,
    is_open: Callable[[], bool],
    end_reason: Callable[[], str],
    acknowledged_count: Callable[[], int],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[pb.FrameReply | None]:
    """Replies to one viewer, until `is_open` returns false or `end_reason` returns why no more frames come.

    None means that there is nothing to send before the next tick.
    `acknowledged_count` returns how many frames the viewer has seen: no more than a few are ever on their way.
    """
    rate_hz = _clamp(request.rate_hz, RATES, RATE_HZ)
    side = int(_clamp(request.max_side, SIDE_RANGE_PX, DEFAULT_SIDE_PX))
    throttle = Throttle()
    sent_times: deque[float] = deque()  # of the frames that the viewer has not seen yet
    acknowledged = 0
    view = LaneView(
        folder,
        list(request.envs),
        FrameRequest(rate_hz if request.rate_hz else None, request.budget or None),
        log_event=_log_event,
    )
    next_at = sent_at = next_report_at = -math.inf
    sent_state: tuple[str, str] | None = None
    is_new = False
    try:
        while is_open():
            is_new = bool(view.poll()) or is_new
            now = clock()
            if why_over := end_reason():
                yield pb.FrameReply(state=UNAVAILABLE, reason=why_over)
                return
            while sent_times and acknowledged < acknowledged_count():
                throttle.record_latency(now - sent_times.popleft())
                acknowledged += 1
            state = (view.state, view.reason)
            if is_new and now >= next_at and len(sent_times) < MAX_IN_FLIGHT:
                is_new = False
                next_at = now + 1 / rate_hz
                reply = _encode_frame(view, side, throttle)
                sent_times.append(clock())
                if len(sent_times) == MAX_IN_FLIGHT and now >= next_report_at:
                    next_report_at = now + QUEUE_REPORT_S
                    _log_event(semconv.FASTLANE_QUEUE_DEPTH, lanes=folder, depth=MAX_IN_FLIGHT, seen=acknowledged)
            elif state != sent_state or now >= sent_at + STATE_S:
                reply = pb.FrameReply(state=view.state, reason=view.reason)
            else:
                yield None
                continue
            yield reply
            sent_state, sent_at = state, now
    finally:
        view.close()


def _log_event(event: str, **fields: Any) -> None:
    (log.warning if event in semconv.FASTLANE_PROBLEMS else log.info)(event, **fields)


def _clamp(value: float, bounds: tuple[float, float], default: float) -> float:
    return min(max(value, bounds[0]), bounds[1]) if value and value == value else default


def _encode_frame(view: LaneView, side: int, throttle: Throttle) -> pb.FrameReply:
    try:
        from PIL import Image
    except ImportError:
        reason = "the daemon needs Pillow to send frames: pip install 'mosaic-rl[train]'"
        return pb.FrameReply(state=UNAVAILABLE, reason=reason)
    images = view.rgb_images()
    shape, size = full_grid(images)
    jpeg = io.BytesIO()
    size = limit_size(*size, max(1, int(side * throttle.scale)))
    grid = compose_grid(images, shape, *size, scale_image_smoothly)
    Image.fromarray(grid).save(jpeg, "JPEG", quality=throttle.quality)
    hud = {
        "rows": shape.rows,
        "columns": shape.columns,
        "quality": throttle.quality,
        "torn": view.torn_reads,
        "envs": [hud._asdict() for hud in view.huds],
    }
    return pb.FrameReply(state=view.state, reason=view.reason, image=jpeg.getvalue(), hud_json=json.dumps(hud))


async def stream_frames(
    services: Services, requests: AsyncIterator[pb.FramesRequest], context: Context
) -> AsyncIterator[pb.FrameReply]:
    records, requests = services.records, aiter(requests)
    first = await anext(requests, None)
    if first is None:
        raise BadInput("A stream of frames starts with a request that names its run; none came.")
    run_id = await run_in(services.threads.streams, records.resolve, first.run)
    seen = 0

    async def listen() -> None:
        nonlocal seen
        try:
            async for request in requests:
                seen = request.seen
        except Exception as error:  # the viewer is gone, which the stream itself notices
            log.debug("viewer_left", error=str(error))

    replies = relay_frames(
        lanes_folder(records.folder(run_id).path),
        first,
        is_open=lambda: not services.feed.is_closed,
        end_reason=lambda: "" if records.get(run_id).is_active else "the run has ended",
        acknowledged_count=lambda: seen,
    )
    listening = asyncio.create_task(listen())
    try:
        async with aclosing(iterate_in(services.threads.frames, replies)) as parts:
            async for reply in parts:
                if reply is None:
                    await asyncio.sleep(TICK_S)
                else:
                    yield reply
    finally:
        listening.cancel()


HANDLERS: Handlers = {"StreamFrames": stream_frames}
