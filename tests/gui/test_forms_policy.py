"""From a checkpoint to the payload of an evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mosaic.base.worker_registry import policy_workers
from mosaic.contracts.errors import BadInput
from mosaic.contracts.payload import Payload
from mosaic.contracts.views import CheckpointInfo, RunView
from mosaic.features.evaluate.window_model import (
    POLICY_FIELDS,
    PolicyDraft,
    describe_checkpoint,
    draft_from_evaluation,
    evaluation_fields,
    is_evaluation,
)
from mosaic.window.runs import runs_with_policy

FOUND = CheckpointInfo(path="/runs/x/checkpoints/512", algo="ppo", env_id="CartPole-v1", seed=3)
DRAFT = PolicyDraft("cleanrl", "/runs/x", FOUND)


def config_of(payload: dict[str, Any]) -> dict[str, Any]:
    config = payload["metadata"]["worker"]["config"]
    assert isinstance(config, dict)
    return config


def test_only_workers_that_load_policies_are_offered() -> None:
    assert policy_workers() == ["cleanrl", "bdi"]
    assert {"eval_batch_size", "eval_repeat", "seed_override"} <= {
        field.name for field in evaluation_fields("cleanrl", POLICY_FIELDS)
    }


def test_the_checkpoint_sets_what_is_evaluated_and_the_form_sets_how() -> None:
    draft = replace(DRAFT, texts={"eval_batch_size": "7", "eval_repeat": "true", "seed_override": "9", "tags": "a, b"})
    payload = draft.payload()
    assert config_of(payload) == {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": 3,
    }
    assert payload["kind"] == "policy_eval"
    assert payload["evaluation"] == {
        "policy_path": "/runs/x/checkpoints/512", "episodes": 7, "seed": 9, "repeat": True,
    }  # fmt: skip
    assert payload["artifacts"]["video"] == {"capture_evaluation": False}
    assert payload["metadata"]["ui"] == {"eval_batch_size": 7, "eval_repeat": True}
    assert payload["metadata"]["tags"] == ["a", "b"]
    Payload.parse(payload)


def test_fifty_episodes_are_the_default() -> None:
    """R8.1: policy form."""
    payload = DRAFT.payload()
    assert payload["evaluation"]["episodes"] == 50
    assert payload["metadata"]["ui"] == {"eval_batch_size": 50, "eval_repeat": False}


def test_another_environment_replaces_that_of_the_training() -> None:
    assert config_of(replace(DRAFT, env_id="CartPole-v0").payload())["env_id"] == "CartPole-v0"
    assert "env_id" in replace(DRAFT, env_id=" ").problems()


def test_missing_and_invalid_fields_are_reported() -> None:
    assert list(PolicyDraft("cleanrl").problems()) == ["policy_path"]
    assert list(replace(DRAFT, texts={"eval_batch_size": "0"}).problems()) == ["eval_batch_size"]
    with pytest.raises(BadInput, match="Choose a run"):
        PolicyDraft("cleanrl").payload()


def test_an_evaluation_survives_a_round_trip_through_the_form() -> None:
    payload = replace(DRAFT, texts={"eval_batch_size": "7", "eval_capture_video": "true", "tags": "a"}).payload()
    assert is_evaluation(payload)
    back = replace(draft_from_evaluation(payload), checkpoint_info=FOUND)
    assert back.payload() == payload


def test_runs_that_have_saved_a_checkpoint_can_be_loaded_newest_first() -> None:
    def view(run_id: str, kind: str, checkpoint_step: int | None, worker: str) -> RunView:
        fields = {"kind": kind, "checkpoint_step": checkpoint_step, "worker": worker}
        return RunView.placeholder(run_id).model_copy(update=fields)

    views = [
        view("1", "train", 5, "cleanrl"),
        view("2", "train", None, "cleanrl"),
        view("3", "policy_eval", 5, "cleanrl"),
        view("4", "train", 5, "script"),
        view("5", "train", 0, "cleanrl"),
    ]
    assert [view.run_id for view in runs_with_policy(views)] == ["5", "1"]


def test_a_checkpoint_is_described_in_one_line() -> None:
    assert describe_checkpoint(FOUND.model_copy(update={"step": 39936, "run_id": "01ABCDEFGH", "score": 159.94})) == (
        "Checkpoint of step 39,936, of run CDEFGH, with return 159.9."
    )
    assert describe_checkpoint(CheckpointInfo(kind="cleanrl_model")) == "Model file."
