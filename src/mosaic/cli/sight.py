"""Where the pictures of a run come from: shared memory on this machine, or the daemon's relay."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mosaic.contracts.errors import MissingExtra, MosaicError, NoDaemon
from mosaic.fastlane import LaneView, as_rgb, compose, fit, grid_shape, hud, lanes_folder, scaled, smoothly_scaled

if TYPE_CHECKING:
    from mosaic.client import Trainer

Json = dict[str, Any]


class Sight(Protocol):
    state: str
    reason: str
    huds: list[Json]
    """What is told of each environment that has a picture: env, episode, step, reward, return, rate_hz, pace."""

    def look(self) -> bool:
        """Whether there is something new to see. Never waits."""

    def size(self) -> tuple[int, int] | None:
        """Width and height of the whole picture, where nothing is made smaller; none before there is one."""

    def picture(self, width: int, height: int, is_smooth: bool = False) -> Any:
        """RGB, at most so large. Smooth is better and slower."""

    def close(self) -> None: ...


class LocalSight:
    def __init__(self, run_dir: str, envs: Sequence[int], rate_hz: float | None, budget: float | None) -> None:
        self._view = LaneView(lanes_folder(run_dir), envs, rate_hz=rate_hz, budget=budget)
        self.huds: list[Json] = []

    @property
    def state(self) -> str:
        return self._view.state

    @property
    def reason(self) -> str:
        return self._view.reason

    def look(self) -> bool:
        is_new = self._view.look()
        if is_new:
            shown = sorted(self._view.frames.items())
            self.huds = [{"env": index, **hud(frame)} for index, frame in shown if frame is not None]
        return is_new

    def _images(self) -> list[Any]:
        shown = sorted(self._view.frames.items())
        return [None if frame is None else as_rgb(frame.image, frame.format) for _, frame in shown]

    def size(self) -> tuple[int, int] | None:
        images = self._images()
        first = next((image for image in images if image is not None), None)
        if first is None:
            return None
        shape = grid_shape(len(images), cell=first.shape[1] / first.shape[0])
        return first.shape[1] * shape.columns, first.shape[0] * shape.rows

    def picture(self, width: int, height: int, is_smooth: bool = False) -> Any:
        images = self._images()
        first = next(image for image in images if image is not None)
        high, wide = first.shape[:2]
        shape = grid_shape(len(images), width / height, wide / high)
        size = fit(wide * shape.columns, high * shape.rows, width, height)
        return compose(images, shape, *size, smoothly_scaled if is_smooth else scaled)

    def close(self) -> None:
        self._view.close()


class RemoteSight:
    """Listens in a thread of its own; only the newest picture is kept."""

    def __init__(
        self, trainer: Trainer, run: str, envs: Sequence[int], rate_hz: float | None, budget: float | None
    ) -> None:
        self.state = "waiting"
        self.reason = "the daemon has sent nothing yet"
        self.huds: list[Json] = []
        self._trainer = trainer
        self._frames = trainer.frames(run, envs, rate_hz or 0, 0, budget or 0)
        self._newest: bytes | None = None
        self._image: Any = None
        self._failure: MosaicError | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, name="frames", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        try:
            for sight in self._frames:
                self.state, self.reason = sight.state, sight.reason
                if sight.image:
                    self.huds = sight.hud.get("envs", [])
                    self._newest = sight.image
        except MosaicError as error:
            if not self._is_closed:
                self.state, self.reason = "unavailable", str(error)
                self._failure = None if isinstance(error, NoDaemon) else error

    def look(self) -> bool:
        if self._failure is not None:
            raise self._failure
        data, self._newest = self._newest, None
        if data is None:
            return False
        self._image = _decoded(data)
        return True

    def size(self) -> tuple[int, int] | None:
        return None if self._image is None else (self._image.shape[1], self._image.shape[0])

    def picture(self, width: int, height: int, is_smooth: bool = False) -> Any:
        wide, high = fit(self._image.shape[1], self._image.shape[0], width, height)
        return (smoothly_scaled if is_smooth else scaled)(self._image, high, wide)

    def close(self) -> None:
        self._is_closed = True
        self._trainer.close()
        with contextlib.suppress(RuntimeError):
            self._thread.join(2.0)


def _decoded(data: bytes) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("Frames from the daemon need Pillow: pip install 'mosaic-rl[train]'.") from None
    import numpy as np

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
