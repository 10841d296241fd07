"""Pictures of environments that are stepped together: frames for viewers, and videos of episodes of the first one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium

from mosaic.worker.live_frames import LiveFrames

CHECK_INTERVAL_S = {False: 0.02, True: 0.002}
"""The approximate interval between checks whether a frame is due, without (False) and with (True) a viewer."""
MAX_CHECK_STRIDE = 1024


class EpisodeProgress(NamedTuple):
    """An environment's current episode, as a frame shows it."""

    number: int
    """From 1."""
    length: int
    reward: float
    """Of the latest step."""
    episodic_return: float


class EnvPictures:
    """Publishes frames where they are due, and captures the episodes that are recorded as videos."""

    def __init__(
        self,
        envs: Sequence[gymnasium.Env[Any, Any]],
        frames: LiveFrames | None,
        describe_episode: Callable[[int], EpisodeProgress],
    ) -> None:
        """`describe_episode` describes the current episode of the environment with an index."""
        self._first_env, self._describe_episode = envs[0], describe_episode
        self.taps = [] if frames is None else frames.tap_all(envs)
        self._camera = None if frames is None else frames.camera
        self._is_recording_video = False
        """Whether the current episode of the first environment is recorded as a video."""
        self.next_check_step = 0.0 if self.taps else float("inf")
        """The step at which to call `publish` next: other steps cost only this comparison."""
        self._last_check_s = 0.0
        self._check_stride = 1

    def close(self) -> None:
        for tap in self.taps:
            tap.close()
        self.taps = []  # their memory is unmapped with them

    def publish(self, step_count: int, has_stepped: bool) -> None:
        """Publish frames of the environments for which one is due; `has_stepped` refers to the first one's episode."""
        if self._camera is not None and self._is_recording_video:
            if has_stepped:
                self._camera.capture_frame(self._video_number)
            if not self.taps:
                return
        now = time.monotonic()
        interval_s = CHECK_INTERVAL_S[any(tap.lane.is_watched for tap in self.taps)]
        since_s, self._last_check_s = now - self._last_check_s, now
        if since_s > 2 * interval_s:
            self._check_stride = max(1, int(self._check_stride * interval_s / since_s))
        elif since_s < interval_s / 2:
            self._check_stride = min(MAX_CHECK_STRIDE, 2 * self._check_stride)
        self.next_check_step = 0.0 if self._is_recording_video else step_count + self._check_stride
        for index, tap in enumerate(self.taps):
            if tap.is_due():
                tap.publish_frame(*self._describe_episode(index))

    def start_video(self) -> None:
        """Record the episode that the first environment starts, if it is to be recorded."""
        if self._camera is not None:
            self._is_recording_video = self._camera.start_episode(self._video_number, self._first_env)
            if self._is_recording_video:
                self.next_check_step = 0.0

    def finish_video(self, episodic_return: float, length: int) -> None:
        """End the video of the episode that has ended in the first environment, before that is reset."""
        if self._camera is not None and self._is_recording_video:
            self._camera.capture_frame(self._video_number)
            self._camera.finish_episode(self._video_number, episodic_return, length)
            self._is_recording_video = False
            self.next_check_step = 0.0 if self.taps else float("inf")

    @property
    def _video_number(self) -> int:
        return self._describe_episode(0).number - 1
