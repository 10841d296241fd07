"""Live frames for viewers on other machines: composed, compressed, the newest only."""

from __future__ import annotations

import io
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from mosaic.fastlane import (
    UNAVAILABLE,
    LaneView,
    as_rgb,
    compose_grid,
    fit_size,
    grid_shape,
    hud_fields,
    scale_image_smoothly,
)

log = structlog.get_logger("mosaic.trainer.frame_relay")

RATE_HZ = 30.0
RATES = (0.2, 60.0)
DEFAULT_SIDE_PX = 960
SIDE_RANGE_PX = (64, 1920)
STATE_S = 2.0
"""A viewer that gets no frame hears so often that it is not forgotten."""
TICK_S = 0.005
_LEVELS = ((80, 1.0), (65, 1.0), (50, 0.75), (35, 0.5), (25, 0.35))
"""JPEG quality and share of the side, from a fast connection to a slow one."""
MAX_QUEUE_DELAY_S = 0.2
"""A frame that waits longer than this for earlier ones shows that the connection is saturated."""
MAX_IN_FLIGHT = 2
"""Pictures on their way at once: enough for a distant viewer, few enough that what is seen is new."""
_FAST_FRAMES_TO_UPGRADE = 20
_WEIGHT = 0.3


class RelayOptions(NamedTuple):
    """What a viewer requested; zero and empty mean the defaults."""

    envs: Sequence[int] = ()
    rate_hz: float = 0.0
    max_side: int = 0
    budget: float = 0.0


@dataclass(frozen=True)
class RelayMessage:
    state: str
    reason: str = ""
    image: bytes = b""
    """JPEG."""
    hud_json: str = ""


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
        """Pictures that have to wait make the next ones smaller; many that need not, larger."""
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


class AckListener(threading.Thread):
    """Listens to how many pictures a viewer has seen."""

    def __init__(self, counts: Iterator[int]) -> None:
        super().__init__(name="frames-seen", daemon=True)
        self.count = 0
        self._counts = counts

    def run(self) -> None:
        try:
            for count in self._counts:
                self.count = count
        except Exception as error:  # the viewer is gone, which the stream itself notices
            log.debug("viewer_left", said=str(error))


class InFlightFrames:
    """Pictures that were sent and not yet seen."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._sent_at: list[float] = []
        self._acknowledged = 0

    def acknowledge(self, seen: int, now: float) -> None:
        for sent_at in self._sent_at[: max(0, seen - self._acknowledged)]:
            self._throttle.record_latency(now - sent_at)
        self._sent_at = self._sent_at[max(0, seen - self._acknowledged) :]
        self._acknowledged = max(self._acknowledged, seen)

    def add(self, now: float) -> None:
        self._sent_at.append(now)

    @property
    def has_room(self) -> bool:
        return len(self._sent_at) < MAX_IN_FLIGHT


def relay_frames(
    folder: str,
    options: RelayOptions,
    is_open: Callable[[], bool],
    end_reason: Callable[[], str],
    acknowledged_count: Callable[[], int],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[RelayMessage]:
    """Messages for one viewer, until `is_open` returns false or `ending` returns why no more frames come.

    `seen` says how many pictures the viewer has seen: no more than a few are ever on their way.
    """
    rate_hz = _clamp(options.rate_hz, RATES, RATE_HZ)
    side = int(_clamp(options.max_side, SIDE_RANGE_PX, DEFAULT_SIDE_PX))
    throttle = Throttle()
    outgoing = InFlightFrames(throttle)
    view = LaneView(
        folder,
        options.envs,
        rate_hz=rate_hz if options.rate_hz else None,
        budget=options.budget or None,
        log_event=_log_event,
    )
    next_at = said_at = -math.inf
    said: tuple[str, str] | None = None
    is_new = False
    try:
        while is_open():
            is_new = bool(view.poll()) or is_new
            now = clock()
            why_over = end_reason()
            if why_over:
                yield RelayMessage(UNAVAILABLE, why_over)
                return
            outgoing.acknowledge(acknowledged_count(), now)
            standing = (view.state, view.reason)
            if is_new and now >= next_at and outgoing.has_room:
                is_new = False
                next_at = now + 1 / rate_hz
                message = _encode_frame(view, side, throttle)
                outgoing.add(clock())
                yield message
                said, said_at = standing, now
            elif standing != said or now >= said_at + STATE_S:
                yield RelayMessage(*standing)
                said, said_at = standing, now
            else:
                sleep(TICK_S)
    finally:
        view.close()


def _log_event(event: str, **facts: Any) -> None:
    is_bad = event in ("fastlane_header_invalid", "fastlane_frame_read_error")
    (log.warning if is_bad else log.info)(event, **facts)


def _clamp(value: float, bounds: tuple[float, float], default: float) -> float:
    return min(max(value, bounds[0]), bounds[1]) if value and value == value else default


def _encode_frame(view: LaneView, side: int, throttle: Throttle) -> RelayMessage:
    try:
        from PIL import Image
    except ImportError:
        return RelayMessage(UNAVAILABLE, "the daemon needs Pillow to send frames: pip install 'mosaic-rl[train]'")
    frames = [(index, frame) for index, frame in sorted(view.frames.items())]
    images = [None if frame is None else as_rgb(frame.image, frame.format) for _, frame in frames]
    first = next(image for image in images if image is not None)
    shape = grid_shape(len(images), cell_aspect_ratio=first.shape[1] / first.shape[0])
    whole = (first.shape[1] * shape.columns, first.shape[0] * shape.rows)
    limit = max(1, int(side * throttle.scale))
    width, height = fit_size(*whole, limit, limit) if max(whole) > limit else whole
    whole_picture = compose_grid(images, shape, width, height, scale_image_smoothly)
    written = io.BytesIO()
    Image.fromarray(whole_picture).save(written, "JPEG", quality=throttle.quality)
    facts = {
        "rows": shape.rows,
        "columns": shape.columns,
        "quality": throttle.quality,
        "torn": view.torn_reads,
        "envs": [{"env": index, **hud_fields(frame)} for index, frame in frames if frame is not None],
    }
    return RelayMessage(view.state, view.reason, written.getvalue(), json.dumps(facts))
