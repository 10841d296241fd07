"""Encodes the first seconds of a video as a small GIF."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

MAX_FRAMES = 48
RATE_HZ = 8.0
MAX_WIDTH_PX = 160
PALETTE_SIZE = 64


class EncodedGif(NamedTuple):
    encoded: bytes
    width: int
    height: int


def encode_gif(video_path: Path) -> EncodedGif | None:
    """Return the start of a video as a GIF; None if it has no frames."""
    frames = list(_sample_frames(video_path))
    if not frames:
        return None
    encoded = io.BytesIO()
    first, *others = (frame.quantize(PALETTE_SIZE) for frame in frames)
    first.save(encoded, "GIF", save_all=True, append_images=others, duration=round(1000 / RATE_HZ), loop=0)
    return EncodedGif(encoded.getvalue(), *first.size)


def _sample_frames(video_path: Path) -> Iterator[Any]:
    import av

    with av.open(str(video_path)) as container:
        stream = container.streams.video[0]
        due_s, count = 0.0, 0
        frame: Any
        for frame in container.decode(stream):
            if frame.time is not None and frame.time + 1e-6 < due_s:
                continue
            due_s += 1 / RATE_HZ
            count += 1
            width = min(MAX_WIDTH_PX, frame.width)
            height = max(2, round(frame.height * width / frame.width)) if width < frame.width else frame.height
            yield frame.to_image(width=width, height=height)
            if count >= MAX_FRAMES:
                return
