"""Writes a run's journal, TensorBoard event file and analytics.json."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from mosaic.base.files import write_json
from mosaic.base.journal import (
    MAX_BUFFERED_POINTS,
    EpisodeRow,
    Journal,
    Outbox,
    Point,
    SeriesByTag,
    as_float32,
    episode_points,
    finite_or_none,
    first_non_finite,
    group_by_tag,
    json_rows,
    json_series,
)
from mosaic.contracts.folder import RunFolder

# --- Writes TensorBoard event files: points are buffered in a list and encoded in batches. An event file is a
#     sequence of records: length, masked crc of the length, an `Event` protobuf, masked crc of the event. The few
#     messages that we need are encoded by hand: `Event {1: wall_time, 2: step, 3: file_version, 5: summary, 7:
#     session_log}`, `Summary {1: value}`, `Value {1: tag, 2: simple_value, 4: image, 8: tensor, 9: metadata}`.


_PREFIX = "events.out.tfevents."
_DT_FLOAT, _DT_STRING = 1, 7
_SESSION_START = 1
_SUCCESS = 1
_RGB = 3

_pack_double = struct.Struct("<d").pack
_pack_float = struct.Struct("<f").pack
_pack_u32 = struct.Struct("<I").pack
_pack_u64 = struct.Struct("<Q").pack


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field: text, bytes or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _masked_crc(crc: int) -> bytes:
    return _pack_u32(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _record(event: bytes) -> bytes:
    from google_crc32c import value as crc32c

    length = _pack_u64(len(event))
    return b"".join((length, _masked_crc(crc32c(length)), event, _masked_crc(crc32c(event))))


def _text_summary(tag: str, text: str) -> bytes:
    """Encode for the text plugin: a string tensor with one element."""
    metadata = _field(1, _field(1, b"text") + _field(2, b""))
    shape = _field(2, b"\x08\x01")
    tensor = b"\x08" + _varint(_DT_STRING) + _field(2, shape) + _field(8, text.encode())
    value = _field(1, f"{tag}/text_summary".encode()) + _field(8, tensor) + _field(9, metadata)
    return _field(5, _field(1, value))


def _image_summary(tag: str, encoded: bytes, width: int, height: int) -> bytes:
    image = b"\x08" + _varint(height) + b"\x10" + _varint(width) + b"\x18" + _varint(_RGB) + _field(4, encoded)
    return _field(5, _field(1, _field(1, tag.encode()) + _field(4, image)))


def _hparams_summary(name: str, number: int, message: bytes) -> bytes:
    """Encode for the hparams plugin: `HParamsPluginData {3: session_start_info, 4: session_end_info}` as metadata of a
    dummy tensor."""
    metadata = _field(1, _field(1, b"hparams") + _field(2, _field(number, message)))
    tensor = b"\x08" + _varint(_DT_FLOAT) + _field(2, _field(2, b"\x08\x01")) + _field(5, _pack_float(0.0))
    value = _field(1, f"_hparams_/{name}".encode()) + _field(8, tensor) + _field(9, metadata)
    return _field(5, _field(1, value))


def _session_start(values: Mapping[str, object], at: float) -> bytes:
    """`SessionStartInfo {1: hparams by name, 5: start_time_secs}`."""
    entries = (_field(1, _field(1, name.encode()) + _field(2, _json_value(value))) for name, value in values.items())
    return b"".join(entries) + b"\x29" + _pack_double(at)


def _json_value(value: object) -> bytes:
    """Encode a `google.protobuf.Value`. The plugin supports numbers, strings and booleans; others become strings."""
    if isinstance(value, bool):
        return b"\x20" + _varint(value)
    if isinstance(value, (int, float)):
        return b"\x11" + _pack_double(value)
    return _field(3, str(value).encode())


class EventWriter:
    """Writes one event file. Nothing is written before `flush`; what does not fit on the disk is kept for the next.

    Without a folder it ignores what is added.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._pending: list[Point | bytes] = []
        self._file: int | None = None
        self._opened_at = time.time()
        self._tag_heads: dict[str, bytes] = {}
        self._length_heads: dict[int, bytes] = {}

    def add_scalar(self, tag: str, value: float, step: int, at: float | None = None) -> None:
        self.add_points([(tag, step, time.time() if at is None else at, as_float32((value,))[0])])

    def add_points(self, points: Iterable[Point]) -> None:
        """Add scalars that are already rounded to float32."""
        if self.folder is not None:
            self._pending.extend(points)

    def add_text(self, tag: str, text: str, step: int) -> None:
        self._add_event(step, _text_summary(tag, text))

    def add_image(self, tag: str, encoded: bytes, width: int, height: int, step: int) -> None:
        """Add an encoded image; TensorBoard animates a GIF."""
        self._add_event(step, _image_summary(tag, encoded, width, height))

    def start_hparams_session(self, values: Mapping[str, object]) -> None:
        """Add the run's row to the hparams tab, whose metrics are the scalars."""
        self._add_event(0, _hparams_summary("session_start_info", 3, _session_start(values, time.time())))

    def end_hparams_session(self) -> None:
        """Mark the run as succeeded. TensorBoard uses the first end that it reads, so no other outcome is written."""
        end = b"\x08" + _varint(_SUCCESS) + b"\x11" + _pack_double(time.time())
        self._add_event(0, _hparams_summary("session_end_info", 4, end))

    def purge_from_step(self, step: int) -> None:
        """Make TensorBoard drop every earlier point from `step` on."""
        self._add_event(step, _field(7, b"\x08" + _varint(_SESSION_START)))

    def _add_event(self, step: int, content: bytes) -> None:
        if self.folder is not None:
            event = b"\x09" + _pack_double(time.time()) + b"\x10" + _varint(step) + content
            self._pending.append(_record(event))

    def flush(self) -> None:
        """Write everything or nothing: on OSError all points stay buffered, up to a limit."""
        if self.folder is None:
            return
        if self._file is None:
            self._file = self._new_file(self.folder)
        if not self._pending:
            return
        batch = self._pending[:]
        data = self._encode(batch)
        end = os.lseek(self._file, 0, os.SEEK_END)
        if end == 0:
            data = _record(b"\x09" + _pack_double(self._opened_at) + _field(3, b"brain.Event:2")) + data
        try:
            if os.write(self._file, data) != len(data):
                raise OSError(f"{self.folder}: the events could not be written completely. Is the disk full?")
        except OSError:
            os.ftruncate(self._file, end)
            del self._pending[: max(0, len(self._pending) - MAX_BUFFERED_POINTS)]
            raise
        del self._pending[: len(batch)]

    def sync(self) -> None:
        """Flush the file to the disk, so that it survives a power loss."""
        if self._file is not None:
            os.fsync(self._file)

    def close(self) -> None:
        try:
            self.flush()
        finally:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _new_file(self, folder: Path) -> int:
        """Create a file whose name sorts after the existing ones: TensorBoard reads files in that order."""
        folder.mkdir(parents=True, exist_ok=True)
        second = int(self._opened_at)
        for path in folder.glob(_PREFIX + "*"):
            stamp = path.name.removeprefix(_PREFIX).partition(".")[0]
            if stamp.isdecimal():
                second = max(second, int(stamp) + 1)
        name = f"{_PREFIX}{second:010d}.{socket.gethostname()}.{os.getpid()}.0"
        return os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _encode(self, batch: list[Point | bytes]) -> bytes:
        # A run writes millions of scalars through this loop: what repeats (tag, length, step) is encoded once.
        from google_crc32c import value as crc32c

        out: list[bytes] = []
        add = out.append
        last_step = -1
        step_field = b""
        for item in batch:
            if isinstance(item, bytes):
                add(item)
                continue
            tag, step, at, value = item
            if step != last_step:
                step_field, last_step = b"\x10" + _varint(step), step
            try:
                tag_head = self._tag_heads[tag]
            except KeyError:
                tag_head = self._tag_heads[tag] = _scalar_head(tag)
            event = b"".join((b"\x09", _pack_double(at), step_field, tag_head, _pack_float(value)))
            length = len(event)
            try:
                add(self._length_heads[length])
            except KeyError:
                head = _pack_u64(length)
                head += _masked_crc(crc32c(head))
                self._length_heads[length] = head
                add(head)
            add(event)
            crc = crc32c(event)
            add(_pack_u32(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF))
        return b"".join(out)


