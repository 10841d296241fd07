"""Run folders of earlier versions, whose config.json holds extras, are used like any other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.helpers.daemons import ended

from mosaic.base.run_payloads import apply_assignments, build_eval_payload
from mosaic.contracts.errors import ConfigRefused
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

OLD_CONFIG: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "seed": 3,
    "total_timesteps": 256,
    "extras": {"algo_params": {"num_envs": 2, "num_steps": 16}, "num_minibatches": 2, "video_mode": "off"},
}


def test_a_run_with_extras_is_shown_extended_submitted_again_and_evaluated(
    trainer: TrainerClient, workspace: Workspace
) -> None:
    submitted = {"metadata": {"worker": {"id": "cleanrl_worker", "config": OLD_CONFIG}}, "artifacts": {}}
    view = ended(trainer, trainer.submit(submitted).run_id)
    assert (view.outcome, view.worker) == ("succeeded", "cleanrl")
    folder = RunFolder(view.run_dir)
    translated = json.loads(folder.config.read_text())
    assert "extras" not in translated["metadata"]["worker"]["config"]
    # As an earlier version left it, with W&B's settings twice.
    old = {
        "metadata": {"worker": {"id": "cleanrl", "config": OLD_CONFIG}},
        "artifacts": {"tensorboard": {"enabled": True}, "wandb": {"enabled": False}},
    }
    folder.config.write_text(json.dumps(old))
    shown = trainer.config(view.run_id)
    assert shown["artifacts"]["video"] == {"mode": "off"}
    settings = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2}
    assert shown["metadata"]["worker"]["config"]["algo_params"] == settings
    trainer.resume(view.run_id, 512)
    longer = ended(trainer, view.run_id)
    assert (longer.outcome, longer.total_timesteps) == ("succeeded", 512)
    again = ended(trainer, trainer.submit(apply_assignments(shown, {"seed": 4, "video_mode": "single"})).run_id)
    assert (again.outcome, again.seed) == ("succeeded", 4)
    payload = build_eval_payload(shown["metadata"]["worker"], str(folder.path), {"eval_batch_size": 2})
    evaluation = ended(trainer, trainer.submit(payload).run_id)
    assert (evaluation.outcome, evaluation.kind) == ("succeeded", "policy_eval")
    for is_evaluation in (False, True):  # R1.2: both names exist for an evaluation
        assert workspace.payload_copy(evaluation.run_id, is_evaluation).is_file()


@pytest.mark.parametrize(
    ("extras", "path"),
    [
        ({"nosuch": True}, "metadata.worker.config.extras.nosuch"),
        ({"num_envs": "two"}, "metadata.worker.config.extras.num_envs"),
        ({"algo_params": {"num_steps": "many"}}, "metadata.worker.config.extras.algo_params.num_steps"),
    ],
)
def test_the_worker_s_refusal_names_the_key_that_was_written(
    trainer: TrainerClient, extras: dict[str, Any], path: str
) -> None:
    config = {**OLD_CONFIG, "extras": extras}
    submitted = {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}
    for call in (trainer.check, trainer.submit):
        with pytest.raises(ConfigRefused) as refusal:
            call(submitted)
        assert f"{path}: " in str(refusal.value)
        assert "config.algo_params" not in str(refusal.value)
        assert [problem.path for problem in refusal.value.problems] == [path]
