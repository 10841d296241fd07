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
SLOW_S = 0.2
"""A picture that waits so long for those before it shows that there are too many bytes."""
IN_FLIGHT = 2
"""Pictures on their way at once: enough for a distant viewer, few enough that what is seen is new."""
_PATIENCE = 20
_WEIGHT = 0.3


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
    """Fits quality and size to what the connection carries. Pure: it is told how long each picture was on its way."""

    def __init__(self) -> None:
        self._level = 0
        self._quick = 0
        self._fastest_s = math.inf
        """What the distance alone costs."""
        self._waited_s = 0.0

    @property
    def quality(self) -> int:
        return _LEVELS[self._level][0]

    @property
    def share(self) -> float:
        return _LEVELS[self._level][1]

    def note(self, on_its_way_s: float) -> None:
        """Pictures that have to wait make the next ones smaller; many that need not, larger."""
        self._fastest_s = min(self._fastest_s, on_its_way_s)
        waited_s = on_its_way_s - self._fastest_s
        self._waited_s += _WEIGHT * (waited_s - self._waited_s)
        if self._waited_s > SLOW_S:
            self._level = min(self._level + 1, len(_LEVELS) - 1)
            self._waited_s = 0.0
            self._quick = 0
        elif waited_s < SLOW_S / 2:
            self._quick += 1
            if self._quick >= _PATIENCE and self._level:
                self._level -= 1
                self._quick = 0


class Seen(threading.Thread):
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


class Outgoing:
    """Pictures that were sent and not yet seen."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._sent_at: list[float] = []
        self._seen = 0

    def take(self, seen: int, now: float) -> None:
        for sent_at in self._sent_at[: max(0, seen - self._seen)]:
            self._throttle.note(now - sent_at)
        self._sent_at = self._sent_at[max(0, seen - self._seen) :]
        self._seen = max(self._seen, seen)

    def add(self, now: float) -> None:
        self._sent_at.append(now)

    @property
    def has_room(self) -> bool:
        return len(self._sent_at) < IN_FLIGHT


def relay(
    folder: str,
    wish: Wish,
    is_open: Callable[[], bool],
    ending: Callable[[], str],
    seen: Callable[[], int],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Message]:
    """Messages for one viewer, until `is_open` says no or `ending` says why no more frames come.

    `seen` says how many pictures the viewer has seen: no more than a few are ever on their way.
    """
    rate_hz = _within(wish.rate_hz, RATES, RATE_HZ)
    side = int(_within(wish.max_side, SIDES, SIDE))
    throttle = Throttle()
    outgoing = Outgoing(throttle)
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
            outgoing.take(seen(), now)
            standing = (view.state, view.reason)
            if is_new and now >= next_at and outgoing.has_room:
                is_new = False
                next_at = now + 1 / rate_hz
                message = _picture(view, side, throttle)
                outgoing.add(clock())
                yield message
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
