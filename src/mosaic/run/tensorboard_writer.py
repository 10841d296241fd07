"""Writes TensorBoard event files: points are buffered in a list and encoded in batches.

An event file is a sequence of records: length, masked crc of the length, an `Event` protobuf, masked crc of the event.
The few messages that we need are encoded by hand: `Event {1: wall_time, 2: step, 3: file_version, 5: summary,
7: session_log}`, `Summary {1: value}`, `Value {1: tag, 2: simple_value, 4: image, 8: tensor, 9: metadata}`.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from mosaic.journal.outbox import MAX_BUFFERED_POINTS
from mosaic.journal.points import Point, as_float32

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
