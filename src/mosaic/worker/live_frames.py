"""Live frames of a run's environments."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mosaic.base.fastlane import FrameTap, LaneWriter, lanes_folder
from mosaic.base.fastlane.writer import DEFAULT_BUDGET, DEFAULT_RATE_HZ
from mosaic.contracts.folder import RunFolder


class EpisodeRecorder(Protocol):
    """Records videos of episodes of one environment."""

    def start_episode(self, number: int, env: Any) -> bool:
        """Return whether the episode that has just started is recorded."""

    def capture_frame(self, number: int) -> None: ...

    def finish_episode(self, number: int, episodic_return: float, length: int) -> None: ...


class EpisodeStore(Protocol):
    """Stores complete episodes, as what simulates them again."""

    def add(
        self,
        seed: int | None,
        random_state: Mapping[str, Any] | None,
        actions: Sequence[Any],
        rewards: Sequence[Any],
        is_terminal: bool,
        hashes: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Actions and rewards are arrays, one for each part of the episode; `hashes` are of observations, by step."""

    def flush(self) -> None: ...


class LiveFrames:
    """Gives the first `limit` environments a lane each. The first failure is a warning, and the run continues."""

    camera: EpisodeRecorder | None = None
    """Records videos of the first environment, if requested."""
    recorder: EpisodeStore | None = None
    """Stores every episode, if requested."""

    def __init__(self, folder: RunFolder, limit: int, warn: Callable[[str, str], None], advice: str = "") -> None:
        self._folder = lanes_folder(folder.path)
        self._limit = limit
        self._warn = warn
        self._advice = advice
        self._has_warned = False
        self._first_index = 0
        self._env_count: int | None = None

    def share(self, first_index: int, env_count: int) -> LiveFrames:
        """Return the same for some of `env_count` environments, from this index on."""
        part = copy.copy(self)
        part._first_index, part._env_count = first_index, env_count
        return part

    def redirect(self, warn: Callable[[str], None], recorder: EpisodeStore) -> None:
        """In a process that must not write to the run: pass on warnings and episodes to these; there is no camera."""
        self._warn = lambda sentence, _: warn(sentence)
        self.recorder = None if self.recorder is None else recorder
        self.camera = None

    def tap_all(self, envs: Sequence[Any]) -> list[FrameTap]:
        """Return the taps of the environments that have a lane."""
        count = self._env_count or len(envs)
        taps = (self.tap(env, self._first_index + index, count) for index, env in enumerate(envs))
        return [tap for tap in taps if tap is not None]

    def tap(
        self, env: Any, index: int, count: int, rate_hz: float = DEFAULT_RATE_HZ, budget: float = DEFAULT_BUDGET
    ) -> FrameTap | None:
        """Return the tap of one environment of `count`; None if it has no lane."""
        if index >= self._limit:
            return None
        try:
            lane = LaneWriter(self._folder, index, lane_count=min(count, self._limit), rate_hz=rate_hz, budget=budget)
        except OSError as error:
            self.warn_once(f"Live frames are off: no room for them in {self._folder} ({error.strerror or error}).")
            return None
        return FrameTap(env, lane, advice=self._advice, warn=self.warn_once)

    def warn_once(self, sentence: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(sentence, "frames_off")
