"""The flags of `mosaic train ALGO`, from the schema to the payload."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.helpers.cli_trainer import FakeTrainer, call

from mosaic.contracts.arguments import parse_wrapper
from mosaic.contracts.errors import BadInput
from mosaic.contracts.setting_field import SettingField
from mosaic.features.train.cli import normalize_bool_flags

FLAGS = ("anneal-lr", "cuda")


def config_after(*arguments: str) -> dict[str, Any]:
    trainer = FakeTrainer()
    result = call(trainer, "train", "ppo", *arguments, "--detach")
    assert result.code == 0, result.err
    config = trainer.submitted[0]["metadata"]["worker"]["config"]
    assert isinstance(config, dict)
    return config


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (["--anneal-lr"], ["--anneal-lr"]),
        (["--anneal_lr", "False"], ["--no-anneal-lr"]),
        (["--anneal-lr=true", "--cuda=0"], ["--anneal-lr", "--no-cuda"]),
        (["--no-cuda", "--seed", "1"], ["--no-cuda", "--seed", "1"]),
        (["--env-id", "true", "--cuda"], ["--env-id", "true", "--cuda"]),
    ],
)
def test_flags_may_be_written_as_older_scripts_took_them(given: list[str], plain: list[str]) -> None:
    assert normalize_bool_flags(given, FLAGS) == plain


def test_a_flag_that_is_neither_true_nor_false_is_named() -> None:
    with pytest.raises(BadInput, match="anneal_lr: 'banana'"):
        normalize_bool_flags(["--anneal-lr=banana"], FLAGS)


def test_both_spellings_of_a_setting_are_one() -> None:
    assert config_after("--learning-rate", "0.001") == config_after("--learning_rate=0.001")


def test_only_what_was_given_is_sent() -> None:
    config = config_after("--no-anneal-lr", "--total-timesteps", "1e4", "--target-kl", "none")
    assert config["algo_params"] == {"anneal_lr": False, "target_kl": None}
    assert (config["total_timesteps"], config["seed"], config["env_id"]) == (10_000, 1, "CartPole-v1")


def test_a_setting_given_at_its_default_is_still_given() -> None:
    assert config_after("--learning-rate", "0.00025")["algo_params"] == {"learning_rate": 0.00025}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nosuch",), "No algorithm 'nosuch'."),
        (("pppo",), "Did you mean 'ppo'?"),
        (("ppo", "--learning-rate", "banana"), "--learning-rate must be a number above 0 and below 1, not 'banana'."),
        (("ppo", "--num-envs", "0"), "--num-envs must be a whole number of at least 1 and of at most 4,096, not '0'."),
        (("ppo", "--backend", "tofu"), "--backend must be one of auto, numpy, torch, not 'tofu'."),
        (("ppo", "--learning-rat", "1"), "--learning-rate"),
        (("ppo", "--seed", "1", "--seeds", "1-2"), "--seed and --seeds"),
        (("ppo", "--learning-rate"), "requires an argument"),
        (("ppo", "--seed", "1.5"), "--seed must be a whole number"),
        (
            ("ppo", "--priority", "1000"),
            "--priority must be a whole number of at least -100 and of at most 100",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_sent(arguments: tuple[str, ...], words: str) -> None:
    trainer = FakeTrainer()
    result = call(trainer, "train", *arguments)
    assert (result.code, result.out, trainer.submitted) == (2, "", [])
    assert words in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_the_help_page_has_every_setting_with_its_sentence_and_its_default() -> None:
    result = call(None, "train", "ppo", "--help")
    assert result.code == 0
    for words in ("--learning-rate NUMBER", "[default: 0.00025]", "--anneal-lr / --no-anneal-lr", "--seeds", "--track"):
        assert words in " ".join(result.out.split()), words


def test_some_seeds_make_a_group_of_runs() -> None:
    trainer = FakeTrainer()
    result = call(trainer, "train", "ppo", "--seeds", "1-3", "--group", "g", "--detach", "--json")
    assert result.code == 0
    assert [one["metadata"]["worker"]["config"]["seed"] for one in trainer.submitted] == [1, 2, 3]
    assert {one["metadata"]["group"] for one in trainer.submitted} == {"g"}


def test_check_takes_the_arguments_of_train_and_starts_nothing() -> None:
    trainer = FakeTrainer()
    result = call(trainer, "check", "ppo", "--learning-rate", "0.001")
    assert result.code == 0
    assert "learning_rate = 0.001 (default 0.00025)" in result.out
    assert not trainer.views


@pytest.mark.parametrize("text", ["nan", "inf", "", "1,5"])
def test_a_number_must_be_finite(text: str) -> None:
    with pytest.raises(BadInput, match=f"^--x must be a number, not {re.escape(repr(text))}\\.$"):
        SettingField("x", "float").parse(text)


def test_a_list_of_numbers_without_limits_is_described() -> None:
    with pytest.raises(BadInput, match="--device-ids must be whole numbers, separated by commas, not 'a'"):
        SettingField("device_ids", "ints").parse("a")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5h", 5400), ("1h 30m", 5400), ("2d", 172_800), ("1w", 604_800)]
)
def test_a_duration_is_a_number_of_seconds_or_has_units(text: str, seconds: float) -> None:
    trainer = FakeTrainer()
    assert call(trainer, "train", "ppo", "--max-seconds", text, "--detach").code == 0
    assert trainer.submitted[0]["schedule"]["max_duration_seconds"] == seconds


@pytest.mark.parametrize("text", ["1 hour", "h", "1h2", "-1h", "0", "inf"])
def test_other_durations_are_refused_with_an_example(text: str) -> None:
    result = call(FakeTrainer(), "train", "ppo", f"--max-seconds={text}")
    words = "--max-seconds must be a number of seconds, or a duration such as 90s, 30m, 2h or 1d above 0, or none, not"
    assert (result.code, words in result.err) == (2, True), result.err


@pytest.mark.parametrize(
    "text",
    [
        '{"is_slippery": false, "map_name": "8x8"}',
        "is_slippery=false,map_name=8x8",
        "is_slippery=False, map_name='8x8'",
    ],
)
def test_settings_of_the_environment_are_pairs_or_json(text: str) -> None:
    """For every command that takes them, and for --set and wrappers."""
    expected = {"is_slippery": False, "map_name": "8x8"}
    assert config_after("--env-kwargs", text)["algo_params"]["env_kwargs"] == expected
    assert parse_wrapper(f"my:W({text})").arguments == expected
    trainer = FakeTrainer()
    call(trainer, "play", "FrozenLake-v1", "--env-kwargs", text)
    assert trainer.submitted[0]["metadata"]["worker"]["config"]["env_kwargs"] == expected


@pytest.mark.parametrize("text", ["[1]", "is_slippery", "a=1,a=2", "a=f(1)", "{", '{"a": 1'])
def test_other_settings_of_the_environment_are_refused_with_an_example(text: str) -> None:
    for command in (("train", "ppo"), ("play", "FrozenLake-v1")):
        result = call(FakeTrainer(), *command, "--env-kwargs", text)
        assert (result.code, "--env-kwargs must be name=value pairs, such as" in result.err) == (2, True), result.err
