"""Appends and follows JSON lines, and prepares what producers append. Standard library only, Python 3.8 and up: the
keeper and the probe use it too.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from io import FileIO
from typing import Any, Dict, List, NamedTuple, Protocol, Tuple

from mosaic.contracts.names import LENGTH_TAG, MAX_TIME, RETURN_TAG

# --- Reads a journal from a byte offset while another process appends to it.


MAX_LINE_BYTES = 4 << 20
"""A longer line is skipped."""
MAX_DEPTH = 32
"""Of nested lists and objects in a line."""
_CHUNK_BYTES = 1 << 20


class Line(NamedTuple):
    body: dict[str, Any]
    end: int
    """The byte offset after the line."""


class Follower:
    """Returns the complete lines after `offset`. A line that is not a valid event is counted and skipped.

    A file that is shorter than before was emptied or replaced: it is read from its beginning.
    Any program may write to these files: what is returned is safe to store and to encode again.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.begin = offset
        """Where the last `read` started."""
        self.malformed_count = 0
        """Number of lines that were not events. Of a line that is too long, each part counts."""

    def read(self, limit_bytes: int = 8 * _CHUNK_BYTES) -> list[Line]:
        """Return new lines, up to about `limit_bytes`; an incomplete last line is left for the next call."""
        try:
            status = os.stat(self.path)
            if status.st_size < self.offset:
                self.offset = 0
            self.begin = self.offset
            if status.st_size == self.offset or not stat.S_ISREG(status.st_mode):
                return []
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                data = file.read(limit_bytes)
                while b"\n" not in data and len(data) < MAX_LINE_BYTES:
                    more = file.read(_CHUNK_BYTES)
                    if not more:
                        return []
                    data += more
        except FileNotFoundError:
            return []
        if b"\n" not in data:
            self.offset += len(data)
            self.malformed_count += 1
            return []
        lines = []
        end = self.offset
        for raw in data[: data.rfind(b"\n")].split(b"\n"):
            end += len(raw) + 1
            body = parse_event(raw)
            if body is None:
                self.malformed_count += 1 if raw else 0
            else:
                lines.append(Line(body, end))
        self.offset = end
        return lines

    def read_rest(self) -> Iterator[Line]:
        """Yield all new lines, however many they are."""
        while True:
            before = self.offset
            yield from self.read()
            if self.offset == before:
                return


def parse_event(raw: bytes) -> dict[str, Any] | None:
    """Decode a line; None where it is not an event or cannot be stored. Numbers that are not finite become None."""
    if len(raw) > MAX_LINE_BYTES:
        return None
    try:
        text = raw.decode()
        body = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:  # an escaped surrogate without its pair cannot be encoded
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or type(body.get("seq")) is not int or not isinstance(body.get("kind"), str):
        return None
    at = body.get("at", 0.0)
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at <= MAX_TIME:
        return None
    return None if _is_deeper(body, MAX_DEPTH) else body


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        nested = [part for part in level if isinstance(part, (dict, list))]
        if not nested:
            return False
        level = [part for parts in nested for part in (parts.values() if isinstance(parts, dict) else parts)]
    return True


def _parse_int(text: str) -> int:
    value = int(text)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("The number does not fit into 64 bits.")
    return value


