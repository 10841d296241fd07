"""What a lane's bytes mean.

A header of 4096 bytes, then the slots, each a head of 256 bytes and the pixels. Counters are single aligned words that
one process writes. A writer sets `begin` to the frame's number, fills the slot, then sets `end`; a reader looks at
`end`, copies, and looks at `begin`: equal numbers mean that nothing was written in between. That holds where stores
become visible in order (x86); elsewhere a checksum stands in the slot.
"""

from __future__ import annotations

import platform
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np

MAGIC = int.from_bytes(b"MOSAICFL", "little")
VERSION = 1
HEADER_BYTES = 4096
SLOT_HEADER_BYTES = 256
SLOTS = 4
"""With fewer, a fast writer comes round to the slot that a reader is copying."""
MAX_BYTES = 1 << 30
RGB24 = "RGB24"
BGRX32 = "BGRX32"
"""Blue, green, red and a byte that means nothing: what a screen wants."""
FORMATS = {3: RGB24, 4: BGRX32}
NEEDS_CHECKSUM = platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686")

# Words of the header, eight bytes each. The geometry never changes: a new one is a new file.
GEOMETRY_STRUCT = struct.Struct("=11Q")
NEWEST_FRAME_WORD = 16
"""The number of the newest frame; 0 before the first."""
ENDED_WORD = 17
"""Not 0 once no further frame comes into this file: a newer generation is out, or the writer has closed."""
REASON_BEGIN_WORD = 24
REASON_END_WORD = 25
REASON_OFFSET, REASON_BYTES = 256, 1024
"""Why there is no picture; empty where there is one or may be."""

# Words of a slot's head, then its facts.
BEGIN_WORD = 0
END_WORD = 1
CHECKSUM_WORD = 2
FRAME_INFO_STRUCT = struct.Struct("=qqddddd")
"""Episode, step, reward, return, time of the picture, rate, seconds that the picture took."""
FRAME_INFO_OFFSET = 24
PACE_OFFSET, PACE_BYTES = 128, 128


class Geometry(NamedTuple):
    width: int
    height: int
    channels: int
    stride: int
    slots: int
    slot_bytes: int
    generation: int
    has_checksum: int
    pid: int

    @property
    def file_bytes(self) -> int:
        return HEADER_BYTES + self.slots * self.slot_bytes

    @property
    def format(self) -> str:
        return FORMATS[self.channels]


class Frame(NamedTuple):
    image: np.ndarray[Any, np.dtype[np.uint8]]
    """[height, width, 3 or 4], a copy."""
    format: str
    """`RGB24` or `BGRX32`."""
    number: int
    """Counts up within a generation."""
    generation: int
    episode: int
    step: int
    """Within the episode."""
    reward: float
    episodic_return: float
    """So far."""
    rendered_at: float
    """Seconds since the epoch."""
    rate_hz: float
    """How often this environment is drawn at present."""
    pace: str
    """Why so often and not more."""
    render_s: float


class HeaderInvalid(ValueError):
    """The file is no lane, or one of another version."""


def make_geometry(width: int, height: int, channels: int, generation: int, pid: int, has_checksum: bool) -> Geometry:
    stride = width * channels
    pixels = (stride * height + 63) // 64 * 64
    slots = SLOTS if width else 0
    return Geometry(
        width, height, channels, stride, slots, SLOT_HEADER_BYTES + pixels if width else 0, generation,
        int(has_checksum), pid,
    )  # fmt: skip


def pack_header(geometry: Geometry) -> bytes:
    words = GEOMETRY_STRUCT.pack(MAGIC, VERSION, *geometry)
    return words + struct.pack("=Q", zlib.crc32(words))


def parse_header(header: bytes, file_bytes: int) -> Geometry:
    """The geometry of a lane; HeaderInvalid says what is wrong with it."""
    if len(header) < HEADER_BYTES:
        raise HeaderInvalid("its header is cut short")
    words = GEOMETRY_STRUCT.unpack_from(header)
    if words[0] != MAGIC:
        raise HeaderInvalid("it does not begin as a lane does")
    if words[1] != VERSION:
        raise HeaderInvalid(f"it is of version {words[1]}; expected {VERSION}")
    if struct.unpack_from("=Q", header, GEOMETRY_STRUCT.size)[0] != zlib.crc32(header[: GEOMETRY_STRUCT.size]):
        raise HeaderInvalid("its header is damaged")
    found = Geometry(*words[2:])
    expected = make_geometry(
        found.width, found.height, found.channels, found.generation, found.pid, bool(found.has_checksum)
    )
    if found != expected or found.channels not in FORMATS or found.file_bytes > MAX_BYTES:
        raise HeaderInvalid("its geometry makes no sense")
    if file_bytes < found.file_bytes:
        raise HeaderInvalid("it is shorter than its header says")
    return found


def decode_text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "replace")


def encode_text(text: str, size: int) -> bytes:
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode().ljust(size, b"\0")
