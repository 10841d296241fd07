"""Live pictures of a run's environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mosaic.contracts.folder import RunFolder
from mosaic.fastlane import FrameTap, LaneWriter, lanes_folder


class EpisodeRecorder(Protocol):
    """Films episodes of one environment."""

    def start_episode(self, number: int, env: Any) -> bool:
        """Whether the episode that has just begun is filmed."""

    def capture_frame(self, number: int) -> None: ...

    def finish_episode(self, number: int, episodic_return: float, length: int) -> None: ...


class LiveFrames:
    """Gives the first `limit` environments a lane each. Whatever goes wrong is told once, and the run goes on."""

    camera: EpisodeRecorder | None = None
    """Films the first environment, where that was asked for."""

    def __init__(self, folder: RunFolder, limit: int, warn: Callable[[str, str], None], advice: str = "") -> None:
        self._folder = lanes_folder(folder.path)
        self._limit = limit
        self._warn = warn
        self._advice = advice
        self._has_warned = False

    def tap_all(self, envs: Sequence[Any]) -> list[FrameTap]:
        """Of environments that are all there: their taps, as many as are shown."""
        taps = (self.tap(env, index, len(envs)) for index, env in enumerate(envs))
        return [tap for tap in taps if tap is not None]

    def tap(self, env: Any, index: int, count: int) -> FrameTap | None:
        """Of one environment among `count`; none where it is not shown."""
        if index >= self._limit:
            return None
        try:
            lane = LaneWriter(self._folder, index, lane_count=min(count, self._limit))
        except OSError as error:
            self._warn_once(f"Live frames are off: no room for them in {self._folder} ({error.strerror or error}).")
            return None
        return FrameTap(env, lane, advice=self._advice, warn=self._warn_once)

    def _warn_once(self, sentence: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(sentence, "frames_off")