def _scalar_head(tag: str) -> bytes:
    """Encode everything in a scalar's summary before the four bytes of its value."""
    name = _field(1, str(tag).encode(errors="replace")) + b"\x15"  # one bad name must not keep back all points
    value = b"\x0a" + _varint(len(name) + 4) + name
    return b"\x2a" + _varint(len(value) + 4) + value


# --- Writes a run's journal, TensorBoard event file and analytics.json.


MAX_POINTS_PER_LINE = 5_000
"""Keeps a line well below the size limit of a gRPC message."""
VIDEO_TAG = "videos/episode"

_JOURNAL, _EVENT_FILE = "The journal", "The TensorBoard event file"
_RESERVED_KEYS = (
    "run_id", "updated_at", "global_step", "episodes", "mean_return", "scalars", "tensorboard",
    "checkpoints", "best", "last",
)  # fmt: skip


class MetricBuffer:
    """Collects scalars and episodes at the cost of a list append, and returns them in batches."""

    def __init__(self) -> None:
        self.scalars: list[Point] = []
        self.episodes: list[EpisodeRow] = []

    def __bool__(self) -> bool:
        return bool(self.scalars or self.episodes)

    def take_scalars(self) -> list[Point]:
        raw = self.scalars[:]
        if not raw:
            return []
        del self.scalars[: len(raw)]  # not clear(): another thread may have added one
        tags, steps, times, values = zip(*raw, strict=True)
        return list(zip(tags, map(int, steps), times, as_float32(values), strict=True))

    def take_episodes(self) -> list[EpisodeRow]:
        raw = self.episodes[:]
        if not raw:
            return []
        del self.episodes[: len(raw)]
        numbers, envs, steps, times, returns, lengths = zip(*raw, strict=True)
        rounded = as_float32(returns)
        return list(zip(numbers, map(int, envs), map(int, steps), times, rounded, map(int, lengths), strict=True))


