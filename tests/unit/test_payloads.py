"""From what a person asked for to the payload that is submitted."""

from __future__ import annotations

from typing import Any

import pytest

from mosaic.contracts.errors import BadInput
from mosaic.contracts.payload import Payload
from mosaic.submission.run_payloads import (
    apply_assignments,
    build_eval_payload,
    build_train_payload,
    default_group_name,
    diff_settings,
    flatten_settings,
    parse_assignment,
    parse_seeds,
    with_seed,
)

DEFAULTS = {"env_id": "CartPole-v1", "total_timesteps": 500_000, "seed": 1, "learning_rate": 0.00025}


def config_of(payload: dict[str, Any]) -> dict[str, Any]:
    config = payload["metadata"]["worker"]["config"]
    assert isinstance(config, dict)
    return config


def test_a_setting_that_was_not_given_stays_out() -> None:
    payload = build_train_payload("cleanrl", "ppo", {}, DEFAULTS)
    assert config_of(payload) == {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 500_000, "seed": 1}
    assert set(payload) == {"metadata", "artifacts"}
    assert Payload.parse(payload).to_json() == payload


def test_given_settings_become_algo_params_and_false_and_null_stay_what_they_are() -> None:
    payload = build_train_payload("cleanrl", "ppo", {"anneal_lr": False, "target_kl": None, "seed": 0}, DEFAULTS)
    assert config_of(payload)["algo_params"] == {"anneal_lr": False, "target_kl": None}
    assert config_of(payload)["seed"] == 0


def test_the_flags_of_cleanrl_become_artifacts() -> None:
    given = {"track": True, "wandb_project_name": "p", "wandb_entity": "e", "capture_video": True, "save_model": False}
    payload = build_train_payload("cleanrl", "ppo", given, DEFAULTS)
    assert payload["artifacts"] == {
        "wandb": {"enabled": True, "project": "p", "entity": "e"},
        "video": {"capture": True},
        "model": {"save": False},
    }
    assert set(config_of(payload)) == {"algo", "env_id", "total_timesteps", "seed"}
    Payload.parse(payload)


def test_every_option_is_written_to_its_path() -> None:
    options = {
        "run_name": "mine", "tags": ("a", "b"), "notes": "n", "group": "g", "priority": 3, "max_seconds": 60.0,
        "memory_mb": 500, "cpus": 2, "gpus": 1, "keep_checkpoints": 4, "tensorboard": False,
    }  # fmt: skip
    parsed = Payload.parse(build_train_payload("cleanrl", "ppo", options, DEFAULTS))
    assert parsed.run_name == "mine"
    assert (parsed.metadata.tags, parsed.metadata.notes, parsed.metadata.group) == (("a", "b"), "n", "g")
    assert (parsed.schedule.priority, parsed.schedule.max_duration_seconds) == (3, 60.0)
    assert (parsed.resources.memory_mb, parsed.resources.cpus, parsed.resources.gpus.requested) == (500, 2, 1)
    assert parsed.resources.gpus.mandatory
    assert (parsed.artifacts.keep_checkpoints, parsed.artifacts.tensorboard.enabled) == (4, False)


@pytest.mark.parametrize(
    ("text", "seeds"), [("1-5", [1, 2, 3, 4, 5]), ("7", [7]), ("1,3,7", [1, 3, 7]), ("3, 1-3", [3, 1, 2]), ("0", [0])]
)
def test_seeds_are_ranges_and_lists_each_once(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "x", "1-", "-3", "5-1", "1,,2", "1-1000000", "1.5"])
def test_an_invalid_list_of_seeds_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="seeds"):
        parse_seeds(text)


def test_runs_of_a_group_differ_in_their_seed_and_name_only() -> None:
    payload = build_train_payload("cleanrl", "ppo", {"run_name": "mine"}, DEFAULTS)
    made = with_seed(payload, 7, "g")
    assert (config_of(made)["seed"], made["metadata"]["group"], made["run_name"]) == (7, "g", "mine-7")
    assert config_of(payload)["seed"] == 1


