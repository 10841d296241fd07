"""What the daemon tells of evaluations, from the summaries that lie in their folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.daemons import ended, scripted

from mosaic.client import TrainerClient
from mosaic.contracts.errors import UnknownName
from mosaic.contracts.views import EvaluationBatch, RunView, TrainedRun


def summary(policy_path: str, **facts: Any) -> dict[str, Any]:
    batch = {"batch": 1, "episodes": 2, "avg_return": 1.5, "returns": [1.0, 2.0], "seeds": [7, 8], "lengths": [1, 1]}
    plain = {"algo": "ppo", "env_id": "CartPole-v1", "policy_path": policy_path, "checkpoint_step": 5}
    return {**plain, "deterministic": True, "videos": [], "batches": [batch], **facts}


def write(view: RunView, said: str | dict[str, Any]) -> None:
    text = said if isinstance(said, str) else json.dumps(said)
    (Path(view.run_dir) / "eval_summary.json").write_text(text)


def test_summaries_are_listed_newest_first_with_the_trained_run(trainer: TrainerClient) -> None:
    made = [ended(trainer, trainer.submit(scripted(seed=number)).run_id) for number in range(6)]
    trained, first, second, torn, empty, strange = made
    # The workspace has been moved since: the id of the run is what is left of the old path.
    write(first, summary(f"/old place/runs/{trained.run_id}/checkpoints/5"))
    write(second, summary("/elsewhere/ppo.cleanrl_model", env_id="Acrobot-v1", checkpoint_step=None))
    write(torn, '{"batches": [{"returns": [1.0')
    write(empty, summary("x", batches=[]))
    write(strange, "[1, 2]")
    found = list(trainer.evaluations())
    assert [one.run_id for one in found] == [second.run_id, first.run_id]
    acrobot, cartpole = found
    assert acrobot.trained is None
    assert cartpole.trained == TrainedRun(run_id=trained.run_id, seed=0)
    batch = EvaluationBatch(batch=1, episodes=2, avg_return=1.5, returns=(1.0, 2.0), seeds=(7, 8), lengths=(1, 1))
    assert cartpole.summary.batches == (batch,)
    assert cartpole.evaluated_at == first.finished_at
    assert cartpole.outcome == "succeeded"
    assert [one.run_id for one in trainer.evaluations(env_id="Acrobot-v1")] == [second.run_id]
    assert [one.run_id for one in trainer.evaluations(first.run_id)] == [first.run_id]
    assert list(trainer.evaluations(trained.run_id)) == []
    with pytest.raises(UnknownName):
        list(trainer.evaluations("nobody"))
