"""The user's presets: their file, and how commands use and list them."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.helpers.cli_trainer import FakeTrainer, call

from mosaic.base.user_presets import Preset, delete_preset, find_preset, presets_path, read_presets, save_preset
from mosaic.contracts.errors import BadInput
from mosaic.contracts.payload import Payload

FAST = Preset("cleanrl", "ppo", {"env_id": "Acrobot-v1", "total_timesteps": 4096, "learning_rate": 0.01})
DAMAGED = {
    "not JSON": "{",
    "expected a JSON object of presets": "[]",
    "the preset 'x' is not a JSON object": '{"x": 1}',
    "unknown key 'novel'": '{"x": {"worker": "cleanrl", "algorithm": "ppo", "novel": 1}}',
    "'algorithm' of the preset 'x'": '{"x": {"worker": "cleanrl"}}',
    "'settings' of the preset 'x'": '{"x": {"worker": "cleanrl", "algorithm": "ppo", "settings": []}}',
}


def submitted(*arguments: str) -> list[dict[str, Any]]:
    trainer = FakeTrainer()
    done = call(trainer, "train", *arguments, "--detach")
    assert done.code == 0, done.err
    return trainer.submitted


# --- the file


def test_presets_are_kept_in_a_file_that_only_its_owner_can_read() -> None:
    other = Preset("cleanrl", "dqn", {"target_kl": None, "hidden_sizes": [64]}, "1-3", {"artifacts": {"x": 1}})
    assert read_presets() == {}
    save_preset("fast", FAST)
    save_preset("another one", other)
    assert read_presets() == {"fast": FAST, "another one": other}
    save_preset("fast", other)
    delete_preset("another one")
    assert read_presets() == {"fast": other}
    assert stat.S_IMODE(presets_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(presets_path().parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("problem", DAMAGED)
def test_a_damaged_file_is_reported_and_never_overwritten(problem: str) -> None:
    save_preset("x", FAST)
    presets_path().write_text(DAMAGED[problem])
    for use in (read_presets, lambda: save_preset("y", FAST), lambda: delete_preset("x")):
        with pytest.raises(BadInput, match=r"presets\.json is damaged: ") as refusal:
            use()
        assert problem == "not JSON" or problem in str(refusal.value)
    assert presets_path().read_text() == DAMAGED[problem]
    for arguments in (("presets",), ("train", "ppo", "--preset", "x")):
        refused = call(None, *arguments)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)


def test_those_who_write_at_the_same_time_lose_nothing() -> None:
    names = [f"preset {number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: save_preset(name, FAST), names))
    assert set(read_presets()) == set(names)


def test_a_file_that_cannot_be_written_is_named() -> None:
    presets_path().parent.parent.mkdir(parents=True, exist_ok=True)
    presets_path().parent.write_text("not a folder")
    with pytest.raises(BadInput, match=r"The presets cannot be stored in .*presets\.json: "):
        save_preset("x", FAST)


@pytest.mark.parametrize("name", ["", "  ", "two\nlines"])
def test_a_name_is_one_line_of_text(name: str) -> None:
    with pytest.raises(BadInput, match="cannot be the name of a preset"):
        save_preset(name, FAST)
    assert not presets_path().exists()


def test_keys_in_a_preset_become_references() -> None:
    settings = {"env_kwargs": {"api_token": "very-secret"}}
    save_preset("x", Preset("cleanrl", "ppo", settings, rest={"artifacts": {"wandb": {"api_key": "very-secret"}}}))
    assert "very-secret" not in presets_path().read_text()
    preset = read_presets()["x"]
    assert preset.settings["env_kwargs"]["api_token"].startswith("secret:")
    assert preset.rest["artifacts"]["wandb"]["api_key"].startswith("secret:wandb_api_key")


# --- in commands


def test_a_run_starts_from_a_preset_and_flags_change_single_settings() -> None:
    settings = {**FAST.settings, "env_kwargs": {"a": 1}, "tags": ["found"], "seed": 7}
    save_preset("fast", Preset("cleanrl", "ppo", settings, rest={"artifacts": {"persist_logs": False}}))
    (payload,) = submitted("ppo", "--preset", "fast")
    Payload.parse(payload)
    config = payload["metadata"]["worker"]["config"]
    assert config == {
        "algo": "ppo", "env_id": "Acrobot-v1", "total_timesteps": 4096, "seed": 7,
        "algo_params": {"learning_rate": 0.01, "env_kwargs": {"a": 1}},
    }  # fmt: skip
    assert (payload["metadata"]["tags"], payload["artifacts"]) == (["found"], {"persist_logs": False})

    flags = ("--learning-rate", "0.5", "--env-id", "CartPole-v1", "--env-kwargs", '{"b": 2}', "--gamma", "0.9")
    (changed,) = submitted("ppo", "--preset", "fast", *flags)
    config = changed["metadata"]["worker"]["config"]
    assert (config["env_id"], config["total_timesteps"]) == ("CartPole-v1", 4096)
    assert config["algo_params"] == {"learning_rate": 0.5, "env_kwargs": {"b": 2}, "gamma": 0.9}


def test_the_seeds_of_a_preset_make_a_group_unless_a_flag_states_others() -> None:
    save_preset("fast", Preset("cleanrl", "ppo", {"seed": 5}, "1-3"))

    def seeds(*flags: str) -> list[int]:
        payloads = submitted("ppo", "--preset", "fast", *flags)
        return [payload["metadata"]["worker"]["config"]["seed"] for payload in payloads]

    assert seeds() == [1, 2, 3]
    assert seeds("--seeds", "8,9") == [8, 9]
    assert seeds("--seed", "4") == [4]


def test_a_preset_that_does_not_fit_is_refused_with_what_to_do() -> None:
    save_preset("my fast", FAST)
    refused = call(None, "train", "dqn", "--preset", "my fast")
    assert (refused.code, refused.err) == (
        2, "The preset 'my fast' is for ppo, not for dqn. Use: mosaic train ppo --preset 'my fast'\n"
    )  # fmt: skip
    refused = call(None, "check", "ppo", "--preset", "cartpole-dqn")
    assert (refused.code, "Use: mosaic train dqn --preset cartpole-dqn" in refused.err) == (2, True)
    refused = call(None, "train", "ppo", "--preset", "my fats")
    assert (refused.code, "Did you mean 'my fast'? Known: acrobot-ppo, " in refused.err) == (2, True)


def test_the_users_preset_precedes_a_tuned_one_of_that_name_and_algorithm() -> None:
    save_preset("cartpole-ppo", FAST)
    save_preset("cartpole-dqn", FAST)
    assert find_preset("cartpole-ppo", "cleanrl", "ppo") == FAST
    assert find_preset("cartpole-dqn", "cleanrl", "ppo") == FAST
    assert find_preset("cartpole-dqn", "cleanrl", "dqn").settings["batch_size"] == 64


def test_presets_are_listed_by_kind() -> None:
    assert "YOUR OWN" not in call(None, "presets").out
    save_preset("fast", Preset("cleanrl", "ppo", {**FAST.settings, "hidden_sizes": [64, 64]}, "1-3"))
    lines = call(None, "presets").out.splitlines()
    assert lines[0].startswith("TUNED ")
    assert lines[-2].startswith("YOUR OWN ")
    assert lines[-1].split(maxsplit=2) == [
        "fast", "ppo",
        "env_id Acrobot-v1, total_timesteps 4096, learning_rate 0.01, hidden_sizes [64, 64], seeds 1-3",
    ]  # fmt: skip
    listed = json.loads(call(None, "presets", "--json").out)
    assert [one["name"] for one in listed if not one["is_tuned"]] == ["fast"]
    assert "cartpole-ppo" in [one["name"] for one in listed if one["is_tuned"]]
    assert listed[-1]["settings"]["hidden_sizes"] == [64, 64]
