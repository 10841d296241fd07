"""Records the episodes of an evaluation."""

from __future__ import annotations

from mosaic.arena.evaluate import Episode
from mosaic.arena.recording import ActorChange, RecordedEpisode, RecordingHeader
from mosaic.arena.training_recorder import BufferedRecorder
from mosaic.contracts.play import ANY_AGENT
from mosaic.run import Run

ACTOR = "policy"
"""Who acts; in the recording of a training, this tells the episodes of its evaluation from the others."""


class EvaluationRecorder(BufferedRecorder):
    """Numbers episodes by their seeds, in whatever order they end.

    In a run that is an evaluation, blocks are written with the number of their batch: a further attempt drops those of
    a batch that it plays again. Those of an evaluation after training are appended to the training's recording.
    """

    def __init__(self, run: Run, header: RecordingHeader, batch_size: int, completed_batches: int | None) -> None:
        """`completed_batches` of an evaluation; None after training."""
        self._batch_size = batch_size
        self._batch = None if completed_batches is None else completed_batches + 1
        super().__init__(run, header, lambda: int(run.global_step) if self._batch is None else self._batch)
        self.open(completed_batches)
        self._first_number = self.next_number if completed_batches is None else completed_batches * batch_size

    def add(self, episode: Episode) -> None:
        steps = episode.steps
        assert steps is not None
        self.add_episode(
            RecordedEpisode(
                self._first_number + episode.index,
                episode.seed,
                None,
                steps.actions,
                steps.rewards,
                "terminated" if steps.is_terminated else "truncated",
                (ActorChange(0, ANY_AGENT, ACTOR),),
                steps.hashes,
            )
        )

    def finish_batch(self) -> None:
        self.flush()
        self._first_number += self._batch_size
        if self._batch is not None:
            self._batch += 1


def open_recorder(
    run: Run, header: RecordingHeader | None, batch_size: int, completed_batches: int | None
) -> EvaluationRecorder | None:
    """Return what records an evaluation; None, with a warning, where that is impossible."""
    if header is None:
        run.warn("The evaluation is not recorded: its environment cannot be simulated again.", "recording_failed")
        return None
    if completed_batches is None and header.preprocessing != "none":
        run.warn(
            "The evaluation after training is not recorded: its games are whole, those of the training end with each "
            "life. Record one: mosaic eval RUN --record-episodes",
            "recording_failed",
        )
        return None
    return EvaluationRecorder(run, header, batch_size, completed_batches)
