"""Reads a lane. Readers map it read-only, announce themselves by touching the heartbeat, and never block the writer."""

from __future__ import annotations

import json
import mmap
import os
import time
import zlib
from contextlib import suppress
from typing import Any

import numpy as np

from . import layout
from .lane_files import StrPath, heartbeat_path, lane_path

HEARTBEAT_S = 0.5
"""Interval at which the heartbeat is touched and the lane's file is checked."""
MAX_READ_ATTEMPTS = 8
REQUEST_TTL_S = 3.0

WAITING = "waiting"
CONNECTED = "connected"
UNAVAILABLE = "unavailable"


class LaneReader:
    """Reads the frames of one environment. `rate_hz` and `budget` are requests to the writer."""

    def __init__(
        self, folder: StrPath, index: int = 0, *, rate_hz: float | None = None, budget: float | None = None
    ) -> None:
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
        self._requests = {
            name: value for name, value in (("rate_hz", rate_hz), ("budget", budget)) if value is not None
        }
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
        has_ended = self._words is not None and self._words[layout.ENDED_WORD]
        if now >= self._next_heartbeat_at or has_ended:
            if now >= self._next_heartbeat_at:
                self._next_heartbeat_at = now + HEARTBEAT_S
                self.touch_heartbeat()
            self._remap_if_replaced()
        if self._geometry is None:
            return None
        frame = self._read() if self._geometry.slots else None
        self._update_state(frame)
        return frame

    def touch_heartbeat(self) -> None:
        """Announce this reader. Creates no file: a removed lane stays removed."""
        with suppress(OSError):
            if self._should_write_requests():
                file = os.open(self._heartbeat_path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
                try:
                    if self._requests:
                        os.write(file, json.dumps({**self._requests, "at": time.time()}).encode())
                finally:
                    os.close(file)
            os.utime(self._heartbeat_path)

    def _should_write_requests(self) -> bool:
        """Return whether to write our requests: unless an active reader requests more."""
        with open(self._heartbeat_path, "rb") as file:
            content = file.read(1000)
        if not content:
            return bool(self._requests)
        try:
            requests = json.loads(content)
            is_expired = abs(time.time() - requests["at"]) > REQUEST_TTL_S
            is_highest = all(requests.get(name, 0) <= value for name, value in self._requests.items())
        except (ValueError, TypeError, KeyError):
            return True
        return bool(is_expired or (self._requests and is_highest))

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
        self._unmap()


def _parse_frame(geometry: layout.Geometry, number: int, copy: bytearray) -> layout.Frame:
    """Build a frame from the copy of a slot without its counters."""
    episode, step, reward, episodic_return, rendered_at, rate_hz, render_s = layout.FRAME_INFO_STRUCT.unpack_from(copy)
    pace_offset = layout.PACE_OFFSET - layout.FRAME_INFO_OFFSET
    begin = layout.SLOT_HEADER_BYTES - layout.FRAME_INFO_OFFSET
    image = np.frombuffer(copy, np.uint8, geometry.stride * geometry.height, begin)
    return layout.Frame(
        image=image.reshape(geometry.height, geometry.width, geometry.channels),
        format=geometry.format,
        number=number,
        generation=geometry.generation,
        episode=episode,
        step=step,
        reward=reward,
        episodic_return=episodic_return,
        rendered_at=rendered_at,
        rate_hz=rate_hz,
        pace=layout.decode_text(bytes(copy[pace_offset : pace_offset + layout.PACE_BYTES])),
        render_s=render_s,
    )
