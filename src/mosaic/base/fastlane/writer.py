"""Publishes an environment's newest frame to readers."""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import time
import zlib
from contextlib import suppress
from typing import Any

import numpy as np

from . import layout
from .lane_files import StrPath, create_and_lock, heartbeat_path, lane_path, remove_lane
from .requests import NO_REQUEST, FrameRequest, decode_request

HEARTBEAT_POLL_S = 0.1
"""Interval at which the heartbeat is checked."""
READER_TIMEOUT_S = 3.0
"""A reader without a heartbeat for this long is gone."""
SIBLING_POLL_S = 0.5
MAX_CATCH_UP_S = 0.25
"""Frames missed for longer than this, as in a pause, are not made up for."""
RETRY_S = 10.0
MAX_SIDE_PX = 640
DEFAULT_RATE_HZ = 30.0
DEFAULT_BUDGET = 0.015
_MIN_OUTLIER_S = 0.05
_OUTLIER_FACTOR = 4.0
"""On a busy machine the thread is sometimes preempted while rendering. That must count, or the mean would be too low;
but a single stall of the machine must not stop the frames for long."""
_SMOOTHING = 0.1
_CACHE_COST = 0.7
_MAX_CACHE_COST_S = 0.002
"""Rendering evicts the caches that training had filled: by tests/bench/fastlane.py, a frame costs training this part
more than the time that rendering and copying it takes; but no more than it takes to fill the caches again."""


class RenderPacer:
    """Chooses the render rate: the requested rate, within a share of the run's time. Pure, no clock."""

    def __init__(self, rate_hz: float = DEFAULT_RATE_HZ, budget: float = DEFAULT_BUDGET) -> None:
        self._defaults = (rate_hz, budget)
        self.request = NO_REQUEST
        self.watched_count = 1
        """Environments that are watched now and share the budget, and the rate unless one is requested."""
        self._cost_s = 0.0
        self._has_rendered = False
        self._spent_s = self._span_s = 0.0
        """Time that recent frames took, and since the first of them; what is older counts less."""

    def record_frame(self, taken_s: float, since_last_s: float = math.inf) -> None:
        """Record how long a frame took and when the one before it was, both by the clock: that is what training loses.

        The first frame includes the renderer's setup and is ignored.
        """
        cost_s = taken_s + min(_CACHE_COST * taken_s, _MAX_CACHE_COST_S)
        if not self._has_rendered:
            self._has_rendered = True
            return
        if not self._cost_s:
            self._cost_s = cost_s
        else:
            highest_s = max(_MIN_OUTLIER_S, _OUTLIER_FACTOR * self._cost_s)
            self._cost_s += _SMOOTHING * (min(cost_s, highest_s) - self._cost_s)
        if since_last_s < math.inf:
            self._spent_s += cost_s - _SMOOTHING * self._spent_s
            self._span_s += since_last_s - _SMOOTHING * self._span_s

    @property
    def rate_hz(self) -> float:
        """The requested rate of this environment."""
        return self.request.rate_hz or self._defaults[0] / self.watched_count

    @property
    def budget(self) -> float:
        """Share of the run's time that the frames of all environments may take."""
        return self.request.budget or self._defaults[1]

    @property
    def _share(self) -> float:
        """Of the budget, for this environment: less than was requested if other readers watch other environments."""
        if self.request.share is None:
            return 1 / self.watched_count
        return self.request.share * min(1.0, self.request.lane_count / self.watched_count)

    @property
    def _min_interval_s(self) -> float:
        return self._cost_s / (self.budget * self._share)

    @property
    def is_limited(self) -> bool:
        return self._min_interval_s * self.rate_hz > 1

    @property
    def interval_s(self) -> float:
        """Seconds between two frames."""
        return max(1.0 / self.rate_hz, self._min_interval_s)

    @property
    def measured_cost(self) -> float:
        """Share of the run's time that recent frames took."""
        return min(1.0, self._spent_s / self._span_s) if self._span_s else 0.0


