"""Looking at a lane. Readers map it read-only, show themselves by touching the beat, and never hold the writer up."""

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
"""How often the beat is touched, and the lane's place looked at."""
MAX_READ_ATTEMPTS = 8
REQUEST_TTL_S = 3.0

WAITING = "waiting"
CONNECTED = "connected"
UNAVAILABLE = "unavailable"


class LaneReader:
    """One environment of a run, as somebody sees it. `rate_hz` and `budget` are wishes to the writer."""

    def __init__(
        self, folder: StrPath, index: int = 0, *, rate_hz: float | None = None, budget: float | None = None
    ) -> None:
        self.index = index
        self.torn_reads = 0
        """Copies that were thrown away because the writer came round."""
        self.failed_reads = 0
        """Looks that brought no frame because of that."""
        self.invalid_files = 0
        """Files in the lane's place that were no lane."""
        self.problem = ""
        """What was wrong with the last of them."""
        self.reason = ""
        """Why there is no picture."""
        self.state = WAITING
        self._path = lane_path(folder, index)
        self._heartbeat_path = heartbeat_path(folder, index)
        self._requests = {
            name: value for name, value in (("rate_hz", rate_hz), ("budget", budget)) if value is not None
        }
        self._next_heartbeat_at = 0.0
        self._file_id: tuple[int, int, int] | None = None
        """Which file is mapped, or was refused."""
        self._number = 0
        self._spare_buffer = bytearray()
        self._unmap()

    def _unmap(self) -> None:
        self._words: Any = None
        self._memory: Any = None
        self._geometry: layout.Geometry | None = None

    def read_newest(self) -> layout.Frame | None:
        """The newest frame if it was not given before. Call it often: it also keeps the writer drawing."""
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
        """Says that somebody watches. Makes no file: a lane that is gone stays gone."""
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
        """Whether ours should stand in the beat: where nobody who is still there wishes for more."""
        with open(self._heartbeat_path, "rb") as file:
            found = file.read(1000)
        if not found:
            return bool(self._requests)
        try:
            wishes = json.loads(found)
            is_over = abs(time.time() - wishes["at"]) > REQUEST_TTL_S
            more = all(wishes.get(name, 0) <= value for name, value in self._requests.items())
        except (ValueError, TypeError, KeyError):
            return True
        return bool(is_over or (self._requests and more))

    def _remap_if_replaced(self) -> None:
        """Opens the lane, or the newer one that has taken its place."""
        try:
            found = os.stat(self._path)
        except OSError:
            self._unmap()
            self._file_id = None
            if self.state != UNAVAILABLE:
                self.state = WAITING
            return
        file = (found.st_dev, found.st_ino, found.st_ctime_ns)
        if file[:2] == (self._file_id or ())[:2] and (self._words is not None or file == self._file_id):
            return
        self._unmap()
        self._file_id = file
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
            made = layout.parse_header(header, size)
            memory = mmap.mmap(file, made.file_bytes, prot=mmap.PROT_READ)
        finally:
            os.close(file)
        self._memory = memoryview(memory)
        self._words = self._memory.cast("Q")
        self._geometry = made

    def _read(self) -> layout.Frame | None:
        made, words, memory = self._geometry, self._words, self._memory
        assert made is not None
        if words[layout.NEWEST_FRAME_WORD] == self._number:
            return None
        # Memory that was used before is faster to write to: a copy must not take as long as a fast writer's round.
        size = made.slot_bytes - layout.FRAME_INFO_OFFSET
        copy = self._spare_buffer if len(self._spare_buffer) == size else bytearray(size)
        self._spare_buffer = copy
        for _ in range(MAX_READ_ATTEMPTS):
            newest = words[layout.NEWEST_FRAME_WORD]
            at = layout.HEADER_BYTES + newest % made.slots * made.slot_bytes
            end = words[at // 8 + layout.END_WORD]
            memoryview(copy)[:] = memory[at + layout.FRAME_INFO_OFFSET : at + made.slot_bytes]
            checksum = words[at // 8 + layout.CHECKSUM_WORD]
            if words[at // 8 + layout.BEGIN_WORD] == end == newest and (
                not made.has_checksum or zlib.crc32(copy) == checksum
            ):
                self._number = newest
                self._spare_buffer = bytearray()
                return _parse_frame(made, newest, copy)
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
    """`copy` is a slot without its counters."""
    episode, step, reward, episodic_return, rendered_at, rate_hz, render_s = layout.FRAME_INFO_STRUCT.unpack_from(copy)
    said = layout.PACE_OFFSET - layout.FRAME_INFO_OFFSET
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
        pace=layout.decode_text(bytes(copy[said : said + layout.PACE_BYTES])),
        render_s=render_s,
    )
