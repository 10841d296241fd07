"""Records episodes as MP4 files. Frames are rendered on the environment's thread and encoded on another."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mosaic.fastlane.tap import FrameRenderer
from mosaic.media.video_writer import VideoWriter

MAX_QUEUED_FRAMES = 32
"""Frames that may wait for the encoder. Beyond that, rendering waits, to bound the memory."""
DEFAULT_FPS = 30


class EpisodeVideo:
    """The video of one episode, with a `.meta.json` next to it."""

    def __init__(self, path: Path, fps: int) -> None:
        self.path = path
        self._fps = fps
        self._writer: VideoWriter | None = None

    def add_frame(self, image: np.ndarray) -> None:
        """Append a frame (bytes [height, width, 3: RGB or 4: BGRX])."""
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = VideoWriter(self.path, self._fps)
        self._writer.add(image)

    def finish(self, episode_id: str, episode_return: float, episode_length: int) -> None:
        """Write the metadata and complete the video."""
        if self._writer is None:
            return
        metadata = {
            "episode_id": episode_id,
            "episode_return": episode_return,
            "episode_length": episode_length,
            "timestamp": time.time(),
        }
        # Before the video gets its name: a video that exists has its metadata.
        self.path.with_suffix(".meta.json").write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")
        self._writer.finish()

    def discard(self) -> None:
        """Remove the incomplete video of an episode that did not end."""
        if self._writer is not None:
            self._writer.discard()


class _Recording(NamedTuple):
    renderer: FrameRenderer
    video: EpisodeVideo


class VideoRecorder:
    """Records the episodes chosen by `should_record`. If a frame cannot be rendered, it warns once and stops."""

    def __init__(
        self,
        folder: Path,
        episode_name: str,
        should_record: Callable[[int], bool],
        warn: Callable[[str, str], None],
        on_finished: Callable[[list[Path]], None] | None = None,
    ) -> None:
        """`on_finished` is called with the complete videos, in the encoder's thread."""
        self._folder = folder
        self._episode_name = episode_name
        self._should_record = should_record
        self._warn = warn
        self._on_finished = on_finished
        self._recordings: dict[int, _Recording] = {}
        self._finished_videos: list[Path] = []
        self._problem: Exception | None = None
        self._has_given_up = False
        self._encode_queue: queue.Queue[Callable[[], None] | None] = queue.Queue(MAX_QUEUED_FRAMES)
        self._thread: threading.Thread | None = None

    @property
    def finished_videos(self) -> list[Path]:
        """Videos that are complete."""
        return list(self._finished_videos)

    def start_episode(self, number: int, env: Any) -> bool:
        """Start recording an episode and capture its first frame; return whether it is recorded."""
        if self._has_given_up or not self._should_record(number):
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._encode_loop, name="video-encoder", daemon=True)
            self._thread.start()
        video = EpisodeVideo(self._folder / video_name(number), int(render_rate(env)))
        self._recordings[number] = _Recording(FrameRenderer(env), video)
        self.capture_frame(number)
        return True

    def capture_frame(self, number: int) -> None:
        """Call after each step of a recorded episode."""
        recording = self._recordings.get(number)
        if recording is None or self._has_given_up:
            return
        try:
            if self._problem is not None:
                raise self._problem
            # A copy: the next frame may reuse the same memory.
            frame = np.array(recording.renderer.render_frame())
        except Exception as error:
            # Graphics drivers, encoders and full disks raise all kinds of errors; none of them may fail the run.
            self._has_given_up = True
            self._warn(f"No video: {error}. To see what is wrong: mosaic doctor", "no_video")
            return
        self._encode_queue.put(lambda: recording.video.add_frame(frame))

    def finish_episode(self, number: int, episodic_return: float, length: int) -> None:
        recording = self._recordings.pop(number, None)
        if recording is None or self._has_given_up:
            return

        def finish() -> None:
            recording.video.finish(f"{self._episode_name}-{number}", episodic_return, length)
            self._finished_videos.append(recording.video.path)
            if self._on_finished is not None:
                self._on_finished(self.finished_videos)

        self._encode_queue.put(finish)

    def discard_episode(self, number: int) -> None:
        """Remove the video of an episode that was left before its first step."""
        recording = self._recordings.pop(number, None)
        if recording is not None:
            self._encode_queue.put(recording.video.discard)

    def _encode_loop(self) -> None:
        while (work := self._encode_queue.get()) is not None:
            try:
                if self._problem is None:
                    work()
            except Exception as error:
                self._problem = error

    def close(self) -> list[Path]:
        """Wait for the encoder, discard unfinished episodes and return the complete videos."""
        if self._thread is not None:
            self._encode_queue.put(None)
            self._thread.join()
            self._thread = None
        for recording in self._recordings.values():
            recording.video.discard()
        if self._problem is not None and not self._has_given_up:
            self._has_given_up = True
            self._warn(f"No video: {self._problem}. To see what is wrong: mosaic doctor", "no_video")
        return self.finished_videos


def render_rate(env: Any) -> float:
    """Return the frames per second at which an environment is meant to be watched."""
    return float((getattr(env, "metadata", None) or {}).get("render_fps") or DEFAULT_FPS)


def video_name(number: int) -> str:
    return f"rl-video-episode-{number}.mp4"


def is_cubic(number: int) -> bool:
    """Return whether an episode is recorded during training: 0, 1, 8, 27, …, then every thousandth."""
    return round(number ** (1 / 3)) ** 3 == number if number < 1000 else number % 1000 == 0
