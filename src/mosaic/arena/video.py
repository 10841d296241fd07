"""Episodes as MP4 files that every browser plays."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np


class Video:
    """One episode. The file appears under its name when it is complete."""

    def __init__(self, path: Path, fps: int) -> None:
        self.path = path
        self._fps = fps
        self._partial = path.with_name(f".{path.name}.tmp")
        self._container: Any = None
        self._stream: Any = None

    def add(self, frame: np.ndarray) -> None:
        import av

        # The encoder halves the colour planes: sizes must be even.
        frame = np.ascontiguousarray(frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2, :3])
        if self._container is None:
            self._partial.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(self._partial), "w", format="mp4")
            self._stream = self._container.add_stream("h264", rate=self._fps)
            self._stream.pix_fmt = "yuv420p"
            self._stream.options = {"preset": "veryfast"}
            self._stream.height, self._stream.width = frame.shape[:2]
        for packet in self._stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")):
            self._container.mux(packet)

    def finish(self, episode_id: str, episode_return: float, episode_length: int) -> None:
        """Closes the file and writes its `.meta.json` beside it."""
        if self._container is None:
            return
        for packet in self._stream.encode():
            self._container.mux(packet)
        self._container.close()
        self._container = None
        os.replace(self._partial, self.path)
        facts = {
            "episode_id": episode_id,
            "episode_return": episode_return,
            "episode_length": episode_length,
            "timestamp": time.time(),
        }
        self.path.with_suffix(".meta.json").write_text(json.dumps(facts, indent=1) + "\n")

    def abandon(self) -> None:
        """The episode did not end: nothing is left of it."""
        if self._container is not None:
            self._container.close()
            self._container = None
            self._partial.unlink(missing_ok=True)
