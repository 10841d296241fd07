"""Writes frames to an MP4 file that every browser plays."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from mosaic.common.files import write_error
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