def test_the_name_of_a_group_is_valid_in_the_contract() -> None:
    name = default_group_name("ppo", "ALE/Pong v5", 0.0)
    Payload.parse(build_train_payload("cleanrl", "ppo", {"group": name}, DEFAULTS))
    assert name.startswith("ppo-ALE_Pong_v5-1")


def test_an_evaluation_takes_environment_and_seed_from_what_was_trained_but_no_settings() -> None:
    trained = build_train_payload("cleanrl", "ppo", {"learning_rate": 0.1, "tags": ("t",)}, DEFAULTS)
    payload = build_eval_payload(
        trained["metadata"]["worker"],
        "/runs/x/checkpoints/512",
        {"eval_batch_size": 20, "eval_capture_video": True, "seed_override": 9},
    )
    assert config_of(payload) == {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1}
    assert payload["kind"] == "policy_eval"
    assert payload["evaluation"] == {"policy_path": "/runs/x/checkpoints/512", "episodes": 20, "seed": 9}
    assert payload["artifacts"]["video"] == {"capture_evaluation": True}
    Payload.parse(payload)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("seed=3", ("seed", 3)),
        ("env_id=CartPole-v1", ("env_id", "CartPole-v1")),
        ("anneal_lr=false", ("anneal_lr", False)),
        ("target_kl=null", ("target_kl", None)),
        ("note=a=b", ("note", "a=b")),
        ('tags=["a"]', ("tags", ["a"])),
    ],
)
def test_an_assignment_is_json_where_it_can_be(text: str, read: tuple[str, Any]) -> None:
    assert parse_assignment(text) == read


@pytest.mark.parametrize("text", ["seed", "=3", " =3"])
def test_an_assignment_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="key=value"):
        parse_assignment(text)


def test_changes_are_written_to_the_path_of_the_setting() -> None:
    payload = build_train_payload("cleanrl", "ppo", {}, DEFAULTS)
    wanted = [
        ("seed", 5), ("learning-rate", 0.1), ("save_model", False), ("mode", "policy_eval"), ("tags", ["a"]),
        ("schedule.priority", 3), ("run_name", "mine"),
    ]  # fmt: skip
    made = apply_assignments(payload, wanted)
    assert config_of(made)["seed"] == 5
    assert config_of(made)["algo_params"] == {"learning_rate": 0.1}
    assert (made["artifacts"]["model"], made["kind"]) == ({"save": False}, "policy_eval")
    assert (made["metadata"]["tags"], made["schedule"], made["run_name"]) == (["a"], {"priority": 3}, "mine")
    assert "algo_params" not in config_of(payload)
    assert "kind" not in payload


def test_a_path_through_a_value_that_is_not_an_object_is_refused() -> None:
    payload = build_train_payload("cleanrl", "ppo", {}, DEFAULTS)
    with pytest.raises(BadInput, match="seed"):
        apply_assignments(payload, [("metadata.worker.config.seed.deeper", 1)])


def test_settings_are_compared_by_the_names_that_set_takes_and_with_their_defaults() -> None:
    one = build_train_payload("cleanrl", "ppo", {"learning_rate": 0.00025, "save_model": True}, DEFAULTS)
    other = build_train_payload("cleanrl", "ppo", {"learning_rate": 0.1, "seed": 2, "priority": 1}, DEFAULTS)
    assert diff_settings(flatten_settings(one, DEFAULTS), flatten_settings(other, DEFAULTS)) == {
        "learning_rate": (0.00025, 0.1),
        "save_model": (True, None),
        "priority": (None, 1),
        "seed": (1, 2),
    }
    same = build_train_payload("cleanrl", "ppo", {}, DEFAULTS)
    assert "learning_rate" not in diff_settings(flatten_settings(one, DEFAULTS), flatten_settings(same, DEFAULTS))
