"""Sources of a run's frames: shared memory on this machine, or the daemon's relay."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mosaic.contracts.errors import MissingExtra, MosaicError, NoDaemon
from mosaic.fastlane import (
    UNAVAILABLE,
    WAITING,
    LaneView,
    as_rgb,
    compose_grid,
    fit_size,
    grid_shape,
    hud_fields,
    lanes_folder,
    scale_image,
    scale_image_smoothly,
)

if TYPE_CHECKING:
    from mosaic.client import TrainerClient

Json = dict[str, Any]


class WatchFrameSource(Protocol):
    state: str
    reason: str
    huds: list[Json]
    """For each environment with a frame: env, episode, step, reward, return, rate_hz, pace."""

    def poll(self) -> bool:
        """Whether there is a new frame. Never waits."""

    def full_size(self) -> tuple[int, int] | None:
        """Width and height of the whole image at full size; None before the first frame."""

    def render(self, width: int, height: int, is_smooth: bool = False) -> Any:
        """RGB, at most so large. Smooth is better and slower."""

    def close(self) -> None: ...


class LocalFrameSource:
    def __init__(self, run_dir: str, envs: Sequence[int], rate_hz: float | None, budget: float | None) -> None:
        self._view = LaneView(lanes_folder(run_dir), envs, rate_hz=rate_hz, budget=budget)
        self.huds: list[Json] = []

    @property
    def state(self) -> str:
        return self._view.state

    @property
    def reason(self) -> str:
        return self._view.reason

    def poll(self) -> bool:
        is_new = self._view.poll()
        if is_new:
            shown = sorted(self._view.frames.items())
            self.huds = [{"env": index, **hud_fields(frame)} for index, frame in shown if frame is not None]
        return is_new

    def _rgb_images(self) -> list[Any]:
        shown = sorted(self._view.frames.items())
        return [None if frame is None else as_rgb(frame.image, frame.format) for _, frame in shown]

    def full_size(self) -> tuple[int, int] | None:
        images = self._rgb_images()
        first = next((image for image in images if image is not None), None)
        if first is None:
            return None
        shape = grid_shape(len(images), cell_aspect_ratio=first.shape[1] / first.shape[0])
        return first.shape[1] * shape.columns, first.shape[0] * shape.rows

    def render(self, width: int, height: int, is_smooth: bool = False) -> Any:
        images = self._rgb_images()
        first = next(image for image in images if image is not None)
        high, wide = first.shape[:2]
        shape = grid_shape(len(images), width / height, wide / high)
        size = fit_size(wide * shape.columns, high * shape.rows, width, height)
        return compose_grid(images, shape, *size, scale_image_smoothly if is_smooth else scale_image)

    def close(self) -> None:
        self._view.close()


class RemoteFrameSource:
    """Receives in its own thread; only the newest frame is kept."""

    def __init__(
        self, trainer: TrainerClient, run: str, envs: Sequence[int], rate_hz: float | None, budget: float | None
    ) -> None:
        self.state = WAITING
        self.reason = "the daemon has sent nothing yet"
        self.huds: list[Json] = []
        self._trainer = trainer
        self._frames = trainer.frames(run, envs, rate_hz or 0, 0, budget or 0)
        self._latest_jpeg: bytes | None = None
        self._image: Any = None
        self._failure: MosaicError | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._receive, name="frames", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        try:
            for sight in self._frames:
                self.state, self.reason = sight.state, sight.reason
                if sight.image:
                    self.huds = sight.hud.get("envs", [])
                    self._latest_jpeg = sight.image
        except MosaicError as error:
            if not self._is_closed:
                self.state, self.reason = UNAVAILABLE, str(error)
                self._failure = None if isinstance(error, NoDaemon) else error

    def poll(self) -> bool:
        if self._failure is not None:
            raise self._failure
        data, self._latest_jpeg = self._latest_jpeg, None
        if data is None:
            return False
        self._image = _decode_image(data)
        return True

    def full_size(self) -> tuple[int, int] | None:
        return None if self._image is None else (self._image.shape[1], self._image.shape[0])

    def render(self, width: int, height: int, is_smooth: bool = False) -> Any:
        wide, high = fit_size(self._image.shape[1], self._image.shape[0], width, height)
        return (scale_image_smoothly if is_smooth else scale_image)(self._image, high, wide)

    def close(self) -> None:
        self._is_closed = True
        self._trainer.close()
        with contextlib.suppress(RuntimeError):
            self._thread.join(2.0)


def _decode_image(data: bytes) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("Frames from the daemon need Pillow: pip install 'mosaic-rl[train]'.") from None
    import numpy as np

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
