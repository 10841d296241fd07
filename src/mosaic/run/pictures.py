"""A film as a small moving picture, for TensorBoard's image tab."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mosaic.run.handle import Run

MOST_FRAMES = 48
RATE_HZ = 8.0
WIDTH = 160
COLOURS = 64
TAG = "videos/episode"


class Picture(NamedTuple):
    encoded: bytes
    width: int
    height: int


def show_film(run: Run, film: Path) -> None:
    """Adds the first seconds of `rl-video-episode-<n>.mp4` to the run's event file. Nobody depends on it."""
    try:
        picture = small_gif(film)
        episode = int(film.stem.rpartition("-")[2])
    except Exception:
        # Encoders fail in ways of their own, and the film itself is there.
        return
    if picture is not None:
        run.picture(TAG, picture.encoded, picture.width, picture.height, episode)


def small_gif(film: Path) -> Picture | None:
    """The beginning of a film, some pictures a second; none where it has not a single one."""
    frames = list(_frames(film))
    if not frames:
        return None
    encoded = io.BytesIO()
    first, *others = (frame.quantize(COLOURS) for frame in frames)
    first.save(encoded, "GIF", save_all=True, append_images=others, duration=round(1000 / RATE_HZ), loop=0)
    return Picture(encoded.getvalue(), *first.size)


def _frames(film: Path) -> Iterator[Any]:
    import av

    with av.open(str(film)) as container:
        stream = container.streams.video[0]
        every_s, due_s, count = 1 / RATE_HZ, 0.0, 0
        frame: Any
        for frame in container.decode(stream):
            if frame.time is not None and frame.time + 1e-6 < due_s:
                continue
            due_s += every_s
            count += 1
            height = max(2, round(frame.height * WIDTH / frame.width)) if frame.width > WIDTH else frame.height
            yield frame.to_image(width=min(WIDTH, frame.width), height=height)
            if count >= MOST_FRAMES:
                return
