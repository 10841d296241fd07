"""Reads lanes. Readers map them read-only, announce themselves by touching a heartbeat, and never block a writer."""

from __future__ import annotations

import mmap
import os
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from mosaic.contracts import names as semconv

from . import layout
from .grid import as_rgb
from .lane_files import StrPath, heartbeat_path, lane_indices, lane_path
from .requests import NO_REQUEST, FrameRequest, decode_request, divide_request, encode_request
from .writer import READER_TIMEOUT_S

HEARTBEAT_S = 0.5
"""Interval at which the heartbeat is touched and the lane's file is checked."""
MAX_READ_ATTEMPTS = 8
REQUEST_TTL_S = 3.0
LEAVE_S = 2 * HEARTBEAT_S
"""A reader that closes leaves the heartbeat valid for this long, in which other readers touch it."""

WAITING = "waiting"
CONNECTED = "connected"
UNAVAILABLE = "unavailable"

LIST_INTERVAL_S = 0.5
FIRST_LIST_INTERVAL_S = 0.05
"""Before the first lane appears."""
LANE_GRACE_S = 2.0
"""A lane that is missing for longer than this is gone: between two batches, all are created again."""


class LaneReader:
    """Reads the frames of one environment."""

    def __init__(self, folder: StrPath, index: int = 0, request: FrameRequest = NO_REQUEST) -> None:
        self.index = index
        self.torn_reads = 0
        """Copies discarded because the writer overwrote the slot meanwhile."""
        self.failed_reads = 0
        """Calls that returned no frame because every copy was torn."""
        self.invalid_files = 0
        """Files at the lane's path that were not valid lanes."""
        self.problem = ""
        """The problem with the last of them."""
        self.reason = ""
        """Why there are no frames."""
        self.state = WAITING
        self._path = lane_path(folder, index)
        self._heartbeat_path = heartbeat_path(folder, index)
        self._request = request
        self._written = b""
        """What this reader wrote last into the heartbeat file."""
        self._next_heartbeat_at = 0.0
        self._file_id: tuple[int, int, int] | None = None
        """The file that is mapped or was rejected."""
        self._number = 0
        self._spare_buffer = bytearray()
        self._unmap()

    def _unmap(self) -> None:
        self._words: Any = None
        self._memory: Any = None
        self._geometry: layout.Geometry | None = None

    def read_newest(self) -> layout.Frame | None:
        """Return the newest frame unless it was returned before. Call it often: it also keeps the writer rendering."""
        now = time.monotonic()
        was_open = self._words is not None
        if now >= self._next_heartbeat_at or not was_open or self._words[layout.ENDED_WORD]:
            self._remap_if_replaced()
            if now >= self._next_heartbeat_at or (self._words is not None and not was_open):
                self._next_heartbeat_at = now + HEARTBEAT_S
                self.touch_heartbeat()
        if self._geometry is None:
            return None
        frame = self._read() if self._geometry.slots else None
        self._update_state(frame)
        return frame

    def touch_heartbeat(self) -> None:
        """Announce this reader. Creates no file: a removed lane stays removed."""
        with suppress(OSError):
            if self._should_write_request():
                self._write_request(encode_request(self._request, time.time()))
            os.utime(self._heartbeat_path)

    def ask(self, request: FrameRequest) -> None:
        """Replace what is asked of the writer."""
        if request != self._request:
            self._request = request
            self._next_heartbeat_at = 0.0

    def _write_request(self, content: bytes) -> None:
        file = os.open(self._heartbeat_path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
        try:
            os.write(file, content)
        finally:
            os.close(file)
        self._written = content

    def _read_heartbeat(self) -> bytes:
        with open(self._heartbeat_path, "rb") as file:
            return file.read(1000)

    def _should_write_request(self) -> bool:
        """Return whether to write our request: unless an active reader requests more."""
        content = self._read_heartbeat()
        if content == self._written:
            return self._request != NO_REQUEST or bool(content)
        try:
            theirs, written_at = decode_request(content)
        except ValueError:
            return True
        is_expired = abs(time.time() - written_at) > REQUEST_TTL_S
        ours = self._request
        is_highest = (theirs.rate_hz or 0) <= (ours.rate_hz or 0) and (theirs.budget or 0) <= (ours.budget or 0)
        return is_expired or is_highest

    def _remap_if_replaced(self) -> None:
        """Open the lane, or the newer file that has replaced it."""
        try:
            status = os.stat(self._path)
        except OSError:
            self._unmap()
            self._file_id = None
            if self.state != UNAVAILABLE:
                self.state = WAITING
            return
        file_id = (status.st_dev, status.st_ino, status.st_ctime_ns)
        if file_id[:2] == (self._file_id or ())[:2] and (self._words is not None or file_id == self._file_id):
            return
        self._unmap()
        self._file_id = file_id
        self._number = 0
        try:
            self._open()
        except (OSError, ValueError) as error:
            self._unmap()
            self.invalid_files += 1
            self.problem = f"{os.path.basename(self._path)}: {error}"

    def _open(self) -> None:
        file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(file).st_size
            header = os.read(file, layout.HEADER_BYTES)
            geometry = layout.parse_header(header, size)
            memory = mmap.mmap(file, geometry.file_bytes, prot=mmap.PROT_READ)
        finally:
            os.close(file)
        self._memory = memoryview(memory)
        self._words = self._memory.cast("Q")
        self._geometry = geometry

    def _read(self) -> layout.Frame | None:
        geometry, words, memory = self._geometry, self._words, self._memory
        assert geometry is not None
        if words[layout.NEWEST_FRAME_WORD] == self._number:
            return None
        # Reused memory is faster to write to: a copy must be faster than a writer that goes through all slots.
        size = geometry.slot_bytes - layout.FRAME_INFO_OFFSET
        copy = self._spare_buffer if len(self._spare_buffer) == size else bytearray(size)
        self._spare_buffer = copy
        for _ in range(MAX_READ_ATTEMPTS):
            newest = words[layout.NEWEST_FRAME_WORD]
            at = layout.HEADER_BYTES + newest % geometry.slots * geometry.slot_bytes
            end = words[at // 8 + layout.END_WORD]
            memoryview(copy)[:] = memory[at + layout.FRAME_INFO_OFFSET : at + geometry.slot_bytes]
            checksum = words[at // 8 + layout.CHECKSUM_WORD]
            if words[at // 8 + layout.BEGIN_WORD] == end == newest and (
                not geometry.has_checksum or zlib.crc32(copy) == checksum
            ):
                self._number = newest
                self._spare_buffer = bytearray()
                return _parse_frame(geometry, newest, copy)
            self.torn_reads += 1
        self.failed_reads += 1
        return None

    def _update_state(self, frame: layout.Frame | None) -> None:
        if frame is not None:
            self.state, self.reason = CONNECTED, ""
            return
        reason = self._read_reason()
        if reason:
            self.state, self.reason = UNAVAILABLE, reason
        elif self.state == UNAVAILABLE:
            self.state, self.reason = WAITING, ""

    def _read_reason(self) -> str:
        words = self._words
        end = words[layout.REASON_END_WORD]
        text = bytes(self._memory[layout.REASON_OFFSET : layout.REASON_OFFSET + layout.REASON_BYTES]) if end else b""
        return layout.decode_text(text) if end and words[layout.REASON_BEGIN_WORD] == end else ""

    def close(self) -> None:
        """Stop reading, and withdraw the request: the writer stops soon unless there are other readers."""
        self._unmap()
        with suppress(OSError):
            touched_at = os.stat(self._heartbeat_path).st_mtime
            if self._written and self._read_heartbeat() == self._written:
                self._write_request(b"")
            left_at = min(touched_at, time.time() - READER_TIMEOUT_S + LEAVE_S)
            os.utime(self._heartbeat_path, (left_at, left_at))


def _parse_frame(geometry: layout.Geometry, number: int, copy: bytearray) -> layout.Frame:
    """Build a frame from the copy of a slot without its counters."""
    begin = layout.SLOT_HEADER_BYTES - layout.FRAME_INFO_OFFSET
    image = np.frombuffer(copy, np.uint8, geometry.stride * geometry.height, begin)
    return layout.Frame(
        image.reshape(geometry.height, geometry.width, geometry.channels),
        geometry.format,
        number,
        geometry.generation,
        *layout.FRAME_INFO_STRUCT.unpack_from(copy),
    )


class LaneView:
    """Watches the environments `envs` of a run, or all that have a lane. Call `poll` often; it never blocks."""

    def __init__(
        self,
        folder: StrPath,
        envs: Sequence[int] = (),
        request: FrameRequest = NO_REQUEST,
        *,
        log_event: Callable[..., None] | None = None,
    ) -> None:
        self.frames: dict[int, layout.Frame | None] = {}
        """The newest frame of each environment; None before the first."""
        self._folder = folder
        self._envs = tuple(envs)
        self._request = request
        self._focused_env: int | None = None
        self._readers: dict[int, LaneReader] = {}
        self._listed_at: dict[int, float] = {}
        """When each environment was last found to have a lane."""
        self._next_list_at = 0.0
        self._log_event = log_event
        self._logged_events: set[str] = set()

    def poll(self) -> set[int]:
        """Read new frames; return the environments that have one."""
        now = time.monotonic()
        if now >= self._next_list_at:
            self._update_readers()
            self._next_list_at = now + (LIST_INTERVAL_S if self._readers else FIRST_LIST_INTERVAL_S)
        new = set()
        for index, reader in self._readers.items():
            frame = reader.read_newest()
            if frame is not None:
                new.add(index)
                self.frames[index] = frame
        self._log_state()
        return new

    def _update_readers(self) -> None:
        """Add and remove readers: a run starts, ends, or is resumed with another number of lanes."""
        indices = self._envs or lane_indices(self._folder)
        now = time.monotonic()
        self._listed_at.update(dict.fromkeys(indices, now))
        before = len(self._readers)
        for index in indices:
            if index not in self._readers:
                self._readers[index] = LaneReader(self._folder, index)
                self.frames[index] = None
        # While there are no lanes, the last frames remain visible.
        for index in [index for index in self._readers if indices and now - self._listed_at[index] > LANE_GRACE_S]:
            self._readers.pop(index).close()
            del self.frames[index], self._listed_at[index]
        if len(self._readers) != before:
            self._divide_request()

    def ask(self, request: FrameRequest, focused_env: int | None = None) -> None:
        """Replace what is asked of the writers; the environment that somebody looks at gets more than the others."""
        if (request, focused_env) != (self._request, self._focused_env):
            self._request, self._focused_env = request, focused_env
            self._divide_request()

    def _divide_request(self) -> None:
        for env, part in divide_request(self._request, list(self._readers), self._focused_env).items():
            self._readers[env].ask(part)

    @property
    def state(self) -> str:
        """`connected` if one environment is, `unavailable` if all are, else `waiting`."""
        states = {reader.state for reader in self._readers.values()}
        if CONNECTED in states:
            return CONNECTED
        return UNAVAILABLE if states == {UNAVAILABLE} else WAITING

    @property
    def reason(self) -> str:
        if self.state == WAITING:
            available = lane_indices(self._folder)
            if not available:
                return "this run publishes no frames yet"
            if self._envs and not set(self._envs) & set(available):
                return f"environment {self._envs[0]} cannot be watched; available: {', '.join(map(str, available))}"
            return "no frame yet"
        return next((reader.reason for reader in self._readers.values() if reader.reason), "")

    @property
    def torn_reads(self) -> int:
        return sum(reader.torn_reads for reader in self._readers.values())

    @property
    def invalid_files(self) -> int:
        return sum(reader.invalid_files for reader in self._readers.values())

    def _log_state(self) -> None:
        """Log each kind of event once."""
        if self._log_event is None:
            return
        state = self.state
        if state == CONNECTED:
            self._log_once(semconv.FASTLANE_CONNECTED, envs=len(self._readers))
        elif state == UNAVAILABLE:
            self._log_once(semconv.FASTLANE_UNAVAILABLE, reason=self.reason)
        for reader in self._readers.values():
            if reader.invalid_files:
                self._log_once(semconv.FASTLANE_HEADER_INVALID, problem=reader.problem)
            if reader.failed_reads:
                self._log_once(semconv.FASTLANE_FRAME_READ_ERROR, env=reader.index, torn=reader.torn_reads)

    def _log_once(self, event: str, **fields: Any) -> None:
        if self._log_event is not None and event not in self._logged_events:
            self._logged_events.add(event)
            self._log_event(event, **fields)

    def rgb_images(self) -> list[Any]:
        """Return the newest image of each environment as RGB; None before its first."""
        frames = sorted(self.frames.items())
        return [None if frame is None else as_rgb(frame.image, frame.format) for _, frame in frames]

    @property
    def huds(self) -> list[layout.FrameHud]:
        """Those of the environments that have a frame."""
        return [frame.hud(index) for index, frame in sorted(self.frames.items()) if frame is not None]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
