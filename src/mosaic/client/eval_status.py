"""How an evaluation stands, in the words that the window and the command line share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mosaic.client.trainer_client import TrainerClient

Json = dict[str, Any]


def format_eval_line(summary: Json) -> str:
    """`eval batch 3 | episodes=50 avg=112.3 min=90.1 max=142.6`."""
    figures = [f"episodes={summary['episodes']}"]
    for name in ("avg", "min", "max"):
        value = summary.get(f"{name}_return")
        if value is not None:
            figures.append(f"{name}={value:.1f}")
    return f"eval batch {summary.get('batch', 1)} | {' '.join(figures)}"


def latest_eval_line(trainer: TrainerClient, run_id: str) -> str:
    """Of the last batch that an evaluation has played; empty before the first."""
    found = next(iter(trainer.evaluations(run_id)), None)
    return format_eval_line(found["batches"][-1]) if found else ""
