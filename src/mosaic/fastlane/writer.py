"""Putting an environment's newest frame where readers find it."""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import time
import zlib
from contextlib import suppress
from typing import Any

import numpy as np

from . import layout
from .lane_files import StrPath, create_and_lock, heartbeat_path, lane_path, remove_lane
from .pace import BUDGET_BOUNDS, DEFAULT_BUDGET, DEFAULT_RATE_HZ, RATE_BOUNDS_HZ, RenderPacer, clamp_or_default

HEARTBEAT_POLL_S = 0.1
"""How often the beat is looked at."""
READER_TIMEOUT_S = 3.0
"""A reader that was not seen for so long has gone."""
SIBLING_POLL_S = 0.5
MAX_CATCH_UP_S = 0.25
"""Pictures that were missed for longer, as in a pause, are not made up for."""
RETRY_S = 10.0
MAX_SIDE_PX = 640


class LaneWriter:
    """One environment of a run. Raises OSError where no lane can be made, and nothing afterwards.

    `cells`: how many lanes the run has. Those that are watched share `rate_hz` and `budget`.
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
        """Why there are no frames although somebody wants them, once that is so."""
        self._folder = os.fspath(folder)
        self._index = index
        self._path = lane_path(folder, index)
        self._heartbeat_path = heartbeat_path(folder, index)
        self._sibling_heartbeats = [heartbeat_path(folder, other) for other in range(lane_count) if other != index]
        self._defaults = (rate_hz, budget)
        self._pacer = RenderPacer(rate_hz, budget)
        self._max_side_px = max_side_px
        self._has_checksum = has_checksum
        self._pid = os.getpid()
        self._next_frame_at = 0.0
        self._next_poll_at = 0.0
        self._next_sibling_poll_at = 0.0
        self._heartbeat_mtime_ns = 0
        self.is_watched = False
        """Whether somebody was there at the last look."""
        self._is_closed = False
        self._generation = 0
        self._number = 0
        self._shape: tuple[int, ...] = ()
        self._words: Any = None
        self._memory: Any = None
        self._pixels: list[Any] = []
        self._create_file(layout.make_geometry(0, 0, 3, 0, self._pid, has_checksum))

    # --- when

    def is_due(self) -> bool:
        """Whether somebody watches and this environment's next frame is due. Costs a look at the clock."""
        now = time.monotonic()
        if now < self._next_frame_at:
            return False
        if now >= self._next_poll_at:
            self._poll_readers(now)
        return self.is_watched

    def _poll_readers(self, now: float) -> None:
        self._next_poll_at = now + HEARTBEAT_POLL_S
        self.is_watched = not self._is_closed and os.getpid() == self._pid and self._has_reader()
        if not self.is_watched:
            self._next_frame_at = self._next_poll_at
        elif self._sibling_heartbeats and now >= self._next_sibling_poll_at:
            self._next_sibling_poll_at = now + SIBLING_POLL_S
            self._pacer.watched_count = 1 + sum(map(_has_recent_heartbeat, self._sibling_heartbeats))

    def _has_reader(self) -> bool:
        try:
            beat = os.stat(self._heartbeat_path)
        except OSError:
            return False
        if abs(time.time() - beat.st_mtime) >= READER_TIMEOUT_S:
            return False
        if beat.st_mtime_ns != self._heartbeat_mtime_ns:
            self._heartbeat_mtime_ns = beat.st_mtime_ns
            self._read_requests(beat.st_size)
        return True

    def _read_requests(self, size_bytes: int) -> None:
        """A reader may ask for another rate or budget, by JSON in the beat's file."""
        wishes: Any = {}
        if 0 < size_bytes < 1000:
            try:
                with open(self._heartbeat_path, "rb") as file:
                    wishes = json.loads(file.read())
            except (OSError, ValueError):
                return  # it is being written
        if not isinstance(wishes, dict):
            wishes = {}
        self._pacer.rate_hz = clamp_or_default(wishes.get("rate_hz"), RATE_BOUNDS_HZ, self._defaults[0])
        self._pacer.budget = clamp_or_default(wishes.get("budget"), BUDGET_BOUNDS, self._defaults[1])

    # --- what

    def publish(
        self, frame: Any, *, episode: int, step: int, reward: float, episodic_return: float, render_s: float
    ) -> None:
        """Copies a frame (bytes [height, width, 3: RGB or 4: BGRX]) into the next slot."""
        started = time.perf_counter()
        try:
            self._publish(frame, (episode, step, reward, episodic_return, time.time()), render_s)
        except OSError as error:
            self._suspend(f"no room for frames in {self._folder} ({error.strerror or error})")
        except (ValueError, TypeError) as error:
            self.mark_unavailable(f"its picture cannot be shown: {error}")
        self._pacer.record_cost(render_s + time.perf_counter() - started)
        # By the plan, so that a late picture does not make all the next ones late; but never two at once.
        interval_s, now = self._pacer.interval_s, time.monotonic()
        self._next_frame_at = max(self._next_frame_at, now - MAX_CATCH_UP_S) + interval_s
        self._next_frame_at = max(self._next_frame_at, now + interval_s / 2)

    def _publish(self, frame: Any, frame_info: tuple[Any, ...], render_s: float) -> None:
        if self._is_closed:
            return
        picture = downsample_frame(frame, self._max_side_px)
        if picture.shape != self._shape:
            self._begin_generation(picture.shape)
        number = self._number = self._number + 1
        at = layout.HEADER_BYTES + number % layout.SLOTS * self._slot_bytes
        word = at // 8
        words, memory, pace = self._words, self._memory, self._pacer
        words[word + layout.BEGIN_WORD] = number
        np.copyto(self._pixels[number % layout.SLOTS], picture)
        episode, step, reward, episodic_return, now = frame_info
        layout.FRAME_INFO_STRUCT.pack_into(
            memory,
            at + layout.FRAME_INFO_OFFSET,
            episode,
            step,
            reward,
            episodic_return,
            now,
            1 / pace.interval_s,
            render_s,
        )
        said = at + layout.PACE_OFFSET
        memory[said : said + layout.PACE_BYTES] = layout.encode_text(pace.description, layout.PACE_BYTES)
        if self._has_checksum:
            words[word + layout.CHECKSUM_WORD] = zlib.crc32(
                memory[at + layout.FRAME_INFO_OFFSET : at + self._slot_bytes]
            )
        words[word + layout.END_WORD] = number
        words[layout.NEWEST_FRAME_WORD] = number
        if self.problem is not None:
            self.problem = None
            self._write_reason("")

    def _begin_generation(self, shape: tuple[int, ...]) -> None:
        height, width, channels = shape
        made = layout.make_geometry(width, height, channels, self._generation + 1, self._pid, self._has_checksum)
        if made.file_bytes > layout.MAX_BYTES:
            raise ValueError(f"{width} by {height} pixels are too many")
        before = self._words
        self._create_file(made)
        before[layout.ENDED_WORD] = 1
        self._generation = made.generation
        self._number = 0
        self._shape = shape
        self._slot_bytes = made.slot_bytes
        self._pixels = [
            np.frombuffer(
                self._memory,
                np.uint8,
                made.stride * height,
                layout.HEADER_BYTES + slot * made.slot_bytes + layout.SLOT_HEADER_BYTES,
            ).reshape(shape)
            for slot in range(made.slots)
        ]

    def _create_file(self, geometry: layout.Geometry) -> None:
        """A new file in the lane's place, locked for as long as this process lives."""
        beside = f"{self._path}.{self._pid}"
        with create_and_lock(self._folder):
            file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_SH)
                _allocate(file, geometry.file_bytes)
                memory = mmap.mmap(file, geometry.file_bytes)
                memory[: layout.GEOMETRY_STRUCT.size + 8] = layout.pack_header(geometry)
                if not os.path.exists(self._heartbeat_path):
                    os.close(
                        os.open(self._heartbeat_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                    )
                    os.utime(self._heartbeat_path, (0, 0))  # nobody watches yet
                os.rename(beside, self._path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(beside)
                raise
            finally:
                os.close(file)  # the map keeps a descriptor of its own, and with it the lock
        self._memory = memoryview(memory)
        self._words = self._memory.cast("Q")

    # --- not any more

    def mark_unavailable(self, reason: str) -> None:
        """Tells readers why there is no picture, and stops asking for one."""
        self._suspend(reason)
        self._next_frame_at = float("inf")

    def _suspend(self, reason: str) -> None:
        """For a while: what was full may have room later."""
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
        self._next_frame_at = float("inf")
        self._words[layout.ENDED_WORD] = 1
        remove_lane(self._folder, self._index)


def downsample_frame(frame: Any, max_side_px: int) -> Any:
    """A frame as an array of bytes with three or four channels, no side longer than `max_side`."""
    picture = np.asarray(frame)
    if picture.ndim == 2:
        picture = np.broadcast_to(picture[:, :, None], (*picture.shape, 3))
    if picture.ndim != 3 or picture.shape[2] not in layout.FORMATS or not picture.size or picture.dtype != np.uint8:
        raise ValueError(f"expected bytes [height, width, 3 or 4], got {picture.dtype} {list(picture.shape)}")
    every = -(-max(picture.shape[:2]) // max_side_px)
    return picture[::every, ::every] if every > 1 else picture


def _has_recent_heartbeat(heartbeat: str) -> bool:
    try:
        return abs(time.time() - os.stat(heartbeat).st_mtime) < READER_TIMEOUT_S
    except OSError:
        return False


def _allocate(file: int, size: int) -> None:
    """Takes the room now: a mapped page that cannot be had later would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    written = os.write(file, bytes(size))
    if written < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
