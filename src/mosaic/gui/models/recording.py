"""Frames kept: as one picture, or as a film by the clock."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QImage

from mosaic.client.film import Film
from mosaic.contracts.errors import MosaicError
from mosaic.fastlane import compose, fit, grid_shape, smoothly_scaled
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.lanes import Cell

RATE_HZ = 30
LONGEST_SIDE = 1280
BEHIND = 60
"""Frames that may wait for the encoder; further ones are left out, and the film stands still meanwhile."""


def as_array(image: QImage) -> Any:
    """Its pixels, RGB, a copy."""
    plain = image.convertToFormat(QImage.Format.Format_RGB888)
    rows = np.frombuffer(plain.constBits(), np.uint8).reshape(plain.height(), plain.bytesPerLine())
    return rows[:, : plain.width() * 3].reshape(plain.height(), plain.width(), 3).copy()


def composed(cells: Sequence[Cell], size: tuple[int, int] | None = None, longest: int | None = None) -> Any:
    """All cells as one RGB picture: of this size, or as large as they are."""
    images = [None if cell.image is None else as_array(cell.image) for cell in cells]
    first = next(image for image in images if image is not None)
    high, wide = first.shape[:2]
    shape = grid_shape(len(images), cell=wide / high)
    whole = wide * shape.columns, high * shape.rows
    if size is None:
        size = fit(*whole, longest, longest) if longest and max(whole) > longest else whole
    return compose(images, shape, *size, smoothly_scaled)


def save_picture(cells: Sequence[Cell], path: Path) -> None:
    picture = np.ascontiguousarray(composed(cells))
    height, width = picture.shape[:2]
    path.parent.mkdir(parents=True, exist_ok=True)
    if not QImage(picture.data, width, height, width * 3, QImage.Format.Format_RGB888).save(str(path)):
        raise MosaicError(f"{path} cannot be written. Choose another folder, and a name that ends in .png or .jpg.")


class Recording(QObject):
    """Encodes in a thread of the bridge's from the first frame that is given until `stop`."""

    saved = Signal(str, int)
    """The file and its frames."""
    failed = Signal(str)

    def __init__(self, bridge: Bridge, path: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.path = path
        self.is_stopped = False
        self.began_at = time.monotonic()
        self._waiting: queue.SimpleQueue[tuple[float, list[Cell]]] = queue.SimpleQueue()
        bridge.work(self._encode, self._done, lambda error: self.failed.emit(str(error)), owner=self)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began_at

    def add(self, cells: Sequence[Cell]) -> None:
        """What is seen from now on."""
        if self._waiting.qsize() < BEHIND and any(cell.image is not None for cell in cells):
            self._waiting.put((time.monotonic(), list(cells)))

    def stop(self) -> None:
        if not self.is_stopped:
            self.is_stopped = True
            self._waiting.put((time.monotonic(), []))

    def _done(self, frames: int) -> None:
        self.saved.emit(str(self.path), frames)

    def _encode(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        film = Film(self.path, RATE_HZ)
        try:
            self._shoot(film)
            film.finish()
        except BaseException:
            film.abandon()
            raise
        return film.frames

    def _shoot(self, film: Film) -> None:
        """By the clock: a picture is shown until the next one comes."""
        began, cells = self._waiting.get()
        while cells:
            # A film's size is that of its first picture, whatever is looked at later.
            picture = composed(cells, film.size, LONGEST_SIDE)
            until, cells = self._waiting.get()
            for _ in range(max(1, round((until - began) * RATE_HZ) - film.frames)):
                film.add(picture)
        if not film.frames:
            raise MosaicError("No frame came while recording: nothing was saved.")
