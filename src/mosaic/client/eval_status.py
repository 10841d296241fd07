"""The progress of an evaluation in one line, for the window and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mosaic.client.trainer_client import TrainerClient
    from mosaic.contracts.views import EvaluationBatch


def format_eval_line(batch: EvaluationBatch) -> str:
    """`eval batch 3 | episodes=50 avg=112.3 min=90.1 max=142.6`."""
    returns = {"avg": batch.avg_return, "min": batch.min_return, "max": batch.max_return}
    figures = [f"{name}={value:.1f}" for name, value in returns.items() if value is not None]
    return f"eval batch {batch.batch} | {' '.join([f'episodes={batch.episodes}', *figures])}"


def latest_eval_line(trainer: TrainerClient, run_id: str) -> str:
    """For the last complete batch of an evaluation; empty before the first."""
    evaluation = next(iter(trainer.evaluations(run_id)), None)
    return format_eval_line(evaluation.summary.batches[-1]) if evaluation else ""