def _parse_float(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


_DECODER = json.JSONDecoder(parse_int=_parse_int, parse_float=_parse_float, parse_constant=lambda _: None)


def read_all(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return every event of a file that is no longer written to."""
    return [line.body for line in Follower(path).read_rest()]


# --- The writer of a journal; each file has exactly one.


_TAIL_BYTES = 1 << 16


class EventSink(Protocol):
    """`Journal.append`, or what stands in for it."""

    def __call__(self, kind: str, /, **fields: Any) -> object: ...


class Journal:
    """Appends `{"seq": n, "at": seconds, "kind": …}` lines; each is one write, so a crash truncates at most the last.

    An existing file is continued: `seq` goes up from there, and a truncated last line is terminated, not removed. If it
    is deleted while it is open, it is created again; OSError while its folder does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._file = self._open()
        self._lock = threading.Lock()
        self.seq = _last_seq(self._file)

    def append(self, kind: str, /, **fields: Any) -> int:
        """Write one event and return its `seq`."""
        with self._lock:
            seq = self.seq + 1
            line = json.dumps({"seq": seq, "at": time.time(), "kind": kind, **fields}, separators=(",", ":"))
            self._write(line.encode() + b"\n")
            self.seq = seq
            return seq

    def _write(self, data: bytes) -> None:
        """Write all of `data` or nothing: a partial write on a full disk is undone, so the next line starts cleanly."""
        if os.fstat(self._file.fileno()).st_nlink == 0:
            deleted, self._file = self._file, self._open()
            deleted.close()
        end = self._file.seek(0, os.SEEK_END)
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, "The line could not be written completely. Is the disk full?", self._path)
        except OSError:
            self._file.truncate(end)
            raise

    def _open(self) -> FileIO:
        return open(self._path, "ab+", buffering=0, opener=partial(os.open, mode=0o600))

    def sync(self) -> None:
        """Flush the file to the disk, so that it survives a power loss."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        with self._lock:
            self._file.close()


def _last_seq(file: Any) -> int:
    """Return the last `seq`, searching further back while no line can be parsed."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return 0
    file.seek(size - 1)
    if file.read(1) != b"\n":
        file.write(b"\n")
    span = _TAIL_BYTES
    while True:
        file.seek(max(0, size - span))
        for line in reversed(file.read().splitlines()):
            event = parse_event(line)
            if event is not None:
                return int(event["seq"])
        if span >= size:
            return 0
        span *= 8


# --- Lines for a journal that wait while it cannot be written, as on a full disk.


MAX_BUFFERED_POINTS = 500_000
"""Points (about 100 MB) kept while the disk is full; beyond that the oldest are dropped."""


class _PendingLine(NamedTuple):
    kind: str
    fields: dict[str, Any]
    points: int


class Outbox:
    """Writes lines in order. Those that cannot be written stay for the next `flush`, with their original time."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._lines: deque[_PendingLine] = deque()
        self._buffered_points = 0
        self._lost_points = 0

    @property
    def has_lines(self) -> bool:
        return bool(self._lines)

    def put(self, kind: str, fields: dict[str, Any], points: int = 0) -> None:
        self._lines.append(_PendingLine(kind, {"at": time.time(), **fields}, points))
        self._buffered_points += points
        while self._buffered_points > MAX_BUFFERED_POINTS:
            oldest = next(line for line in self._lines if line.points)
            self._lines.remove(oldest)
            self._buffered_points -= oldest.points
            self._lost_points += oldest.points

    def flush(self) -> None:
        """Write all lines, or raise OSError and keep the rest."""
        while self._lines:
            kind, fields, points = self._lines[0]
            self.journal.append(kind, **fields)
            self._lines.popleft()
            self._buffered_points -= points
        if self._lost_points:
            text = (
                f"{self._lost_points} points were lost while the journal could not be written. Make room on the disk."
            )
            self.journal.append("warning", text=text, code="points_lost")
            self._lost_points = 0

    def try_flush(self) -> bool:
        """Write all lines that can be written; return whether all are."""
        try:
            self.flush()
        except OSError:
            return False
        return True

    def close(self) -> None:
        self.journal.close()


# --- Prepares logged values for the journal, TensorBoard and analytics.json, which all get the same numbers.


Point = Tuple[str, int, float, float]
"""Tag, step, time, value."""
EpisodeRow = Tuple[int, int, int, float, float, int]
"""Episode number (from 1), environment index, step, time, return, length."""
SeriesByTag = Dict[str, List[Tuple[int, float, float]]]
"""By tag: step, time, value."""


def as_float32(values: Iterable[float]) -> list[float]:
    """Round to the precision that TensorBoard stores, so that all views show the same value."""
    return array("f", values).tolist()


def finite_or_none(value: float) -> float | None:
    """Replace infinity and NaN, which JSON does not have, by None."""
    return value if math.isfinite(value) else None


def group_by_tag(points: Iterable[Point]) -> SeriesByTag:
    series: SeriesByTag = {}
    for tag, step, at, value in points:
        row = (step, at, value)
        try:
            series[tag].append(row)
        except KeyError:
            series[tag] = [row]
    return series


def episode_points(rows: Iterable[EpisodeRow]) -> list[Point]:
    """Return two points per episode: its return and its length."""
    points: list[Point] = []
    for _, _, step, at, episodic_return, length in rows:
        points.append((RETURN_TAG, step, at, episodic_return))
        points.append((LENGTH_TAG, step, at, float(length)))
    return points


def first_non_finite(series: SeriesByTag) -> dict[str, int]:
    """Return by tag the step of its first value that is not finite."""
    steps = {}
    for tag, rows in series.items():
        # Float32 values cannot overflow a sum in double: it is finite exactly when all of them are.
        if not math.isfinite(sum(row[2] for row in rows)):
            steps[tag] = next(row[0] for row in rows if not math.isfinite(row[2]))
    return steps


def json_series(series: SeriesByTag, non_finite: Iterable[str]) -> dict[str, Sequence[tuple[int, float, float | None]]]:
    """Return the series for JSON; `non_finite` are the tags with values that are not finite."""
    replaced = {tag: [(step, at, finite_or_none(value)) for step, at, value in series[tag]] for tag in non_finite}
    return {**series, **replaced}


def json_rows(rows: Iterable[EpisodeRow]) -> list[Any]:
    """Return episodes for JSON."""
    return [(*row[:4], finite_or_none(row[4]), row[5]) for row in rows]


# --- Measures steps per second over the last few seconds of running, without pauses.


class SpeedMeter:
    def __init__(self, window_s: float = 5.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, int]] = deque()
        self._paused_s = 0.0

    def start(self, step: int, now_s: float | None = None) -> None:
        self._samples.clear()
        self._samples.append((self._running_time_s(now_s), step))

    def exclude_pause(self, pause_s: float) -> None:
        """Do not count a pause as running time."""
        self._paused_s += pause_s

    def update(self, step: int, now_s: float | None = None) -> float | None:
        """Return the speed up to this step; None before any time has passed."""
        now = self._running_time_s(now_s)
        self._samples.append((now, step))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self._window_s:
            self._samples.popleft()
        since, first = self._samples[0]
        return (step - first) / (now - since) if now > since else None

    def _running_time_s(self, now_s: float | None) -> float:
        return (time.monotonic() if now_s is None else now_s) - self._paused_s
