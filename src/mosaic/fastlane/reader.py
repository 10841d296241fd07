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
from .place import Path, beat_path, lane_path

BEAT_S = 0.5
"""How often the beat is touched, and the lane's place looked at."""
ATTEMPTS = 8
WISHES_LAST_S = 3.0

WAITING = "waiting"
CONNECTED = "connected"
UNAVAILABLE = "unavailable"


class LaneReader:
    """One environment of a run, as somebody sees it. `rate_hz` and `budget` are wishes to the writer."""

    def __init__(
        self, folder: Path, index: int = 0, *, rate_hz: float | None = None, budget: float | None = None
    ) -> None:
        self.index = index
        self.torn = 0
        """Copies that were thrown away because the writer came round."""
        self.gave_up = 0
        """Looks that brought no frame because of that."""
        self.invalid = 0
        """Files in the lane's place that were no lane."""
        self.problem = ""
        """What was wrong with the last of them."""
        self.reason = ""
        """Why there is no picture."""
        self.state = WAITING
        self._path = lane_path(folder, index)
        self._beat = beat_path(folder, index)
        self._wishes = {name: value for name, value in (("rate_hz", rate_hz), ("budget", budget)) if value is not None}
        self._beat_at = 0.0
        self._file: tuple[int, int, int] | None = None
        """Which file is mapped, or was refused."""
        self._number = 0
        self._spare = bytearray()
        self._forget()

    def _forget(self) -> None:
        self._words: Any = None
        self._memory: Any = None
        self._geometry: layout.Geometry | None = None

    def newest(self) -> layout.Frame | None:
        """The newest frame if it was not given before. Call it often: it also keeps the writer drawing."""
        now = time.monotonic()
        has_ended = self._words is not None and self._words[layout.ENDED]
        if now >= self._beat_at or has_ended:
            if now >= self._beat_at:
                self._beat_at = now + BEAT_S
                self.touch()
            self._follow()
        if self._geometry is None:
            return None
        frame = self._read() if self._geometry.slots else None
        self._judge(frame)
        return frame

    def touch(self) -> None:
        """Says that somebody watches. Makes no file: a lane that is gone stays gone."""
        with suppress(OSError):
            if self._may_wish():
                file = os.open(self._beat, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
                try:
                    if self._wishes:
                        os.write(file, json.dumps({**self._wishes, "at": time.time()}).encode())
                finally:
                    os.close(file)
            os.utime(self._beat)

    def _may_wish(self) -> bool:
        """Whether ours should stand in the beat: where nobody who is still there wishes for more."""
        with open(self._beat, "rb") as file:
            found = file.read(1000)
        if not found:
            return bool(self._wishes)
        try:
            wishes = json.loads(found)
            is_over = abs(time.time() - wishes["at"]) > WISHES_LAST_S
            more = all(wishes.get(name, 0) <= value for name, value in self._wishes.items())
        except (ValueError, TypeError, KeyError):
            return True
        return bool(is_over or (self._wishes and more))

    def _follow(self) -> None:
        """Opens the lane, or the newer one that has taken its place."""
        try:
            found = os.stat(self._path)
        except OSError:
            self._forget()
            self._file = None
            if self.state != UNAVAILABLE:
                self.state = WAITING
            return
        file = (found.st_dev, found.st_ino, found.st_ctime_ns)
        if file[:2] == (self._file or ())[:2] and (self._words is not None or file == self._file):
            return
        self._forget()
        self._file = file
        self._number = 0
        try:
            self._open()
        except (OSError, ValueError) as error:
            self._forget()
            self.invalid += 1
            self.problem = f"{os.path.basename(self._path)}: {error}"

    def _open(self) -> None:
        file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(file).st_size
            header = os.read(file, layout.HEADER_BYTES)
            made = layout.parsed(header, size)
            memory = mmap.mmap(file, made.file_bytes, prot=mmap.PROT_READ)
        finally:
            os.close(file)
        self._memory = memoryview(memory)
        self._words = self._memory.cast("Q")
        self._geometry = made

    def _read(self) -> layout.Frame | None:
        made, words, memory = self._geometry, self._words, self._memory
        assert made is not None
        if words[layout.HEAD] == self._number:
            return None
        # Memory that was used before is faster to write to: a copy must not take as long as a fast writer's round.
        size = made.slot_bytes - layout.FACTS_AT
        copy = self._spare if len(self._spare) == size else bytearray(size)
        self._spare = copy
        for _ in range(ATTEMPTS):
            newest = words[layout.HEAD]
            at = layout.HEADER_BYTES + newest % made.slots * made.slot_bytes
            end = words[at // 8 + layout.END]
            memoryview(copy)[:] = memory[at + layout.FACTS_AT : at + made.slot_bytes]
            checksum = words[at // 8 + layout.CHECKSUM]
            if words[at // 8 + layout.BEGIN] == end == newest and (
                not made.has_checksum or zlib.crc32(copy) == checksum
            ):
                self._number = newest
                self._spare = bytearray()
                return _frame(made, newest, copy)
            self.torn += 1
        self.gave_up += 1
        return None

    def _judge(self, frame: layout.Frame | None) -> None:
        if frame is not None:
            self.state, self.reason = CONNECTED, ""
            return
        reason = self._said_reason()
        if reason:
            self.state, self.reason = UNAVAILABLE, reason
        elif self.state == UNAVAILABLE:
            self.state, self.reason = WAITING, ""

    def _said_reason(self) -> str:
        words = self._words
        end = words[layout.REASON_END]
        text = bytes(self._memory[layout.REASON_AT : layout.REASON_AT + layout.REASON_BYTES]) if end else b""
        return layout.as_text(text) if end and words[layout.REASON_BEGIN] == end else ""

    def close(self) -> None:
        self._forget()


def _frame(made: layout.Geometry, number: int, copy: bytearray) -> layout.Frame:
    """`copy` is a slot without its counters."""
    episode, step, reward, episodic_return, rendered_at, rate_hz, render_s = layout.FACTS.unpack_from(copy)
    said = layout.PACE_AT - layout.FACTS_AT
    begin = layout.SLOT_HEAD_BYTES - layout.FACTS_AT
    image = np.frombuffer(copy, np.uint8, made.stride * made.height, begin)
    return layout.Frame(
        image=image.reshape(made.height, made.width, made.channels),
        format=made.format,
        number=number,
        generation=made.generation,
        episode=episode,
        step=step,
        reward=reward,
        episodic_return=episodic_return,
        rendered_at=rendered_at,
        rate_hz=rate_hz,
        pace=layout.as_text(bytes(copy[said : said + layout.PACE_BYTES])),
        render_s=render_s,
    )