class LaneWriter:
    """Writes the lane of one environment. Raises OSError if the lane cannot be created, and nothing afterwards.

    `lane_count` is the number of lanes of the run. Those that are watched share `rate_hz` and `budget`, which apply
    where a reader requests nothing else.
    """

    def __init__(
        self,
        folder: StrPath,
        index: int,
        *,
        rate_hz: float = DEFAULT_RATE_HZ,
        budget: float = DEFAULT_BUDGET,
        max_side_px: int = MAX_SIDE_PX,
        lane_count: int = 1,
        has_checksum: bool = layout.NEEDS_CHECKSUM,
    ) -> None:
        self.problem: str | None = None
        """Why there are no frames although they are watched; None without a problem."""
        self._folder = os.fspath(folder)
        self._index = index
        self._path = lane_path(folder, index)
        self._heartbeat_path = heartbeat_path(folder, index)
        self._sibling_heartbeats = [heartbeat_path(folder, other) for other in range(lane_count) if other != index]
        self._pacer = RenderPacer(rate_hz, budget)
        self._max_side_px = max_side_px
        self._has_checksum = has_checksum
        self._pid = os.getpid()
        self._next_check_at = 0.0
        """The earlier of the next two: nothing is to be done before."""
        self._next_frame_at = 0.0
        self._next_poll_at = 0.0
        self._next_sibling_poll_at = 0.0
        self._last_frame_at: float | None = None
        self._heartbeat_mtime_ns = 0
        self.is_watched = False
        """Whether there was a reader at the last check."""
        self._is_closed = False
        self._generation = 0
        self._number = 0
        self._shape: tuple[int, ...] = ()
        self._words: Any = None
        self._memory: Any = None
        self._pixels: list[Any] = []
        self._create_file(layout.make_geometry(0, 0, 3, 0, self._pid, has_checksum))

    # --- timing

    def is_due(self) -> bool:
        """Return whether the environment is watched and its next frame is due. Costs one read of the clock."""
        now = time.monotonic()
        if now < self._next_check_at:
            return False
        if now >= self._next_poll_at:
            self._poll_readers(now)
        if self.is_watched and now >= self._next_frame_at:
            return True
        self._next_check_at = min(self._next_frame_at, self._next_poll_at) if self.is_watched else self._next_poll_at
        return False

    @property
    def request(self) -> FrameRequest:
        """What the readers asked for when they were last looked for."""
        return self._pacer.request

    def _poll_readers(self, now: float) -> None:
        self._next_poll_at = now + HEARTBEAT_POLL_S
        was_watched, interval_s = self.is_watched, self._pacer.interval_s
        self.is_watched = not self._is_closed and os.getpid() == self._pid and self._has_reader()
        if not self.is_watched:
            self._last_frame_at = None
            return
        if self._sibling_heartbeats and (now >= self._next_sibling_poll_at or not was_watched):
            self._next_sibling_poll_at = now + SIBLING_POLL_S
            self._pacer.watched_count = 1 + sum(map(_has_recent_heartbeat, self._sibling_heartbeats))
        sooner_s = interval_s - self._pacer.interval_s
        if sooner_s > 0 and self.problem is None:  # more was requested, or less is shared
            self._next_frame_at -= sooner_s

    def _has_reader(self) -> bool:
        try:
            heartbeat = os.stat(self._heartbeat_path)
        except OSError:
            return False
        if abs(time.time() - heartbeat.st_mtime) >= READER_TIMEOUT_S:
            return False
        if heartbeat.st_mtime_ns != self._heartbeat_mtime_ns:
            self._heartbeat_mtime_ns = heartbeat.st_mtime_ns
            self._read_request(heartbeat.st_size)
        return True

    def _read_request(self, size_bytes: int) -> None:
        if size_bytes >= 1000:
            self._pacer.request = NO_REQUEST
            return
        with suppress(OSError, ValueError), open(self._heartbeat_path, "rb") as file:  # else it is being written
            self._pacer.request = decode_request(file.read(1000))[0]

    # --- frames

    def publish(
        self, frame: Any, *, episode: int, step: int, reward: float, episodic_return: float, render_s: float
    ) -> None:
        """Copy a frame (bytes [height, width, 3: RGB or 4: BGRX]) into the next slot."""
        pacer = self._pacer
        pace = (1 / pacer.interval_s, render_s, pacer.budget, pacer.measured_cost, pacer.is_limited)
        self._publish(frame, (episode, step, reward, episodic_return, time.time(), *pace), render_s)

    def copy_frame(self, frame: layout.Frame) -> None:
        """Publish a frame of another lane as it is, with what it cost there."""
        self._publish(frame.image, frame[layout.Frame._fields.index("episode") :], 0.0)

    def _publish(self, frame: Any, frame_info: tuple[Any, ...], render_s: float) -> None:
        started = time.perf_counter()
        try:
            self._write_slot(frame, frame_info)
        except OSError as error:
            self._suspend(f"no room for frames in {self._folder} ({error.strerror or error})")
        except (ValueError, TypeError) as error:
            self.mark_unavailable(f"its frame cannot be shown: {error}")
        now = time.monotonic()
        since_last_s = math.inf if self._last_frame_at is None else now - self._last_frame_at
        self._pacer.record_frame(render_s + time.perf_counter() - started, since_last_s)
        self._last_frame_at = now
        # On a fixed schedule, so that one late frame does not delay all later ones; but never two at once.
        interval_s = self._pacer.interval_s
        self._next_frame_at = max(self._next_frame_at, now - MAX_CATCH_UP_S) + interval_s
        self._next_frame_at = max(self._next_frame_at, now + interval_s / 2)
        self._next_check_at = min(self._next_frame_at, self._next_poll_at)

    def _write_slot(self, frame: Any, frame_info: tuple[Any, ...]) -> None:
        if self._is_closed:
            return
        image = downsample_frame(frame, self._max_side_px)
        if image.shape != self._shape:
            self._begin_generation(image.shape)
        number = self._number = self._number + 1
        at = layout.HEADER_BYTES + number % layout.SLOTS * self._slot_bytes
        word = at // 8
        words, memory = self._words, self._memory
        words[word + layout.BEGIN_WORD] = number
        np.copyto(self._pixels[number % layout.SLOTS], image)
        info_offset = at + layout.FRAME_INFO_OFFSET
        layout.FRAME_INFO_STRUCT.pack_into(memory, info_offset, *frame_info)
        if self._has_checksum:
            words[word + layout.CHECKSUM_WORD] = zlib.crc32(memory[info_offset : at + self._slot_bytes])
        words[word + layout.END_WORD] = number
        words[layout.NEWEST_FRAME_WORD] = number
        if self.problem is not None:
            self.problem = None
            self._write_reason("")

    def _begin_generation(self, shape: tuple[int, ...]) -> None:
        height, width, channels = shape
        geometry = layout.make_geometry(width, height, channels, self._generation + 1, self._pid, self._has_checksum)
        if geometry.file_bytes > layout.MAX_BYTES:
            raise ValueError(f"{width} by {height} pixels is too large")
        previous = self._words
        self._create_file(geometry)
        previous[layout.ENDED_WORD] = 1
        self._generation = geometry.generation
        self._number = 0
        self._shape = shape
        self._slot_bytes = geometry.slot_bytes
        first = layout.HEADER_BYTES + layout.SLOT_HEADER_BYTES
        self._pixels = [
            np.frombuffer(self._memory, np.uint8, geometry.stride * height, first + slot * geometry.slot_bytes).reshape(
                shape
            )
            for slot in range(geometry.slots)
        ]

    def _create_file(self, geometry: layout.Geometry) -> None:
        """Replace the lane's file by a new one that is locked until this process exits."""
        draft = f"{self._path}.{self._pid}"
        with create_and_lock(self._folder):
            file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_SH)
                _allocate(file, geometry.file_bytes)
                memory = mmap.mmap(file, geometry.file_bytes)
                memory[: layout.GEOMETRY_STRUCT.size + 8] = layout.pack_header(geometry)
                if not os.path.exists(self._heartbeat_path):
                    os.close(os.open(self._heartbeat_path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
                    os.utime(self._heartbeat_path, (0, 0))  # not watched yet
                os.rename(draft, self._path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft)
                raise
            finally:
                os.close(file)  # the mapping keeps its own descriptor, and with it the lock
        self._memory = memoryview(memory)
        self._words = self._memory.cast("Q")

    # --- unavailable and closed

    def mark_unavailable(self, reason: str) -> None:
        """Publish why there are no frames, and request no more."""
        self._suspend(reason)
        self._next_frame_at = float("inf")

    def _suspend(self, reason: str) -> None:
        """Stop for a while: a full file system may have room later."""
        self.problem = reason
        self._next_frame_at = time.monotonic() + RETRY_S
        self._write_reason(reason)

    def _write_reason(self, reason: str) -> None:
        number = int(self._words[layout.REASON_END_WORD]) + 1
        self._words[layout.REASON_BEGIN_WORD] = number
        self._memory[layout.REASON_OFFSET : layout.REASON_OFFSET + layout.REASON_BYTES] = layout.encode_text(
            reason, layout.REASON_BYTES
        )
        self._words[layout.REASON_END_WORD] = number

    def close(self) -> None:
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        self.is_watched = False
        self._next_check_at = float("inf")
        self._words[layout.ENDED_WORD] = 1
        remove_lane(self._folder, self._index)


def downsample_frame(frame: Any, max_side_px: int) -> Any:
    """Return a frame as bytes with three or four channels, no side longer than `max_side_px`."""
    image = np.asarray(frame)
    if image.ndim == 2:
        image = np.broadcast_to(image[:, :, None], (*image.shape, 3))
    if image.ndim != 3 or image.shape[2] not in layout.FORMATS or not image.size or image.dtype != np.uint8:
        raise ValueError(f"expected bytes [height, width, 3 or 4], got {image.dtype} {list(image.shape)}")
    stride = -(-max(image.shape[:2]) // max_side_px)
    return image[::stride, ::stride] if stride > 1 else image


def _has_recent_heartbeat(heartbeat: str) -> bool:
    try:
        return abs(time.time() - os.stat(heartbeat).st_mtime) < READER_TIMEOUT_S
    except OSError:
        return False


def _allocate(file: int, size: int) -> None:
    """Reserve the space now: a mapped page that cannot be allocated later would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    written = os.write(file, bytes(size))
    if written < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
