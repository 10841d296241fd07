"""Live pictures of a run's environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mosaic.contracts.folder import RunFolder
from mosaic.fastlane import FrameTap, LaneWriter, lanes_folder


class Frames:
    """Gives the first `limit` environments a lane each. Whatever goes wrong is told once, and the run goes on."""

    def __init__(self, folder: RunFolder, limit: int, warn: Callable[[str, str], None], advice: str = "") -> None:
        self._folder = lanes_folder(folder.path)
        self._limit = limit
        self._warn = warn
        self._advice = advice
        self._has_warned = False

    def tapped(self, envs: Sequence[Any]) -> list[FrameTap]:
        shown = envs[: self._limit]
        taps: list[FrameTap] = []
        for index, env in enumerate(shown):
            try:
                lane = LaneWriter(self._folder, index, cells=len(shown))
            except OSError as error:
                self._tell(f"Live frames are off: no room for them in {self._folder} ({error.strerror or error}).")
                break
            taps.append(FrameTap(env, lane, advice=self._advice, warn=self._tell))
        return taps

    def _tell(self, sentence: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(sentence, "frames_off")
