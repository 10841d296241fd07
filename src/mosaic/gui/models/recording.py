"""Saved frames: as one image, or as videos in real time."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QImage

from mosaic.contracts.errors import MosaicError
from mosaic.fastlane import compose_grid, full_grid, limit_size, scale_image_smoothly
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.lanes import FrameCell
from mosaic.media.video_writer import VideoWriter

RATE_HZ = 30
MAX_SIDE_PX = 1280
MAX_QUEUED_FRAMES = 60
"""Frames that may wait for the encoder; further ones are dropped, and the video freezes meanwhile."""


def to_array(image: QImage) -> Any:
    """Return a copy of the pixels as RGB."""
    plain = image.convertToFormat(QImage.Format.Format_RGB888)
    rows = np.frombuffer(plain.constBits(), np.uint8).reshape(plain.height(), plain.bytesPerLine())
    return rows[:, : plain.width() * 3].reshape(plain.height(), plain.width(), 3).copy()


def compose_cells(cells: Sequence[FrameCell], size: tuple[int, int] | None = None, max_side: int | None = None) -> Any:
    """Compose all cells into one RGB image: of this size, or of their own."""
    images = [None if cell.image is None else to_array(cell.image) for cell in cells]
    shape, full_size = full_grid(images)
    size = size or (limit_size(*full_size, max_side) if max_side else full_size)
    return compose_grid(images, shape, *size, scale_image_smoothly)


def save_image(cells: Sequence[FrameCell], path: Path) -> None:
    pixels = np.ascontiguousarray(compose_cells(cells))
    height, width = pixels.shape[:2]
    path.parent.mkdir(parents=True, exist_ok=True)
    if not QImage(pixels.data, width, height, width * 3, QImage.Format.Format_RGB888).save(str(path)):
        raise MosaicError(f"{path} cannot be written. Choose another folder, and a name that ends in .png or .jpg.")


class Recording(QObject):
    """A video of frames in real time, encoded in a background thread until `stop`."""

    saved = Signal(str, int)
    """The file and its number of frames."""
    failed = Signal(str)

    def __init__(self, bridge: Bridge, run_id: str, path: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.run_id = run_id
        self.path = path
        self.is_stopped = False
        self.started_at = time.monotonic()
        self._length_s = 0.0
        """From its start to its stop."""
        self._written_count = 0
        self._queue: queue.SimpleQueue[tuple[float, list[FrameCell]]] = queue.SimpleQueue()
        bridge.run_in_background(
            self._encode,
            lambda frames: self.saved.emit(str(path), frames),
            lambda error: self.failed.emit(str(error)),
            owner=self,
        )

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_at

    @property
    def progress(self) -> float:
        """How much of the video is written, 0 to 1; of one that is not stopped, 0."""
        return min(1.0, self._written_count / max(1.0, self._length_s * RATE_HZ)) if self.is_stopped else 0.0

    def add(self, cells: Sequence[FrameCell]) -> None:
        """Show these from now on."""
        if self._queue.qsize() < MAX_QUEUED_FRAMES and any(cell.image is not None for cell in cells):
            self._queue.put((time.monotonic(), list(cells)))

    def stop(self) -> None:
        if not self.is_stopped:
            self.is_stopped = True
            self._length_s = self.elapsed_s
            self._queue.put((time.monotonic(), []))

    def _encode(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        video = VideoWriter(self.path, RATE_HZ)
        try:
            self._write_frames(video)
            video.finish()
        except BaseException:
            video.discard()
            raise
        return video.frame_count

    def _write_frames(self, video: VideoWriter) -> None:
        """Write in real time: a frame is shown until the next one arrives."""
        started_at, cells = self._queue.get()
        while cells:
            # The size of a video is that of its first frame, whatever is shown later.
            frame = compose_cells(cells, video.size, MAX_SIDE_PX)
            until, cells = self._queue.get()
            for _ in range(max(1, round((until - started_at) * RATE_HZ) - video.frame_count)):
                video.add(frame)
                self._written_count = video.frame_count
        if not video.frame_count:
            raise MosaicError("No frame arrived while recording: nothing was saved.")


class Recordings(QObject):
    """The recordings of this window that are not complete: taken, or being written."""

    changed = Signal(str)
    """The run one of whose recordings was started, stopped, saved or given up."""
    saved = Signal(str, object, int)
    """The run, the file and its number of frames."""
    failed = Signal(str)

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._active: list[Recording] = []
        self.requested_path: Path | None = None
        """The video that somebody wants to see, until it is selected."""

    def of_run(self, run_id: str) -> list[Recording]:
        """Return those of a run, the newest first."""
        return [recording for recording in reversed(self._active) if recording.run_id == run_id]

    def start(self, run_id: str, path: Path) -> Recording:
        recording = Recording(self._bridge, run_id, path, self)
        recording.saved.connect(lambda _, frames: self._on_saved(recording, frames))
        recording.failed.connect(lambda reason: self._on_failed(recording, reason))
        self._active.append(recording)
        self.changed.emit(run_id)
        return recording

    def stop(self, recording: Recording) -> None:
        recording.stop()
        self.changed.emit(recording.run_id)

    def _on_saved(self, recording: Recording, frames: int) -> None:
        self._remove(recording)
        self.saved.emit(recording.run_id, recording.path, frames)

    def _on_failed(self, recording: Recording, reason: str) -> None:
        recording.is_stopped = True
        self._remove(recording)
        self.failed.emit(reason)

    def _remove(self, recording: Recording) -> None:
        self._active.remove(recording)
        recording.deleteLater()
        self.changed.emit(recording.run_id)
