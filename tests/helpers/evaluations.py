"""Evaluations as the daemon reports them."""

from __future__ import annotations

from typing import Any

from mosaic.contracts.states import Outcome, Stage
from mosaic.contracts.views import Evaluation, EvaluationSummary, TrainedRun

Json = dict[str, Any]


def evaluation(number: int, *batches: list[float], **fields: Any) -> Evaluation:
    """Higher numbers are newer. Each evaluates the policy of a run of its own unless `trained` is given."""
    trained = TrainedRun(run_id=f"01TRAINED{number:05d}", algo="ppo", seed=number)
    trained_fields = {"trained": fields.pop("trained", trained)}
    summary: Json = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "policy_path": f"/runs/{trained.run_id}/checkpoints/512",
        "checkpoint_step": 512,
        "batches": [batch(at, returns) for at, returns in enumerate(batches, 1)],
    }
    return Evaluation(
        run_id=f"01EVAL{number:05d}",
        stage=Stage.FINISHED,
        outcome=Outcome.SUCCEEDED,
        evaluated_at=1_700_000_000.0 + number,
        summary=EvaluationSummary.model_validate(summary | fields),
        **trained_fields,
    )


def batch(number: int, returns: list[float]) -> Json:
    mean = sum(returns) / len(returns)
    return {
        "batch": number,
        "episodes": len(returns),
        "avg_return": mean,
        "median_return": mean,
        "min_return": min(returns),
        "max_return": max(returns),
        "std_return": 1.0,
        "iqm": mean,
        "ci95": [mean - 1, mean + 1] if len(returns) > 1 else None,
        "duration_s": 0.5,
        "returns": returns,
    }
