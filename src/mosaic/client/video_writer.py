"""Pictures into an MP4 file that every browser plays; for whoever watches a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mosaic.contracts.errors import MissingExtra, MosaicError


class VideoWriter:
    """The file appears under its name when it is complete."""

    def __init__(self, path: Path, rate_hz: float) -> None:
        try:
            import av
        except ImportError:
            raise MissingExtra("Saving a film needs PyAV: pip install 'mosaic-rl[train]'.") from None
        self._av = av
        self.path = path
        self._temp_path = path.with_name(f".{path.name}.tmp")
        self.rate_hz = max(1, round(rate_hz))
        self._container: Any = None
        self._stream: Any = None
        self.size: tuple[int, int] | None = None
        """Width and height, from the first picture on. They are even: the encoder halves the colour planes."""
        self.frame_count = 0

    def add(self, frame: Any) -> None:
        """RGB; later pictures are cut or filled up to the size of the first."""
        import numpy as np

        height, width = frame.shape[:2]
        if self.size is None:
            self.size = max(2, width // 2 * 2), max(2, height // 2 * 2)
            self._open(*self.size)
        wide, high = self.size
        whole = np.zeros((high, wide, 3), np.uint8)
        whole[: min(high, height), : min(wide, width)] = frame[:high, :wide, :3]
        for packet in self._stream.encode(self._av.VideoFrame.from_ndarray(whole, format="rgb24")):
            self._container.mux(packet)
        self.frame_count += 1

    def _open(self, width: int, height: int) -> None:
        try:
            self._container = self._av.open(str(self._temp_path), "w", format="mp4")
        except OSError as error:
            raise MosaicError(f"{self.path} cannot be written: {error.strerror or error}.") from None
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
        """Nothing is left of it."""
        if self._container is not None:
            self._container.close()
            self._container = None
        self._temp_path.unlink(missing_ok=True)
