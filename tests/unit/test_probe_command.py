"""What `mosaic run` reads from a command before running it."""

from __future__ import annotations

import pytest

from mosaic.cli.script_command import flag_value, script_config, script_name
from mosaic.cli.train_commands import parse_own_cleanrl
from mosaic.contracts.errors import BadInput


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["python", "a/my_script.py", "--x", "1"], "my_script"),
        (["/v/bin/python", "-m", "rl_zoo3.train", "--algo", "ppo"], "rl_zoo3.train"),
        (["torchrun", "--nproc-per-node", "2", "train.py"], "train"),
        (["./go.sh"], "go"),
        (["/usr/bin/train"], "train"),
    ],
)
def test_a_run_is_named_after_its_script(argv: list[str], name: str) -> None:
    assert script_name(argv) == name


def test_arguments_of_the_script_are_read_into_the_config() -> None:
    argv = ["python", "x.py", "--env_id=ALE/Pong-v5", "--total-timesteps", "1e6", "--seed", "4"]
    config = script_config(argv, "/here", {"HOME": "/h", "LD_PRELOAD": "x"})
    assert config == {
        "argv": argv,
        "cwd": "/here",
        "env_names": ["HOME"],
        "algo": "x",
        "env_id": "ALE/Pong-v5",
        "total_timesteps": 1_000_000,
        "seed": 4,
    }


def test_a_value_that_is_not_a_number_is_left_to_the_script() -> None:
    config = script_config(["python", "x.py", "--seed", "auto", "--total-timesteps=many"], "/here", {})
    assert "seed" not in config
    assert "total_timesteps" not in config


def test_another_argument_can_name_the_environment() -> None:
    assert script_config(["python", "x.py", "--task", "Walk-v1"], "/", {}, "--task")["env_id"] == "Walk-v1"
    with pytest.raises(BadInput, match="--env-id-from"):
        script_config(["python", "x.py"], "/", {}, "task")


def test_a_flag_without_a_value_has_none() -> None:
    assert flag_value(["--seed", "--other"], ["seed"]) is None
    assert flag_value(["--seed"], ["seed"]) is None
    assert flag_value(["--seed="], ["seed"]) == ""


def test_the_users_own_cleanrl_is_read_from_the_arguments() -> None:
    assert parse_own_cleanrl(["cleanrl:ppo", "--cleanrl", "/c", "--cleanrl-python=/v/bin/python"]) == {
        "cleanrl": "/c",
        "cleanrl_python": "/v/bin/python",
    }
    assert parse_own_cleanrl(["ppo", "--seed", "1"]) == {}
