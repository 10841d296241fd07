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
from .pace import BUDGET, BUDGETS, RATE_HZ, RATES, Pace, bounded
from .place import Path, beat_path, lane_path, made_and_locked, remove_lane

LOOK_S = 0.1
"""How often the beat is looked at."""
FRESH_S = 3.0
"""A reader that was not seen for so long has gone."""
SIBLINGS_S = 0.5
CATCH_UP_S = 0.25
"""Pictures that were missed for longer, as in a pause, are not made up for."""
RETRY_S = 10.0
MAX_SIDE = 640


class LaneWriter:
    """One environment of a run. Raises OSError where no lane can be made, and nothing afterwards.

    `cells`: how many lanes the run has. Those that are watched share `rate_hz` and `budget`.
    """

    def __init__(
        self,
        folder: Path,
        index: int,
        *,
        rate_hz: float = RATE_HZ,
        budget: float = BUDGET,
        max_side: int = MAX_SIDE,
        cells: int = 1,
        has_checksum: bool = layout.NEEDS_CHECKSUM,
    ) -> None:
        self.problem: str | None = None
        """Why there are no frames although somebody wants them, once that is so."""
        self._folder = os.fspath(folder)
        self._index = index
        self._path = lane_path(folder, index)
        self._beat = beat_path(folder, index)
        self._siblings = [beat_path(folder, other) for other in range(cells) if other != index]
        self._default = (rate_hz, budget)
        self._pace = Pace(rate_hz, budget)
        self._max_side = max_side
        self._has_checksum = has_checksum
        self._pid = os.getpid()
        self._rest_until = 0.0
        self._look_at = 0.0
        self._siblings_at = 0.0
        self._beat_mtime = 0
        self.is_watched = False
        """Whether somebody was there at the last look."""
        self._is_closed = False
        self._generation = 0
        self._number = 0
        self._shape: tuple[int, ...] = ()
        self._words: Any = None
        self._memory: Any = None
        self._pixels: list[Any] = []
        self._map(layout.geometry(0, 0, 3, 0, self._pid, has_checksum))

    # --- when

    def is_due(self) -> bool:
        """Whether somebody watches and this environment's next frame is due. Costs a look at the clock."""
        now = time.monotonic()
        if now < self._rest_until:
            return False
        if now >= self._look_at:
            self._look(now)
        return self.is_watched

    def _look(self, now: float) -> None:
        self._look_at = now + LOOK_S
        self.is_watched = not self._is_closed and os.getpid() == self._pid and self._has_reader()
        if not self.is_watched:
            self._rest_until = self._look_at
        elif self._siblings and now >= self._siblings_at:
            self._siblings_at = now + SIBLINGS_S
            self._pace.cells = 1 + sum(map(_is_fresh, self._siblings))

    def _has_reader(self) -> bool:
        try:
            beat = os.stat(self._beat)
        except OSError:
            return False
        if abs(time.time() - beat.st_mtime) >= FRESH_S:
            return False
        if beat.st_mtime_ns != self._beat_mtime:
            self._beat_mtime = beat.st_mtime_ns
            self._take_wishes(beat.st_size)
        return True

    def _take_wishes(self, size: int) -> None:
        """A reader may ask for another rate or budget, by JSON in the beat's file."""
        wishes: Any = {}
        if 0 < size < 1000:
            try:
                with open(self._beat, "rb") as file:
                    wishes = json.loads(file.read())
            except (OSError, ValueError):
                return  # it is being written
        if not isinstance(wishes, dict):
            wishes = {}
        self._pace.rate_hz = bounded(wishes.get("rate_hz"), RATES, self._default[0])
        self._pace.budget = bounded(wishes.get("budget"), BUDGETS, self._default[1])

    # --- what

    def publish(
        self, frame: Any, *, episode: int, step: int, reward: float, episodic_return: float, render_s: float
    ) -> None:
        """Copies a frame (bytes [height, width, 3: RGB or 4: BGRX]) into the next slot."""
        started = time.perf_counter()
        try:
            self._publish(frame, (episode, step, reward, episodic_return, time.time()), render_s)
        except OSError as error:
            self._give_up(f"no room for frames in {self._folder} ({error.strerror or error})")
        except (ValueError, TypeError) as error:
            self.unavailable(f"its picture cannot be shown: {error}")
        self._pace.note(render_s + time.perf_counter() - started)
        # By the plan, so that a late picture does not make all the next ones late; but never two at once.
        interval_s, now = self._pace.interval_s, time.monotonic()
        self._rest_until = max(self._rest_until, now - CATCH_UP_S) + interval_s
        self._rest_until = max(self._rest_until, now + interval_s / 2)

    def _publish(self, frame: Any, facts: tuple[Any, ...], render_s: float) -> None:
        if self._is_closed:
            return
        picture = fitted(frame, self._max_side)
        if picture.shape != self._shape:
            self._begin_generation(picture.shape)
        number = self._number = self._number + 1
        at = layout.HEADER_BYTES + number % layout.SLOTS * self._slot_bytes
        word = at // 8
        words, memory, pace = self._words, self._memory, self._pace
        words[word + layout.BEGIN] = number
        np.copyto(self._pixels[number % layout.SLOTS], picture)
        episode, step, reward, episodic_return, now = facts
        layout.FACTS.pack_into(
            memory, at + layout.FACTS_AT, episode, step, reward, episodic_return, now, 1 / pace.interval_s, render_s
        )
        said = at + layout.PACE_AT
        memory[said : said + layout.PACE_BYTES] = layout.as_bytes(pace.words, layout.PACE_BYTES)
        if self._has_checksum:
            words[word + layout.CHECKSUM] = zlib.crc32(memory[at + layout.FACTS_AT : at + self._slot_bytes])
        words[word + layout.END] = number
        words[layout.HEAD] = number
        if self.problem is not None:
            self.problem = None
            self._say("")

    def _begin_generation(self, shape: tuple[int, ...]) -> None:
        height, width, channels = shape
        made = layout.geometry(width, height, channels, self._generation + 1, self._pid, self._has_checksum)
        if made.file_bytes > layout.MAX_BYTES:
            raise ValueError(f"{width} by {height} pixels are too many")
        before = self._words
        self._map(made)
        before[layout.ENDED] = 1
        self._generation = made.generation
        self._number = 0
        self._shape = shape
        self._slot_bytes = made.slot_bytes
        self._pixels = [
            np.frombuffer(
                self._memory,
                np.uint8,
                made.stride * height,
                layout.HEADER_BYTES + slot * made.slot_bytes + layout.SLOT_HEAD_BYTES,
            ).reshape(shape)
            for slot in range(made.slots)
        ]

    def _map(self, made: layout.Geometry) -> None:
        """A new file in the lane's place, locked for as long as this process lives."""
        beside = f"{self._path}.{self._pid}"
        with made_and_locked(self._folder):
            file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_SH)
                _allocate(file, made.file_bytes)
                memory = mmap.mmap(file, made.file_bytes)
                memory[: layout.GEOMETRY.size + 8] = layout.packed(made)
                if not os.path.exists(self._beat):
                    os.close(os.open(self._beat, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
                    os.utime(self._beat, (0, 0))  # nobody watches yet
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

    def unavailable(self, reason: str) -> None:
        """Tells readers why there is no picture, and stops asking for one."""
        self._give_up(reason)
        self._rest_until = float("inf")

    def _give_up(self, reason: str) -> None:
        """For a while: what was full may have room later."""
        self.problem = reason
        self._rest_until = time.monotonic() + RETRY_S
        self._say(reason)

    def _say(self, reason: str) -> None:
        number = int(self._words[layout.REASON_END]) + 1
        self._words[layout.REASON_BEGIN] = number
        self._memory[layout.REASON_AT : layout.REASON_AT + layout.REASON_BYTES] = layout.as_bytes(
            reason, layout.REASON_BYTES
        )
        self._words[layout.REASON_END] = number

    def close(self) -> None:
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        self.is_watched = False
        self._rest_until = float("inf")
        self._words[layout.ENDED] = 1
        remove_lane(self._folder, self._index)


def fitted(frame: Any, max_side: int) -> Any:
    """A frame as an array of bytes with three or four channels, no side longer than `max_side`."""
    picture = np.asarray(frame)
    if picture.ndim == 2:
        picture = np.broadcast_to(picture[:, :, None], (*picture.shape, 3))
    if picture.ndim != 3 or picture.shape[2] not in layout.FORMATS or not picture.size or picture.dtype != np.uint8:
        raise ValueError(f"expected bytes [height, width, 3 or 4], got {picture.dtype} {list(picture.shape)}")
    every = -(-max(picture.shape[:2]) // max_side)
    return picture[::every, ::every] if every > 1 else picture


def _is_fresh(beat: str) -> bool:
    try:
        return abs(time.time() - os.stat(beat).st_mtime) < FRESH_S
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
