"""Evaluations as the daemon tells of them."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def evaluation(number: int, *batches: list[float], **facts: Any) -> Json:
    """Higher numbers are newer. Each evaluates the policy of a run of its own unless told otherwise."""
    trained = {"run_id": f"01TRAINED{number:05d}", "run_name": None, "algo": "ppo", "seed": number}
    plain: Json = {
        "run_id": f"01EVAL{number:05d}",
        "stage": "finished",
        "outcome": "succeeded",
        "evaluated_at": 1_700_000_000.0 + number,
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "policy_path": f"/runs/{trained['run_id']}/checkpoints/512",
        "checkpoint_step": 512,
        "deterministic": True,
        "videos": [],
        "trained": trained,
        "batches": [batch(at, returns) for at, returns in enumerate(batches, 1)],
    }
    return plain | facts


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
