"""Trains ppo_continuous_action and evaluates it: is it as good on fresh seeds as it was in training?

    python tests/learning/evaluation.py [--env-id HalfCheetah-v5] [--total-timesteps 1000000] [--seed 1]

Deterministic actions may be better than those of training, which are drawn; drawn ones are compared too.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.helpers.worker_runs import train_here  # noqa: E402

from mosaic.contracts.folder import RunFolder  # noqa: E402
from mosaic.worker.checkpoints import last_good_checkpoint  # noqa: E402

EPISODES = 100
TOLERANCE = 0.1


def run_silently(folder: RunFolder, config: dict[str, Any]) -> RunFolder:
    with contextlib.redirect_stdout(io.StringIO()):
        return train_here(folder, config)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--env-id", default="HalfCheetah-v5")
    parser.add_argument("--total-timesteps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        config = {"algo": "ppo_continuous_action", **vars(args)}
        folder = run_silently(RunFolder(Path(place) / "trained"), config)
        checkpoint = last_good_checkpoint(folder)
        assert checkpoint is not None
        score = checkpoint.manifest["score"]
        print(f"training, mean of its last 100 episodes: {score:.1f}")
        is_close = False
        for name, is_stochastic in (("deterministic", False), ("drawn", True)):
            extras = {"mode": "policy_eval", "policy_path": str(folder.path), "eval_episodes": EPISODES}
            asked = {"extras": {**extras, "eval_stochastic": is_stochastic}}
            played = run_silently(RunFolder(Path(place) / name), asked)
            summary = json.loads(played.eval_summary.read_text())
            change = (summary["avg_return"] - score) / abs(score)
            low, high = summary["ci95"]
            print(f"{name} actions: {summary['avg_return']:.1f} ({low:.1f} to {high:.1f}), {change:+.1%}")
            is_close |= abs(change) <= TOLERANCE
    return 0 if is_close else 1


if __name__ == "__main__":
    sys.exit(main())
