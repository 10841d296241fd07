"""Records every episode of a training, from the arrays of its rollouts: a step costs some nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mosaic.arena.recording import RecordedEpisode, RecordingHeader, RecordingWriter
from mosaic.contracts.errors import MosaicError
from mosaic.run import Run

FLUSH_STEPS = 20_000
"""Steps of complete episodes that are packed together."""


class TrainingRecorder:
    """Collects complete episodes and appends them to the run's recording. If that fails, it warns once and stops."""

    def __init__(self, run: Run, header: RecordingHeader) -> None:
        self._run = run
        self._writer: RecordingWriter | None = None
        self._header = header
        self._episodes: list[RecordedEpisode] = []
        self._steps = 0
        self._number = 0

    def open(self, resumed_from: int | None) -> None:
        """Start or continue the file. What an earlier attempt recorded after its checkpoint is dropped."""
        with self._ending_on_errors():
            self._writer = RecordingWriter(self._run.folder.recording, self._header, until_step=resumed_from or 0)
            self._number = self._writer.next_number

    def add(
        self,
        seed: int | None,
        random_state: Mapping[str, Any] | None,
        actions: Sequence[np.ndarray],
        rewards: Sequence[np.ndarray],
        is_terminal: bool,
    ) -> None:
        """Add a complete episode, in parts."""
        if self._writer is None:
            return
        episode = RecordedEpisode(
            self._number,
            seed,
            random_state,
            actions[0] if len(actions) == 1 else np.concatenate(actions),
            rewards[0] if len(rewards) == 1 else np.concatenate(rewards),
            "terminated" if is_terminal else "truncated",
        )
        self._number += 1
        self._episodes.append(episode)
        self._steps += len(episode)
        if self._steps >= FLUSH_STEPS:
            self.flush()

    def flush(self) -> None:
        """Write what is collected; called before a checkpoint, so that a resumed run continues exactly here."""
        if self._writer is None or not self._episodes:
            return
        episodes, self._episodes, self._steps = self._episodes, [], 0
        with self._ending_on_errors():
            self._writer.append(episodes, step=int(self._run.global_step))

    def close(self) -> None:
        self.flush()
        if self._writer is not None:
            self._writer.close()

    @contextmanager
    def _ending_on_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, MosaicError) as error:
            self._writer = None
            self._run.warn(f"No more episodes are recorded: {error}", "recording_failed")
