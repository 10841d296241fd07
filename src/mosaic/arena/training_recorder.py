"""Records every episode of a training, from the arrays of its rollouts, or of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mosaic.arena.recording import RecordedEpisode, RecordingHeader, RecordingWriter
from mosaic.arena.replay_choice import choose_replay_without_frames
from mosaic.contracts.errors import MosaicError
from mosaic.run import Run

FLUSH_STEPS = 20_000
"""Steps of complete episodes that are packed together."""


class BufferedRecorder:
    """Collects complete episodes and appends them to the run's recording. If that fails, it warns once and stops."""

    def __init__(self, run: Run, header: RecordingHeader, read_step: Callable[[], int]) -> None:
        """`read_step` returns the step that is written with a block, and by which a later attempt drops blocks."""
        self._run = run
        self._writer: RecordingWriter | None = None
        self._header = choose_replay_without_frames(header, run.warn)
        self._read_step = read_step
        self._episodes: list[RecordedEpisode] = []
        self._steps = 0
        self.next_number = 0
        """Of an episode."""

    def open(self, until_step: int | None) -> None:
        """Start or continue the file. What was recorded after this step is dropped; None: nothing."""
        with self._ending_on_errors():
            self._writer = RecordingWriter(self._run.folder.recording, self._header, until_step)
            self.next_number = self._writer.next_number

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    def add_episode(self, episode: RecordedEpisode) -> None:
        if self._writer is None:
            return
        self.next_number = max(self.next_number, episode.number + 1)
        self._episodes.append(episode)
        self._steps += len(episode)
        if self._steps >= FLUSH_STEPS:
            self.flush()

    def flush(self) -> None:
        """Write what is collected."""
        if self._writer is None or not self._episodes:
            return
        episodes, self._episodes, self._steps = self._episodes, [], 0
        with self._ending_on_errors():
            self._writer.append(episodes, step=self._read_step())

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


class TrainingRecorder(BufferedRecorder):
    """Flushed before a checkpoint, so that a resumed run continues exactly there."""

    def __init__(self, run: Run, header: RecordingHeader) -> None:
        super().__init__(run, header, lambda: int(run.global_step))

    def add(
        self,
        seed: int | None,
        random_state: Mapping[str, Any] | None,
        actions: Sequence[np.ndarray],
        rewards: Sequence[np.ndarray],
        is_terminal: bool,
        hashes: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Add a complete episode, in parts; `hashes` are those of observations, by step."""
        if not self.is_open:
            return
        self.add_episode(
            RecordedEpisode(
                self.next_number,
                seed,
                random_state,
                actions[0] if len(actions) == 1 else np.concatenate(actions),
                rewards[0] if len(rewards) == 1 else np.concatenate(rewards),
                "terminated" if is_terminal else "truncated",
                hashes=tuple(hashes),
            )
        )
