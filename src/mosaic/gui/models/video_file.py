"""An MP4 file, frame by frame. Decoding is slow: it happens off the GUI thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from PySide6.QtGui import QImage

from mosaic.contracts.errors import BadInput, MissingExtra

if TYPE_CHECKING:
    from mosaic.client.trainer_client import RunFile, TrainerClient
    from mosaic.contracts.views import RunView

MAX_NUMBER = 1e12
"""Of what a recording states about its episode."""
MAX_SIDE_PX = 1280
"""Larger frames are scaled down as they are read."""


class VideoFile(NamedTuple):
    run_id: str
    name: str
    """Below the run's folder."""
    path: PurePath
    """On the trainer's machine."""
    size_bytes: int
    written_at: float
    episode_return: float | None = None
    episode_length: int | None = None
    local_path: Path | None = None
    """Of a video that was recorded in the window: it is on this machine, wherever the trainer is."""


def list_videos(trainer: TrainerClient, view: RunView, exports: Path) -> list[VideoFile]:
    """List the videos of a run and those that were recorded in the window, newest first.

    A video that is still being written has another suffix.
    """
    files = trainer.files(view.run_id, "videos/*")
    names = {file.name for file in files}
    videos = [
        _read_video_file(trainer, view, file, names)
        for file in files
        if file.name.endswith(".mp4") and not PurePath(file.name).name.startswith(".")
    ]
    videos += [
        VideoFile(view.run_id, path.name, path, path.stat().st_size, path.stat().st_mtime, local_path=path)
        for path in exports.glob("*.mp4")
        if not path.name.startswith(".")
    ]
    return sorted(videos, key=lambda video: video.written_at, reverse=True)


def _read_video_file(trainer: TrainerClient, view: RunView, file: RunFile, names: set[str]) -> VideoFile:
    description = file.name.removesuffix(".mp4") + ".meta.json"
    metadata: Any = trainer.read_json(view.run_id, description) if description in names else {}
    if not isinstance(metadata, dict):
        metadata = {}
    return VideoFile(
        view.run_id,
        file.name,
        PurePath(view.run_dir, file.name),
        file.size_bytes,
        _finite_number(metadata, "timestamp") or file.modified_at,
        _finite_number(metadata, "episode_return"),
        None if (length := _finite_number(metadata, "episode_length")) is None else int(length),
    )


def _finite_number(metadata: dict[str, Any], key: str) -> float | None:
    value = metadata.get(key)
    return float(value) if isinstance(value, (int, float)) and abs(value) < MAX_NUMBER else None


class VideoFrame(NamedTuple):
    at_s: float
    image: QImage


class VideoReader:
    """One thread at a time may read; `read` continues where it stopped."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        """Must be set before the first read."""
        self.rate_hz = 30.0
        self.duration_s = 0.0
        self._lock = threading.Lock()
        self._container: Any = None
        self._frames: Iterator[Any] = iter(())

    def open(self) -> None:
        assert self.path is not None
        try:
            import av
        except ImportError:
            raise MissingExtra("Playing videos here needs PyAV: pip install 'mosaic-rl[video]'.") from None
        try:
            # No other format, such as a list of further files to read.
            self._container = av.open(str(self.path), format="mp4")
            stream = self._container.streams.video[0]
        except (OSError, IndexError, ValueError) as error:
            raise BadInput(f"{self.path.name} cannot be played: {error}.") from None
        stream.thread_type = "NONE"  # the cores belong to the runs
        self.rate_hz = float(stream.average_rate or 30)
        length = stream.duration * stream.time_base if stream.duration else (self._container.duration or 0) / 1e6
        self.duration_s = float(length)
        self._frames = self._container.decode(stream)

    def read(self, count: int, from_s: float | None = None) -> list[VideoFrame]:
        """Return the next frames, or those from this time on; fewer at the end."""
        with self._lock:
            if self._container is None:
                self.open()
            if from_s is not None:
                self._container.seek(int(from_s * 1e6))  # to the key frame before it
                self._frames = self._container.decode(video=0)
            frames: list[VideoFrame] = []
            for frame in self._frames:
                if from_s is not None and frame.time is not None and frame.time < from_s - 0.5 / self.rate_hz:
                    continue
                frames.append(_decode_frame(frame))
                if len(frames) == count:
                    break
            return frames

    def close(self) -> None:
        with self._lock:
            if self._container is not None:
                self._container.close()
                self._container = None
                self._frames = iter(())


def _decode_frame(frame: Any) -> VideoFrame:
    scale = min(1.0, MAX_SIDE_PX / max(frame.width, frame.height))
    width, height = int(frame.width * scale), int(frame.height * scale)
    pixels = frame.to_ndarray(format="rgb24", width=width, height=height).tobytes()
    image = QImage(pixels, width, height, 3 * width, QImage.Format.Format_RGB888)
    return VideoFrame(float(frame.time or 0.0), image.copy())  # a copy: the image outlives the bytes
