"""What `mosaic run` reads from a command before running it."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from tests.helpers.probe_cleanrl import make_checkout
from tests.helpers.probe_scripts import write_script

from mosaic.base.run_payloads import flag_value, script_config, script_name
from mosaic.contracts.errors import BadInput, UnknownName
from mosaic.features.train.cli import parse_own_cleanrl, run, train


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


def test_a_cleanrl_script_without_args_is_named_with_the_command_that_starts_it(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "their cleanrl")
    script = write_script(checkout / "cleanrl", "import argparse\n", "older.py")
    context = click.Context(train)
    with pytest.raises(BadInput, match=r"has no class Args") as raised:
        train.resolve_command(context, ["cleanrl:older", "--cleanrl", str(checkout), "--cleanrl-python", "/v/python"])
    assert str(raised.value).endswith(f"mosaic run -- /v/python '{script}'")
    with pytest.raises(UnknownName, match="Did you mean 'cleanrl:walk'"):
        train.resolve_command(context, ["cleanrl:wlak", "--cleanrl", str(checkout)])


def test_the_help_of_train_names_scripts_of_cleanrl() -> None:
    assert "cleanrl:ppo --cleanrl" in train.get_help(click.Context(train))


@pytest.mark.parametrize("flag", ["--name", "--run-name"])
def test_a_run_is_named_by_the_same_flags_in_run_and_train(flag: str) -> None:
    own = train.get_command(click.Context(train), "ppo")
    assert own is not None
    for command in (run, own):
        context = click.Context(command)
        arguments = [flag, "mine", *(["true"] if command is run else [])]
        command.parse_args(context, arguments)
        assert context.params["run_name"] == "mine"
