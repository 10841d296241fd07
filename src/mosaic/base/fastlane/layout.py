"""The byte layout of a lane.

A header of 4096 bytes, then the slots, each a header of 256 bytes and the pixels. Counters are single aligned words
with one writing process. The writer sets `begin` to the frame's number, fills the slot, then sets `end`; a reader loads
`end`, copies, and loads `begin`: equal numbers mean that nothing was written in between. That holds where stores become
visible in order (x86); elsewhere the slot has a checksum.
"""

from __future__ import annotations

import platform
import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

MAGIC = int.from_bytes(b"MOSAICFL", "little")
VERSION = 2
HEADER_BYTES = 4096
SLOT_HEADER_BYTES = 256
SLOTS = 4
"""With fewer, a fast writer would overwrite the slot that a reader is copying."""
MAX_BYTES = 1 << 30
RGB24 = "RGB24"
BGRX32 = "BGRX32"
"""Blue, green, red and an unused byte, as Qt and most displays expect."""
FORMATS = {3: RGB24, 4: BGRX32}
NEEDS_CHECKSUM = platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686")

# Words of the header, eight bytes each. The geometry of a file never changes: another size is a new file.
GEOMETRY_STRUCT = struct.Struct("=11Q")
NEWEST_FRAME_WORD = 16
"""The number of the newest frame; 0 before the first."""
ENDED_WORD = 17
"""Not 0 once the file is final: a newer generation has replaced it, or the writer has closed."""
REASON_BEGIN_WORD = 24
REASON_END_WORD = 25
REASON_OFFSET, REASON_BYTES = 256, 1024
"""Why there are no frames; empty where there are some or may be."""

# Words of a slot's header, then the frame's info.
BEGIN_WORD = 0
END_WORD = 1
CHECKSUM_WORD = 2
FRAME_INFO_STRUCT = struct.Struct("=qqddddddd?")
"""The fields of `Frame` from `episode` on."""
FRAME_INFO_OFFSET = 24


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


class FrameHud(NamedTuple):
    """What viewers show with a frame; the fields are explained at `Frame`."""

    env: int
    number: int
    episode: int
    step: int
    reward: float
    episodic_return: float
    rendered_at: float
    rate_hz: float
    budget: float
    cost: float
    is_limited: bool


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
    """Return of the episode so far."""
    rendered_at: float
    """Seconds since the epoch."""
    rate_hz: float
    """How often this environment is rendered at present."""
    render_s: float
    budget: float
    """Share of the run's time that the frames of all environments may take."""
    cost: float
    """Share of the run's time that recent frames of this environment took."""
    is_limited: bool
    """Whether the budget, not the requested rate, determines how often it is rendered."""

    def hud(self, env: int) -> FrameHud:
        return FrameHud(env, *(getattr(self, name) for name in FrameHud._fields[1:]))


def describe_cost(huds: Sequence[FrameHud]) -> str:
    """Say what the frames of these environments cost their run; empty before it has been measured."""
    if any(hud.is_limited for hud in huds):
        return f"limited to {100 * huds[0].budget:.3g} % of the run's time"
    cost = sum(hud.cost for hud in huds)
    return f"{100 * cost:.{1 if cost < 0.0995 else 0}f} % of the run's time" if cost else ""


class HeaderInvalid(ValueError):
    """The file is not a lane, or is of another version."""


def make_geometry(width: int, height: int, channels: int, generation: int, pid: int, has_checksum: bool) -> Geometry:
    stride = width * channels
    pixels = (stride * height + 63) // 64 * 64
    slots, slot_bytes = (SLOTS, SLOT_HEADER_BYTES + pixels) if width else (0, 0)
    return Geometry(width, height, channels, stride, slots, slot_bytes, generation, int(has_checksum), pid)


def pack_header(geometry: Geometry) -> bytes:
    words = GEOMETRY_STRUCT.pack(MAGIC, VERSION, *geometry)
    return words + struct.pack("=Q", zlib.crc32(words))


def parse_header(header: bytes, file_bytes: int) -> Geometry:
    """Return the geometry of a lane; raise HeaderInvalid with the problem."""
    if len(header) < HEADER_BYTES:
        raise HeaderInvalid("its header is truncated")
    words = GEOMETRY_STRUCT.unpack_from(header)
    if words[0] != MAGIC:
        raise HeaderInvalid("it does not start like a lane")
    if words[1] != VERSION:
        raise HeaderInvalid(f"it has version {words[1]}; expected {VERSION}")
    if struct.unpack_from("=Q", header, GEOMETRY_STRUCT.size)[0] != zlib.crc32(header[: GEOMETRY_STRUCT.size]):
        raise HeaderInvalid("its header is damaged")
    geometry = Geometry(*words[2:])
    width, height, channels, *_, generation, has_checksum, pid = geometry
    expected = make_geometry(width, height, channels, generation, pid, bool(has_checksum))
    if geometry != expected or geometry.channels not in FORMATS or geometry.file_bytes > MAX_BYTES:
        raise HeaderInvalid("its geometry is invalid")
    if file_bytes < geometry.file_bytes:
        raise HeaderInvalid("it is shorter than its header requires")
    return geometry


def decode_text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("utf-8", "replace")


def encode_text(text: str, size: int) -> bytes:
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode().ljust(size, b"\0")
