"""What the daemon tells of evaluations, from the summaries that lie in their folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.daemons import ended, running_daemon, scripted
from tests.helpers.worker_runs import small

from mosaic.base.run_payloads import build_eval_payload
from mosaic.base.workspace_trust import mark_own
from mosaic.contracts.errors import UnknownName
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.views import EvaluationBatch, RunView, TrainedRun
from mosaic.trainer.client.trainer_client import TrainerClient


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
    found = list(trainer.read_evaluations())
    assert [one.run_id for one in found] == [second.run_id, first.run_id]
    acrobot, cartpole = found
    assert acrobot.trained is None
    assert cartpole.trained == TrainedRun(run_id=trained.run_id, seed=0, episodic_return=trained.episodic_return)
    batch = EvaluationBatch(batch=1, episodes=2, avg_return=1.5, returns=(1.0, 2.0), seeds=(7, 8), lengths=(1, 1))
    assert cartpole.summary.batches == (batch,)
    assert cartpole.evaluated_at == first.finished_at
    assert cartpole.outcome == "succeeded"
    assert [one.run_id for one in trainer.read_evaluations(env_id="Acrobot-v1")] == [second.run_id]
    assert [one.run_id for one in trainer.read_evaluations(first.run_id)] == [first.run_id]
    assert list(trainer.read_evaluations(trained.run_id)) == []
    with pytest.raises(UnknownName):
        list(trainer.read_evaluations("nobody"))


def test_an_evaluation_finds_its_policy_in_a_copy_of_the_workspace(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path
) -> None:
    """R1.5: an evaluation states its policy relative to its own folder, and so can be run again elsewhere."""
    training = {"metadata": {"worker": {"id": "cleanrl", "config": small()}}, "artifacts": {}}
    trained = ended(trainer, trainer.submit(training).run_id)
    policy = f"{trained.run_dir}/checkpoints/last"
    payload = build_eval_payload({"id": "cleanrl", "config": {}}, policy, {"eval_batch_size": 2})
    first = ended(trainer, trainer.submit(payload).run_id)
    assert first.outcome == "succeeded"
    folder = RunFolder(first.run_dir)
    assert json.loads(folder.config.read_text())["evaluation"]["policy_path"] == f"../{trained.run_id}/checkpoints/last"
    told = json.loads(folder.eval_summary.read_text())["policy_path"]
    assert told.startswith(f"../{trained.run_id}/checkpoints/")
    assert trainer.config(first.run_id)["evaluation"]["policy_path"] == policy
    copy = Workspace(tmp_path / "another place" / "var")
    shutil.copytree(workspace.runs, copy.runs, symlinks=True)
    mark_own(copy)
    shutil.move(workspace.runs, tmp_path / "gone")
    try:
        with running_daemon(copy, tmp_path / "plugins") as (_, other):
            again = ended(other, other.submit(other.config(first.run_id)).run_id)
            assert again.outcome == "succeeded"
            newest, earlier = other.read_evaluations()
            assert newest.summary.returns == earlier.summary.returns
            assert newest.trained is not None
            assert newest.trained.run_id == trained.run_id
            assert str(newest.summary.policy_path).startswith(str(copy.runs))
    finally:
        shutil.move(tmp_path / "gone", workspace.runs)
