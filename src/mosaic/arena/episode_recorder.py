"""Records the episodes of a session while they are played."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mosaic.arena.play_envs import PlayEnv
from mosaic.arena.recording import ActorChange, Ending, RecordedEpisode, RecordingHeader, RecordingWriter
from mosaic.arena.video_recorder import VideoRecorder
from mosaic.contracts.errors import MosaicError
from mosaic.envs.reproducible import HASH_INTERVAL
from mosaic.fastlane.tap import FrameRenderer

FLUSH_S = 1.0
"""How long a step may be unrecorded if the process is killed."""


class EpisodeRecorder:
    """Collects episodes and the steps of the current one, and appends them to the recording at intervals.

    Short episodes share a block, which takes less space than one for each.
    If that fails, it warns once and records nothing more: the session continues.
    """

    def __init__(
        self,
        path: Path | None,
        header: RecordingHeader,
        warn: Callable[[str, str], None],
        env: PlayEnv,
        camera: VideoRecorder | None = None,
    ) -> None:
        """Without a path, nothing is recorded. A `camera` stores the frames of `env`, too."""
        self._renderer = FrameRenderer(env.env) if header.has_frame_hashes else None
        self._warn = warn
        self._camera = camera
        self._env = env
        self._writer: RecordingWriter | None = None
        try:
            self._writer = None if path is None else RecordingWriter(path, header)
        except (OSError, MosaicError) as error:
            self._give_up(error)
        self._number = 0 if self._writer is None else self._writer.next_number
        self._flushed_at = time.monotonic()
        self._parts: list[RecordedEpisode] = []
        """Of episodes that have ended since the last block."""
        self._length = 0
        self._actions: list[Any] = []
        self._rewards: list[Any] = []
        self._hashes: list[tuple[int, int]] = []
        self._changes: list[ActorChange] = []

    def start(self, seed: int, actors: Mapping[str, str]) -> None:
        self._seed: int | None = seed
        self._actions, self._rewards, self._length = [], [], 0
        self._changes = [ActorChange(0, agent, actor) for agent, actor in actors.items()]
        self._total_reward = 0.0
        self._hashes = []
        self._add_hash()
        if self._camera is not None:
            self._camera.start_episode(self._number, self._env.env)

    def _add_hash(self) -> None:
        if self._writer is not None:
            value = self._env.hash_observation()
            self._hashes.append((self._length, value if self._renderer is None else self._renderer.hash_frame(value)))

    def add(self, action_row: Any, reward_row: Any) -> None:
        self._actions.append(action_row)
        self._rewards.append(reward_row)
        self._length += 1
        self._total_reward += float(np.sum(reward_row))
        if self._length % HASH_INTERVAL == 0:
            self._add_hash()
        if self._camera is not None:
            self._camera.capture_frame(self._number)
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Write what was played, also while nothing happens: a player may think for long."""
        if (self._actions or self._parts) and time.monotonic() - self._flushed_at > FLUSH_S:
            self._flush()

    def change_actor(self, agent: str, actor: str) -> None:
        self._changes.append(ActorChange(self._length, agent, actor))

    def finish(self, ending: Ending) -> None:
        """End the episode; one that was left in the middle stays `running`."""
        if self._length and self._length % HASH_INTERVAL:
            self._add_hash()
        if self._length and (self._actions or ending != "running"):
            self._end_part(ending)
            self.flush_if_due()
        if self._camera is not None and self._length:
            self._camera.finish_episode(self._number, self._total_reward, self._length)
        elif self._camera is not None:
            self._camera.discard_episode(self._number)
        self._number += bool(self._length)

    def _end_part(self, ending: Ending) -> None:
        """Move the steps of the current episode to the parts of the next block."""
        actions, rewards = np.array(self._actions), np.array(self._rewards, np.float64)
        changes = tuple(self._changes)
        hashes = tuple(self._hashes)
        self._parts.append(RecordedEpisode(self._number, self._seed, None, actions, rewards, ending, changes, hashes))
        self._seed, self._actions, self._rewards, self._changes, self._hashes = None, [], [], [], []

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        if self._actions:
            self._end_part("running")
        parts, self._parts = self._parts, []
        if self._writer is None:
            return
        try:
            self._writer.append(parts)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._close_files()
        self._warn(f"No more episodes are recorded: {error}", "recording_failed")

    def close(self) -> None:
        self._flush()
        self._close_files()

    def _close_files(self) -> None:
        if self._camera is not None:
            self._camera.close()
            self._camera = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
