"""Live frames of a run: read from shared memory if it runs on this machine, else received from the daemon."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from mosaic.base.fastlane import WAITING, FrameRequest

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView
    from mosaic.trainer.client.trainer_client import FrameUpdate, TrainerClient

DecodedT = TypeVar("DecodedT")
RATE_SPAN_S = 2.0


def has_local_frames(view: RunView, is_remote: bool = False) -> bool:
    """Return whether shared memory can be read; `is_remote`: the trainer's paths mean nothing on this machine."""
    return not is_remote and Path(view.run_dir).is_dir()


class RelayedFrames(Generic[DecodedT]):
    """Frames that the daemon sends, composed as one image; only the newest is kept."""

    torn_reads = 0
    invalid_files = 0

    def __init__(
        self,
        run_id: str,
        envs: Sequence[int],
        request: FrameRequest,
        decode: Callable[[FrameUpdate], DecodedT],
        max_side: int = 0,
    ) -> None:
        self.state = WAITING
        self.reason = "the trainer has sent nothing yet"
        self.is_closed = False
        self._request = (run_id, tuple(envs), request.rate_hz or 0, max_side, request.budget or 0)
        self._decode = decode
        self._newest: DecodedT | None = None

    def receive(self, trainer: TrainerClient) -> None:
        """Block until the run ends, or until seconds after `close`: the daemon sends something every two of them."""
        run_id, envs, rate_hz, max_side, budget = self._request
        for update in trainer.frames(run_id, envs, rate_hz=rate_hz, max_side=max_side, budget=budget):
            if self.is_closed:
                return
            if update.image:
                self._newest = self._decode(update)
                self.torn_reads = update.torn
            self.state, self.reason = update.state, update.reason

    def take_newest(self) -> DecodedT | None:
        """Return the newest frame unless it was returned before."""
        newest, self._newest = self._newest, None
        return newest

    def close(self) -> None:
        self.is_closed = True


class FrameRateMeter:
    """Measures frames per second over the last two seconds."""

    def __init__(self) -> None:
        self._frame_times: deque[float] = deque(maxlen=240)

    def record(self, now: float, count: int = 1) -> None:
        self._frame_times.extend([now] * count)

    def rate_hz(self, now: float) -> float:
        while self._frame_times and now - self._frame_times[0] >= RATE_SPAN_S:
            self._frame_times.popleft()
        return len(self._frame_times) / RATE_SPAN_S

    def clear(self) -> None:
        self._frame_times.clear()
