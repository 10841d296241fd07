"""A film as a small moving picture, for TensorBoard's image tab."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mosaic.run.handle import Run

MAX_FRAMES = 48
RATE_HZ = 8.0
MAX_WIDTH_PX = 160
PALETTE_SIZE = 64
VIDEO_TAG = "videos/episode"


class EncodedGif(NamedTuple):
    encoded: bytes
    width: int
    height: int


def log_video_preview(run: Run, video_path: Path) -> None:
    """Adds the first seconds of `rl-video-episode-<n>.mp4` to the run's event file. Nobody depends on it."""
    try:
        picture = encode_gif(video_path)
        episode = int(video_path.stem.rpartition("-")[2])
    except Exception:
        # Encoders fail in ways of their own, and the film itself is there.
        return
    if picture is not None:
        run.image(VIDEO_TAG, picture.encoded, picture.width, picture.height, episode)


def encode_gif(video_path: Path) -> EncodedGif | None:
    """The beginning of a film, some pictures a second; none where it has not a single one."""
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
        every_s, due_s, count = 1 / RATE_HZ, 0.0, 0
        frame: Any
        for frame in container.decode(stream):
            if frame.time is not None and frame.time + 1e-6 < due_s:
                continue
            due_s += every_s
            count += 1
            height = (
                max(2, round(frame.height * MAX_WIDTH_PX / frame.width)) if frame.width > MAX_WIDTH_PX else frame.height
            )
            yield frame.to_image(width=min(MAX_WIDTH_PX, frame.width), height=height)
            if count >= MAX_FRAMES:
                return
