"""Episodes as MP4 files that every browser plays. They are drawn where the environment is; a thread encodes them."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mosaic.fastlane.tap import FrameRenderer

MAX_QUEUED_FRAMES = 32
"""Pictures that may wait for the encoder. Beyond, drawing waits: memory is not the place for a film."""
DEFAULT_FPS = 30
_FORMATS = {3: "rgb24", 4: "bgra"}


class EpisodeVideo:
    """One episode. The file appears under its name when it is complete."""

    def __init__(self, path: Path, fps: int) -> None:
        self.path = path
        self._fps = fps
        self._partial = path.with_name(f".{path.name}.tmp")
        self._container: Any = None
        self._stream: Any = None

    def add_frame(self, image: np.ndarray) -> None:
        """Red, green, blue; or blue, green, red and a byte that means nothing. Its sides must be even."""
        import av

        if self._container is None:
            self._partial.parent.mkdir(parents=True, exist_ok=True)
            self._container = av.open(str(self._partial), "w", format="mp4")
            self._stream = self._container.add_stream("h264", rate=self._fps)
            self._stream.pix_fmt = "yuv420p"
            self._stream.options = {"preset": "veryfast"}
            self._stream.height, self._stream.width = image.shape[:2]
        frame = av.VideoFrame.from_ndarray(image, format=_FORMATS[image.shape[2]])
        for packet in self._stream.encode(frame):
            self._container.mux(packet)

    def finish(self, episode_id: str, episode_return: float, episode_length: int) -> None:
        """Closes the file and writes its `.meta.json` beside it."""
        if self._container is None:
            return
        for packet in self._stream.encode():
            self._container.mux(packet)
        self._container.close()
        self._container = None
        facts = {
            "episode_id": episode_id,
            "episode_return": episode_return,
            "episode_length": episode_length,
            "timestamp": time.time(),
        }
        self.path.with_suffix(".meta.json").write_text(json.dumps(facts, indent=1) + "\n")
        os.replace(self._partial, self.path)

    def discard(self) -> None:
        """The episode did not end: nothing is left of it."""
        if self._container is not None:
            self._container.close()
            self._container = None
            self._partial.unlink(missing_ok=True)


class _Recording(NamedTuple):
    renderer: FrameRenderer
    video: EpisodeVideo


class VideoRecorder:
    """Films those episodes that `is_wanted`, by number. Where no picture can be had, it warns once and gives up."""

    def __init__(
        self,
        folder: Path,
        episode_name: str,
        should_record: Callable[[int], bool],
        warn: Callable[[str, str], None],
        on_finished: Callable[[list[Path]], None] | None = None,
    ) -> None:
        """`on_finished` is told the films that are complete, in the camera's thread."""
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
        """Films that are complete by now."""
        return list(self._finished_videos)

    def start_episode(self, number: int, env: Any) -> bool:
        """Whether the episode that has just begun is filmed; its first picture is taken."""
        if self._has_given_up or not self._should_record(number):
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._encode_loop, name="camera", daemon=True)
            self._thread.start()
        fps = int((getattr(env, "metadata", None) or {}).get("render_fps") or DEFAULT_FPS)
        self._recordings[number] = _Recording(
            FrameRenderer(env), EpisodeVideo(self._folder / f"rl-video-episode-{number}.mp4", fps)
        )
        self.capture_frame(number)
        return True

    def capture_frame(self, number: int) -> None:
        """After each step of an episode that is filmed."""
        shot = self._recordings.get(number)
        if shot is None or self._has_given_up:
            return
        try:
            if self._problem is not None:
                raise self._problem
            drawn = shot.renderer.render_frame()
            # A copy: the next picture may go to the same memory. Even sides: the encoder halves the colour planes.
            picture = np.array(drawn[: drawn.shape[0] // 2 * 2, : drawn.shape[1] // 2 * 2])
        except Exception as error:
            # Graphics drivers, encoders and full disks fail in ways of their own; none of them spoils the run.
            self._has_given_up = True
            self._warn(f"No video: {error}. To see what is wrong: mosaic doctor", "no_video")
            return
        self._encode_queue.put(lambda: shot.video.add_frame(picture))

    def finish_episode(self, number: int, episodic_return: float, length: int) -> None:
        shot = self._recordings.pop(number, None)
        if shot is None or self._has_given_up:
            return

        def end() -> None:
            shot.video.finish(f"{self._episode_name}-{number}", episodic_return, length)
            self._finished_videos.append(shot.video.path)
            if self._on_finished is not None:
                self._on_finished(self.finished_videos)

        self._encode_queue.put(end)

    def _encode_loop(self) -> None:
        while (work := self._encode_queue.get()) is not None:
            try:
                if self._problem is None:
                    work()
            except Exception as error:
                self._problem = error

    def close(self) -> list[Path]:
        """Waits for the encoder. What had not ended is dropped; the films that are complete."""
        if self._thread is not None:
            self._encode_queue.put(None)
            self._thread.join()
            self._thread = None
        for shot in self._recordings.values():
            shot.video.discard()
        if self._problem is not None and not self._has_given_up:
            self._has_given_up = True
            self._warn(f"No video: {self._problem}. To see what is wrong: mosaic doctor", "no_video")
        return self.finished_videos


def is_cubic(number: int) -> bool:
    """Which episodes of a training are filmed: 0, 1, 8, 27, … and from 1000 on every thousandth."""
    return round(number ** (1 / 3)) ** 3 == number if number < 1000 else number % 1000 == 0
