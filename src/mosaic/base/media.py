"""Video files: writes MP4 and makes GIF previews of it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mosaic.base.files import write_error
from mosaic.contracts.errors import MissingExtra

_PIXEL_FORMATS = {3: "rgb24", 4: "bgra"}


class VideoWriter:
    """Encodes H.264. The file appears under its name when it is complete."""

    def __init__(self, path: Path, rate_hz: float) -> None:
        try:
            import av
        except ImportError:
            raise MissingExtra("Saving a video needs PyAV: pip install 'mosaic-rl[video]'.") from None
        self._av = av
        self.path = path
        self._temp_path = path.with_name(f".{path.name}.tmp")
        self.rate_hz = max(1, round(rate_hz))
        self._container: Any = None
        self._stream: Any = None
        self.size: tuple[int, int] | None = None
        """Width and height, set by the first frame. They are even, because the encoder halves the color planes."""
        self.frame_count = 0

    def add(self, image: Any) -> None:
        """Append a frame (bytes [height, width, 3: RGB or 4: BGRX]), cropped or padded to the size of the first."""
        if self.size is None:
            height, width = image.shape[:2]
            self.size = max(2, width // 2 * 2), max(2, height // 2 * 2)
            self._open(*self.size)
        frame = self._av.VideoFrame.from_ndarray(_fit(image, *self.size), format=_PIXEL_FORMATS[image.shape[2]])
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
        self.frame_count += 1

    def _open(self, width: int, height: int) -> None:
        try:
            self._container = self._av.open(str(self._temp_path), "w", format="mp4")
        except OSError as error:
            raise write_error(self.path, error) from None
        self._stream = self._container.add_stream("h264", rate=self.rate_hz)
        self._stream.pix_fmt = "yuv420p"
        self._stream.options = {"preset": "veryfast"}
        self._stream.width, self._stream.height = width, height

    def finish(self) -> None:
        if self._container is not None:
            for packet in self._stream.encode():
                self._container.mux(packet)
            self._container.close()
            self._container = None
            os.replace(self._temp_path, self.path)

    def discard(self) -> None:
        """Remove the incomplete file."""
        if self._container is not None:
            with suppress(OSError):  # it ends the file first, which fails where writing has failed
                self._container.close()
            self._container = None
        self._temp_path.unlink(missing_ok=True)


def _fit(image: Any, width: int, height: int) -> Any:
    import numpy as np

    if image.shape[:2] == (height, width):
        return np.ascontiguousarray(image)
    part = image[:height, :width]
    fitted = np.zeros((height, width, image.shape[2]), np.uint8)
    fitted[: part.shape[0], : part.shape[1]] = part
    return fitted


# --- Encodes the first seconds of a video as a small GIF.


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
