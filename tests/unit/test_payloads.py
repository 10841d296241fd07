"""From what a person asked for to the payload that is submitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosaic.base.run_payloads import (
    apply_assignments,
    build_eval_payload,
    build_train_payload,
    default_group_name,
    diff_settings,
    flatten_settings,
    parse_assignments,
    parse_seeds,
    split_assignments,
    verdict_rows,
    with_seed,
)
from mosaic.contracts.errors import BadInput, ConfigRefused
from mosaic.contracts.folder import Workspace
from mosaic.contracts.options import OPTIONS
from mosaic.contracts.payload import Payload
from mosaic.trainer.checkers import Checkers

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


def test_numbers_and_arrays_of_numpy_become_plain_values_and_other_objects_are_refused_with_their_setting() -> None:
    given = {
        "total_timesteps": np.int64(1000),
        "learning_rate": np.float32(0.5),
        "hidden_sizes": np.array([8, 4]),
        "wrappers": ("flatten",),
    }
    config = config_of(build_train_payload("cleanrl", "ppo", given, DEFAULTS))
    assert json.loads(json.dumps(config)) == config
    assert config["total_timesteps"] == 1000
    assert config["algo_params"] == {"learning_rate": 0.5, "hidden_sizes": [8, 4], "wrappers": ["flatten"]}
    for name, value in {"network": int, "env_kwargs": {"map": {1, 2}}}.items():
        with pytest.raises(BadInput, match=rf"{name}: .* is not a value of a config \((type|set)\)"):
            build_train_payload("cleanrl", "ppo", {name: value}, DEFAULTS)


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


@pytest.mark.parametrize("name", ["my unedited script", "größeres Netz", "学習 1", "3 × 64, β=0.5", "..x", "-x"])
def test_a_name_may_be_any_line_of_text(name: str) -> None:
    payload = build_train_payload("cleanrl", "ppo", {"run_name": name}, DEFAULTS)
    assert Payload.parse(payload).run_name == name
    assert OPTIONS["run_name"].parse(name) == name


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "bell\x07", "x" * 121, "..", "../x", "a\\b"])
def test_a_name_that_cannot_be_shown_in_a_line_is_refused(name: str) -> None:
    payload = {**build_train_payload("cleanrl", "ppo", {}, DEFAULTS), "run_name": name}
    with pytest.raises(ConfigRefused, match="one line of text"):
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
    ("text", "value"),
    [
        ("seed=3", 3),
        ("env_id=CartPole-v1", "CartPole-v1"),
        ("anneal_lr=false", False),
        ("anneal_lr=no", False),
        ("target_kl=null", None),
        ("target_kl=none", None),
        ("note=a=b", "a=b"),
        ("run_name=7", "7"),
        ('tags=["a"]', ["a"]),
        ("total_timesteps=1M", 1_000_000),
        ("total_timesteps=1e6", 1_000_000),
        ("metadata.worker.config.total_timesteps=3,000,000", 3_000_000),
        ("hidden_sizes=128,128", [128, 128]),
        ("hidden-sizes=[128,128]", [128, 128]),
        ("hidden_sizes=128", [128]),
        ('env_kwargs={"a": 1}', {"a": 1}),
        ("somewhere.else=[1]", [1]),
        ("somewhere.else=x", "x"),
    ],
)
def test_an_assignment_is_read_as_the_flag_takes_it_or_as_json(text: str, value: Any) -> None:
    payload = build_train_payload("cleanrl", "ppo", {}, DEFAULTS)
    assert parse_assignments(payload, split_assignments([text])) == {text.partition("=")[0]: value}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *[(text, "key=value") for text in ("seed", "=3", " =3")],
        ("hidden_sizes=128,x", "--set hidden_sizes must be 1 to .* whole numbers .*, not '128,x'"),
    ],
)
def test_an_assignment_that_cannot_be_read_is_refused(text: str, words: str) -> None:
    payload = build_train_payload("cleanrl", "ppo", {}, DEFAULTS)
    with pytest.raises(BadInput, match=words):
        parse_assignments(payload, split_assignments([text]))


def test_changes_are_written_to_the_path_of_the_setting() -> None:
    payload = build_train_payload("cleanrl", "ppo", {}, DEFAULTS)
    wanted = {
        "seed": 5, "learning-rate": 0.1, "save_model": False, "mode": "policy_eval", "tags": ["a"],
        "schedule.priority": 3, "run_name": "mine",
    }  # fmt: skip
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
        apply_assignments(payload, {"metadata.worker.config.seed.deeper": 1})


def test_the_verdict_on_a_worker_without_a_checker_has_what_the_config_changes(tmp_path: Path) -> None:
    settings = {"learning_rate": 0.001, "gamma": 0.99}
    payload = Payload.parse(build_train_payload("cleanrl", "ppo", settings, DEFAULTS))
    checkers = Checkers({}, Workspace(tmp_path))
    rows = dict(verdict_rows(checkers.check("cleanrl", payload)))
    assert rows == {"environment": "CartPole-v1", "steps": "500,000", "seed": "1", "changed": rows["changed"]}
    assert rows["changed"] == "learning_rate = 0.001 (default 0.00025)"
    own = Payload.parse({"metadata": {"worker": {"id": "mine", "config": {"speed": 3}}}, "artifacts": {}})
    assert dict(verdict_rows(checkers.check("mine", own)))["changed"] == "speed = 3"


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
