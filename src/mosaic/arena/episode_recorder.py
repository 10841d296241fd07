"""Records the episodes of a session while they are played."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from mosaic.arena.recording import ActorChange, Ending, RecordedEpisode, RecordingWriter

FLUSH_S = 1.0
"""How long a step may be unrecorded if the process is killed."""


class EpisodeRecorder:
    """Collects the steps of the current episode and appends them to the recording at intervals."""

    def __init__(self, writer: RecordingWriter | None) -> None:
        self._writer = writer
        self._number = 0 if writer is None else writer.next_number
        self._flushed_at = 0.0
        self._length = 0
        self._actions: list[Any] = []
        self._rewards: list[Any] = []
        self._changes: list[ActorChange] = []

    def start(self, seed: int, actors: Mapping[str, str]) -> None:
        self._seed: int | None = seed
        self._actions, self._rewards, self._length = [], [], 0
        self._changes = [ActorChange(0, agent, actor) for agent, actor in actors.items()]

    def add(self, action_row: Any, reward_row: Any) -> None:
        self._actions.append(action_row)
        self._rewards.append(reward_row)
        self._length += 1
        if time.monotonic() - self._flushed_at > FLUSH_S:
            self._flush("running")

    def change_actor(self, agent: str, actor: str) -> None:
        self._changes.append(ActorChange(self._length, agent, actor))

    def finish(self, ending: Ending) -> None:
        """End the episode; one that was left in the middle stays `running`."""
        if self._length:
            self._flush(ending)
            self._number += 1

    def _flush(self, ending: Ending) -> None:
        self._flushed_at = time.monotonic()
        if self._writer is None:
            return
        part = RecordedEpisode(
            self._number,
            self._seed,
            None,
            np.array(self._actions),
            np.array(self._rewards, np.float64),
            ending,
            tuple(self._changes),
        )
        self._writer.append([part])
        self._seed, self._actions, self._rewards, self._changes = None, [], [], []
