"""Live frames for viewers on other machines: composed, compressed, the newest only."""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from mosaic.fastlane import LaneView, as_rgb, compose, fit, grid_shape, hud, smoothly_scaled

log = structlog.get_logger("mosaic.trainer.frames")

RATE_HZ = 30.0
RATES = (0.2, 60.0)
SIDE = 960
SIDES = (64, 1920)
STATE_S = 2.0
"""A viewer that gets no frame hears so often that it is not forgotten."""
TICK_S = 0.005
_LEVELS = ((80, 1.0), (65, 1.0), (50, 0.75), (35, 0.5), (25, 0.35))
"""JPEG quality and share of the side, from a fast connection to a slow one."""
_PATIENCE = 20


class Wish(NamedTuple):
    """What a viewer asked for; zeros and nothing stand for the defaults."""

    envs: Sequence[int] = ()
    rate_hz: float = 0.0
    max_side: int = 0
    budget: float = 0.0


@dataclass(frozen=True)
class Message:
    state: str
    reason: str = ""
    image: bytes = b""
    """JPEG."""
    hud_json: str = ""


class Throttle:
    """Fits quality and size to what the connection carries. Pure: it is told how long sending took."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._level = 0
        self._quick = 0

    @property
    def quality(self) -> int:
        return _LEVELS[self._level][0]

    @property
    def share(self) -> float:
        return _LEVELS[self._level][1]

    def note(self, sent_s: float) -> None:
        """One frame that waited longer than a frame lasts makes the next ones smaller; many quick ones, larger."""
        if sent_s > self._interval_s:
            self._level = min(self._level + 1, len(_LEVELS) - 1)
            self._quick = 0
        elif sent_s < self._interval_s / 4:
            self._quick += 1
            if self._quick >= _PATIENCE and self._level:
                self._level -= 1
                self._quick = 0


def relay(
    folder: str,
    wish: Wish,
    is_open: Callable[[], bool],
    ending: Callable[[], str],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Message]:
    """Messages for one viewer, until `is_open` says no or `ending` says why no more frames come."""
    rate_hz = _within(wish.rate_hz, RATES, RATE_HZ)
    side = int(_within(wish.max_side, SIDES, SIDE))
    throttle = Throttle(1 / rate_hz)
    view = LaneView(
        folder,
        wish.envs,
        rate_hz=rate_hz if wish.rate_hz else None,
        budget=wish.budget or None,
        tell=_tell,
    )
    next_at = said_at = -math.inf
    said: tuple[str, str] | None = None
    is_new = False
    try:
        while is_open():
            is_new = view.look() or is_new
            now = clock()
            why_over = ending()
            if why_over:
                yield Message("unavailable", why_over)
                return
            standing = (view.state, view.reason)
            if is_new and now >= next_at:
                is_new = False
                next_at = now + 1 / rate_hz
                message = _picture(view, side, throttle)
                begun = clock()
                yield message
                throttle.note(clock() - begun)
                said, said_at = standing, now
            elif standing != said or now >= said_at + STATE_S:
                yield Message(*standing)
                said, said_at = standing, now
            else:
                sleep(TICK_S)
    finally:
        view.close()


def _tell(event: str, **facts: Any) -> None:
    is_bad = event in ("fastlane_header_invalid", "fastlane_frame_read_error")
    (log.warning if is_bad else log.info)(event, **facts)


def _within(value: float, bounds: tuple[float, float], default: float) -> float:
    return min(max(value, bounds[0]), bounds[1]) if value and value == value else default


def _picture(view: LaneView, side: int, throttle: Throttle) -> Message:
    try:
        from PIL import Image
    except ImportError:
        return Message("unavailable", "the daemon needs Pillow to send frames: pip install 'mosaic-rl[train]'")
    frames = [(index, frame) for index, frame in sorted(view.frames.items())]
    images = [None if frame is None else as_rgb(frame.image, frame.format) for _, frame in frames]
    first = next(image for image in images if image is not None)
    shape = grid_shape(len(images), cell=first.shape[1] / first.shape[0])
    whole = (first.shape[1] * shape.columns, first.shape[0] * shape.rows)
    limit = max(1, int(side * throttle.share))
    width, height = fit(*whole, limit, limit) if max(whole) > limit else whole
    whole_picture = compose(images, shape, width, height, smoothly_scaled)
    written = io.BytesIO()
    Image.fromarray(whole_picture).save(written, "JPEG", quality=throttle.quality)
    facts = {
        "rows": shape.rows,
        "columns": shape.columns,
        "quality": throttle.quality,
        "torn": view.torn,
        "envs": [{"env": index, **hud(frame)} for index, frame in frames if frame is not None],
    }
    return Message(view.state, view.reason, written.getvalue(), json.dumps(facts))
