"""Which configs the worker accepts, and how it refuses the rest."""

from __future__ import annotations

from typing import Any

import pytest

from cleanrl_worker.registry import load_algorithm
from cleanrl_worker.shell.worker_config import WorkerRequest, algorithm_config, parse_request
from mosaic.contracts.errors import ConfigRefused, UnknownName
from mosaic.contracts.folder import is_run_id
from mosaic.worker.evaluation_batches import batch_size

BARE: dict[str, Any] = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 2048}


def payload(config: dict[str, Any], **artifacts: Any) -> dict[str, Any]:
    return {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": artifacts}


def refusal(data: Any) -> str:
    with pytest.raises(ConfigRefused) as refused:
        algorithm_config(parse_request(data))
    assert str(refused.value).startswith("LOG705 ")
    return str(refused.value)


def test_a_bare_config_and_a_payload_mean_the_same() -> None:
    """R3.1: the worker's command line."""
    bare, complete = parse_request(BARE), parse_request(payload(BARE))
    assert algorithm_config(bare) == algorithm_config(complete)
    assert bare.config == complete.config


def test_a_payload_sets_the_options_of_artifacts() -> None:
    given = parse_request(payload(BARE, tensorboard={"enabled": False}, keep_checkpoints=7)).artifacts
    assert (given.tensorboard.enabled, given.keep_checkpoints) == (False, 7)
    default = parse_request(BARE).artifacts
    assert (default.tensorboard.enabled, default.keep_checkpoints) == (True, 3)


def test_unreserved_extras_become_settings_like_algo_params() -> None:
    """R3.2: config fields."""
    given = parse_request({**BARE, "extras": {"num_envs": 2, "algo_params": {"gamma": 0.5}, "save_model": False}})
    config = algorithm_config(given)
    assert (config.num_envs, config.gamma) == (2, 0.5)
    assert given.saves_model is False


def test_false_stays_false_and_unset_stays_unset() -> None:
    config = algorithm_config(parse_request({**BARE, "extras": {"algo_params": {"anneal_lr": False, "cuda": False}}}))
    assert config.anneal_lr is False
    assert config.cuda is False
    assert config.target_kl is None
    given = parse_request(BARE)
    assert given.artifacts.model_dump(exclude_unset=True) == {}
    assert given.config.seed is None
    assert algorithm_config(given).seed == 1


def test_the_command_line_overrides_the_file() -> None:
    """R3.1: the worker's command line."""
    given = parse_request(
        {**BARE, "seed": 3, "extras": {"gamma": 0.9, "num_envs": 2}},
        {"seed": 5, "total_timesteps": None, "extras": {"gamma": 0.8}},
    )
    config = algorithm_config(given)
    assert (config.seed, config.total_timesteps, config.gamma, config.num_envs) == (5, 2048, 0.8, 2)


@pytest.mark.parametrize(
    ("extras", "sentence"),
    [
        ({"algo_params": {"learnin_rate": 1}}, "extras.algo_params.learnin_rate: unknown setting of 'ppo'"),
        ({"learnin_rate": 1}, "extras.learnin_rate: unknown setting of 'ppo'"),
        (
            {"algo_params": {"learning_rate": "banana"}},
            "extras.algo_params.learning_rate: expected a number (given: 'banana')",
        ),
        ({"learning_rate": 3}, "extras.learning_rate: input should be less than 1 (given: '3')"),
        ({"algo_params": {"seed": 2}, "gamma": "x"}, "extras.gamma: "),
        ({"gamma": 0.9, "algo_params": {"gamma": 0.8}}, "extras.gamma is 0.9, but extras.algo_params.gamma is 0.8."),
        ({"save_model": "perhaps"}, "extras.save_model: expected true or false"),
        ({"video_mode": "mosaic"}, "extras.video_mode: input should be 'single', 'grid' or 'off'"),
        ({"tensorboard_dir": "../../etc"}, "extras.tensorboard_dir: expected a path inside the run's folder"),
        ({"tensorboard_dir": "/etc"}, "extras.tensorboard_dir: expected a path inside the run's folder"),
        ({"policy_path": "/x"}, "extras.policy_path: only an evaluation takes it"),
    ],
)
def test_extras_are_refused_with_their_path(extras: dict[str, Any], sentence: str) -> None:
    """R3.3: reserved extras."""
    assert sentence in refusal({**BARE, "extras": extras})


def test_a_wrong_item_of_a_list_is_named_once_with_its_path() -> None:
    said = refusal(payload({**BARE, "algo_params": {"hidden_sizes": [0]}}))
    path = "metadata.worker.config.algo_params.hidden_sizes.0"
    assert said == (
        f"LOG705 The worker config was refused: {path}: input should be greater than or equal to 1 (given: '0')."
    )
    assert "hidden_sizes: tuple should have at least 1 item" in refusal({**BARE, "algo_params": {"hidden_sizes": []}})


def test_an_object_and_a_list_are_called_what_json_calls_them() -> None:
    assert 'env_kwargs: expected a mapping, such as {"name": 1}' in refusal(
        {**BARE, "algo_params": {"env_kwargs": [1]}}
    )
    assert "wrappers: expected a list (given: 'flatten')" in refusal({**BARE, "algo_params": {"wrappers": "flatten"}})


def test_a_misspelled_setting_gets_a_suggestion() -> None:
    assert "Did you mean 'learning_rate'?" in refusal({**BARE, "extras": {"learnin_rate": 1}})
    assert "Did you mean 'save_model'?" in refusal({**BARE, "extras": {"save_modell": True}})
    assert "sed: unknown key. Did you mean 'seed'?" in refusal({**BARE, "sed": 1})


def test_a_payload_names_the_whole_path() -> None:
    assert "metadata.worker.config.extras.algo_params.nosuch: " in refusal(
        payload({**BARE, "extras": {"algo_params": {"nosuch": 1}}})
    )
    assert "metadata.worker.config.seed: " in refusal(payload({**BARE, "seed": -1}))
    assert "another worker" in refusal({"metadata": {"worker": {"id": "other", "config": BARE}}, "artifacts": {}})


@pytest.mark.parametrize("env_id", ["my_envs:", ":Maze-v0", "my-envs:Maze-v0", "a:b:Maze-v0", "my_envs:/Maze-v0"])
def test_an_environment_id_with_an_impossible_module_or_name_is_refused(env_id: str) -> None:
    assert "env_id: expected an environment id such as 'CartPole-v1', 'ALE/Pong-v5' or" in refusal(
        {**BARE, "env_id": env_id}
    )


@pytest.mark.parametrize("key", ["env_id", "run_id", "algo", "worker_id"])
@pytest.mark.parametrize("value", ["../x", "/etc/passwd", "a\0b", "x\ny", ""])
def test_ids_that_are_paths_or_worse_are_refused(key: str, value: str) -> None:
    """F26: by the worker, if it is started by hand."""
    assert f"{key}: " in refusal({**BARE, key: value})


@pytest.mark.parametrize("run_id", ["last", "LAST", "Best", ".", "..", ".x", "-x", "a b", "é", "a@b", "a" * 65, "a\n"])
def test_a_run_id_that_commands_could_not_name_is_refused(run_id: str) -> None:
    """F58: one rule for the worker, imports and the daemon."""
    assert not is_run_id(run_id)
    assert "run_id: expected up to 64 letters, digits" in refusal({**BARE, "run_id": run_id})


@pytest.mark.parametrize("run_id", ["test1", "bare-1", "01KADXYZ", "_x", "a.b_c-D", "a" * 64])
def test_a_run_id_need_not_be_a_ulid(run_id: str) -> None:
    """F58: of a worker that is started by hand."""
    assert is_run_id(run_id)
    assert parse_request({**BARE, "run_id": run_id}).config.run_id == run_id


@pytest.mark.parametrize("data", [None, [], "text", 3, {"algo": "ppo"}, {**BARE, "extras": []}, {**BARE, "seed": "x"}])
def test_an_invalid_config_is_refused(data: Any) -> None:
    refusal(data)


def test_settings_that_contradict_the_config_are_refused() -> None:
    assert "Give one of them." in refusal({**BARE, "seed": 1, "extras": {"algo_params": {"seed": 2}}})
    given = parse_request({**BARE, "seed": 2, "extras": {"algo_params": {"seed": 2}}})
    assert algorithm_config(given).seed == 2


def test_an_unknown_algorithm_gets_a_suggestion() -> None:
    with pytest.raises(
        UnknownName, match=r"No algorithm 'pppo' in worker 'cleanrl'\. Did you mean 'ppo'\? Known: a2c, c51, "
    ):
        load_algorithm("pppo")


def test_episodes_for_a_batch_have_one_default_and_two_names() -> None:
    def size(**extras: Any) -> int:
        given: WorkerRequest = parse_request({"extras": {"mode": "policy_eval", "policy_path": "/x", **extras}})
        return batch_size(given.payload)

    assert (size(), size(eval_batch_size=7), size(eval_episodes=9)) == (50, 7, 9)
