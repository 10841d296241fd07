"""What `mosaic watch` draws: a run's frames as one RGB image."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mosaic.client.frame_sources import RelayedFrames
from mosaic.contracts.errors import MissingExtra, MosaicError, NoDaemon
from mosaic.fastlane import (
    UNAVAILABLE,
    FrameHud,
    LaneView,
    compose_grid,
    fit_size,
    full_grid,
    lanes_folder,
    scale_image,
    scale_image_smoothly,
)

if TYPE_CHECKING:
    from mosaic.client.trainer_client import FrameUpdate, TrainerClient


class LocalFrameSource(LaneView):
    def __init__(self, run_dir: str, envs: Sequence[int], rate_hz: float | None, budget: float | None) -> None:
        super().__init__(lanes_folder(run_dir), envs, rate_hz=rate_hz, budget=budget)

    def full_size(self) -> tuple[int, int]:
        """Width and height of the whole image at full size, once there is a frame."""
        return full_grid(self.rgb_images())[1]

    def render(self, width: int, height: int, is_smooth: bool = False) -> Any:
        """RGB within this size. Smooth is better and slower."""
        images = self.rgb_images()
        shape, size = full_grid(images, width / height)
        scale = scale_image_smoothly if is_smooth else scale_image
        return compose_grid(images, shape, *fit_size(*size, width, height), scale)


class RemoteFrameSource(RelayedFrames[Any]):
    """Receives in its own thread."""

    def __init__(
        self, trainer: TrainerClient, run_id: str, envs: Sequence[int], rate_hz: float | None, budget: float | None
    ) -> None:
        super().__init__(run_id, envs, rate_hz, budget, self._decode_image)
        self.huds: Sequence[FrameHud] = ()
        self._trainer = trainer
        self._image: Any = None
        self._failure: MosaicError | None = None
        self._thread = threading.Thread(target=self._receive_until_closed, name="frames", daemon=True)
        self._thread.start()

    def _receive_until_closed(self) -> None:
        try:
            self.receive(self._trainer)
        except MosaicError as error:
            if not self.is_closed:
                self.state, self.reason = UNAVAILABLE, str(error)
                self._failure = None if isinstance(error, NoDaemon) else error

    def _decode_image(self, update: FrameUpdate) -> Any:
        try:
            from PIL import Image
        except ImportError:
            raise MissingExtra("Frames from the daemon need Pillow: pip install 'mosaic-rl[train]'.") from None
        import numpy as np

        self.huds = update.huds
        return np.asarray(Image.open(io.BytesIO(update.image)).convert("RGB"))

    def poll(self) -> bool:
        """Return whether there is a new frame. Never waits."""
        if self._failure is not None:
            raise self._failure
        image = self.take_newest()
        if image is None:
            return False
        self._image = image
        return True

    def full_size(self) -> tuple[int, int]:
        return self._image.shape[1], self._image.shape[0]

    def render(self, width: int, height: int, is_smooth: bool = False) -> Any:
        wide, high = fit_size(self._image.shape[1], self._image.shape[0], width, height)
        return (scale_image_smoothly if is_smooth else scale_image)(self._image, high, wide)

    def close(self) -> None:
        super().close()
        self._trainer.close()
        with contextlib.suppress(RuntimeError):
            self._thread.join(2.0)


FrameSource = LocalFrameSource | RemoteFrameSource