class AnalyticsFile:
    def __init__(self, folder: RunFolder, tensorboard: Path | None) -> None:
        self._folder = folder
        self.scalars: dict[str, dict[str, Any]] = {}
        """By tag: step, time and value of the newest point, and the number of points."""
        self.tensorboard_dir = folder.to_portable(tensorboard) if tensorboard else None
        self._artifacts: dict[str, Any] = {"wandb": None, "videos": [], "model": None, "evaluation": None}
        self._artifacts.update(_read_artifacts(folder.analytics))

    def set_artifact(self, name: str, value: Any) -> None:
        if name in _RESERVED_KEYS:
            raise ValueError(f"analytics.json: the entry {name!r} is reserved; choose another name.")
        self._artifacts[name] = value

    def write(self, entries: Mapping[str, Any]) -> None:
        """Write the file with the run's own entries (progress and checkpoints) and the artifacts."""
        header = {"run_id": self._folder.run_id, "updated_at": time.time()}
        if (wandb := _read_wandb_status(self._folder)) is not None:
            self._artifacts["wandb"] = wandb
        tensorboard = {"dir": self.tensorboard_dir, "enabled": self.tensorboard_dir is not None}
        body = {**header, **entries, "scalars": self.scalars, "tensorboard": tensorboard, **self._artifacts}
        write_json(self._folder.analytics, body)


class RunLog:
    """Writes the same numbers to all three. On a full disk they are buffered, and the run continues."""

    def __init__(self, folder: RunFolder, tensorboard: Path | None, process: int | None = None) -> None:
        self.points = MetricBuffer()
        self.analytics = AnalyticsFile(folder, tensorboard)
        self._outbox = Outbox(Journal(folder.path / f"journal.{process}.jsonl" if process else folder.journal))
        # TensorBoard reads the files of one folder one after the other, and each of them only once.
        self.event_file = EventWriter(tensorboard / f"process-{process}" if tensorboard and process else tensorboard)
        self._failing_files: set[str] = set()

    @property
    def has_unwritten_lines(self) -> bool:
        return self._outbox.has_lines

    def event(self, kind: str, **fields: Any) -> None:
        """Write one line immediately."""
        self._outbox.put(kind, fields)
        self._write(_JOURNAL, self._outbox.flush)

    def write_hyperparameters(self, values: Mapping[str, object], step: int) -> None:
        """Write the journal's event, a table for TensorBoard's text tab and the run's row in its hparams tab."""
        self.event("hyperparameters", values=to_json(values))
        rows = "".join(f"\n|{name}|{value}|" for name, value in values.items())
        self.event_file.add_text("hyperparameters", f"|param|value|\n|-|-|{rows}", step)
        self.event_file.start_hparams_session(values)

    def write_video_preview(self, video_path: Path) -> None:
        """Write the first seconds of `rl-video-episode-<n>.mp4` as a GIF for TensorBoard; a failure is ignored."""
        if self.event_file.folder is None:
            return
        from mosaic.base.media import encode_gif

        # Decoders raise all kinds of errors, and the video itself exists.
        with contextlib.suppress(Exception):
            gif = encode_gif(video_path)
            episode = int(video_path.stem.rpartition("-")[2])
            if gif is not None:
                self.event_file.add_image(VIDEO_TAG, gif.encoded, gif.width, gif.height, episode)

    def write_points(self) -> None:
        """Write buffered points: to the event file first, so that a killed run's has whatever its journal has."""
        anomalies: dict[str, int] = {}
        scalars = self.points.take_scalars()
        for start in range(0, len(scalars), MAX_POINTS_PER_LINE):
            part = scalars[start : start + MAX_POINTS_PER_LINE]
            series = group_by_tag(part)
            non_finite = self._update_analytics(series, anomalies)
            self._outbox.put("metrics", {"series": json_series(series, non_finite)}, len(part))
        self.event_file.add_points(scalars)
        episodes = self.points.take_episodes()
        for start in range(0, len(episodes), MAX_POINTS_PER_LINE):
            rows = episodes[start : start + MAX_POINTS_PER_LINE]
            points = episode_points(rows)
            self._update_analytics(group_by_tag(points), anomalies)
            self._outbox.put("episodes", {"rows": json_rows(rows)}, len(rows))
            self.event_file.add_points(points)
        for tag, step in anomalies.items():
            self._outbox.put("anomaly", {"tag": tag, "step": step})
        self._write(_EVENT_FILE, self.event_file.flush)
        self._write(_JOURNAL, self._outbox.flush)

    def write_analytics(self, **entries: Any) -> None:
        self._write("analytics.json", lambda: self.analytics.write(entries))

    def sync(self) -> None:
        """Flush the files to the disk, so that they survive a power loss."""
        self._outbox.journal.sync()
        self.event_file.sync()

    def close(self) -> None:
        self._write(_EVENT_FILE, self.event_file.close)
        self._outbox.close()

    def _write(self, what: str, write: Callable[[], None]) -> None:
        """Run a write that must not stop the training; report once on stderr that it fails."""
        try:
            write()
        except OSError as error:
            if what not in self._failing_files:
                self._failing_files.add(what)
                # stderr may be on the same full disk
                with contextlib.suppress(OSError):
                    print(f"{what} cannot be written ({error}). The run continues and retries.", file=sys.stderr)
        else:
            self._failing_files.discard(what)

    def _update_analytics(self, series: SeriesByTag, anomalies: dict[str, int]) -> dict[str, int]:
        """Update analytics.json; return the non-finite tags of `series` and add new ones to `anomalies`."""
        _add_series(self.analytics.scalars, series)
        non_finite = first_non_finite(series)
        for tag, step in non_finite.items():
            anomalies.setdefault(tag, step)
        return non_finite


def add_points(
    scalars: Mapping[str, dict[str, Any]], points: list[Point], episodes: list[EpisodeRow]
) -> dict[str, dict[str, Any]]:
    """Return the `scalars` of analytics.json with these buffered points."""
    buffer, result = MetricBuffer(), dict(scalars)
    buffer.scalars, buffer.episodes = points[:], episodes[:]
    _add_series(result, group_by_tag(buffer.take_scalars()))
    _add_series(result, group_by_tag(episode_points(buffer.take_episodes())))
    return result


def _add_series(scalars: dict[str, dict[str, Any]], series: SeriesByTag) -> None:
    for tag, rows in series.items():
        step, at, value = rows[-1]
        count = scalars[tag]["count"] if tag in scalars else 0
        scalars[tag] = {"step": step, "at": at, "value": finite_or_none(value), "count": count + len(rows)}


def count_hellos(journal: Path) -> int:
    """Count the attempts so far. Lines are searched, not parsed: parsing a long journal takes seconds."""
    try:
        with open(journal, "rb") as file:
            return sum(b'"kind":"hello"' in line[:200] for line in file)
    except FileNotFoundError:
        return 0


def to_json(value: Any) -> Any:
    """Return settings as JSON values; text where there is no such value, as for infinity."""
    if hasattr(value, "tolist"):  # of numpy and torch
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [to_json(part) for part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(part) for key, part in value.items()}
    is_number = isinstance(value, float) and math.isfinite(value)
    return value if is_number or value is None or isinstance(value, (str, int)) else str(value)


def _read_wandb_status(folder: RunFolder) -> dict[str, Any] | None:
    """Return how the run is synchronized with W&B, from the ledger that the sidecar writes."""
    try:
        ledger = json.loads(folder.wandb_ledger.read_text(encoding="utf-8"))
        status = {key: ledger[key] for key in ("state", "url", "project")}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {**status, "ledger": str(folder.wandb_ledger.relative_to(folder.path))}


def _read_artifacts(path: Path) -> dict[str, Any]:
    """Return the entries that an earlier attempt added to the run's own."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in body.items() if key not in _RESERVED_KEYS} if isinstance(body, dict) else {}
