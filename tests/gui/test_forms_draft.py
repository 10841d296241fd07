"""What a person fills in, judged as it is typed, and turned into payloads and back."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.probe_cleanrl import make_checkout

from mosaic.base.algorithm_schema import open_script_folder
from mosaic.base.caller_environment import program_environment
from mosaic.base.user_presets import read_presets, save_preset
from mosaic.contracts.errors import BadInput, ConfigRefused, FieldProblem, NoDaemon
from mosaic.contracts.payload import Payload
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import EnvironmentListing
from mosaic.features.train import window_model as form_layout
from mosaic.features.train.window_model import (
    Draft,
    FormLayout,
    algorithms_by_worker,
    draft_from_payload,
    draft_from_preset,
    get_layout,
)
from mosaic.window.environments import environment_problem, families, sort_environments
from mosaic.window.form_model import FieldTexts, Refusals, field_label, field_problem, field_tooltip, field_unit

RATE = SettingField("learning_rate", "float", 0.00025, "The step size.", {"gt": 0, "lt": 1})
KL = SettingField("target_kl", "float", None, "", {"gt": 0}, is_optional=True)
PPO = Draft("cleanrl", "ppo")


@pytest.fixture(scope="module")
def layout() -> FormLayout:
    return get_layout("cleanrl", "ppo")


def filled(draft: Draft = PPO, **texts: str) -> Draft:
    for name, text in texts.items():
        draft = draft.with_text(name, text)
    return draft


def config_of(payload: dict[str, Any]) -> dict[str, Any]:
    config = payload["metadata"]["worker"]["config"]
    assert isinstance(config, dict)
    return config


def test_the_form_has_every_setting_of_the_algorithm_once(layout: FormLayout) -> None:
    """R7.1: train form."""
    names = [field.name for section in (*layout.left, *layout.right) for field in section.fields]
    names += [field.name for field in layout.core]
    assert len(names) == len(set(names))
    assert {field.name for field in layout.algorithm.fields} <= set(names)
    assert [section.title for section in layout.left] == ["Run", "Compute", "Network", "Learning", "Rollout"]
    assert "cleanrl" in algorithms_by_worker()
    assert "script" not in algorithms_by_worker()


def test_proxies_and_the_evaluation_after_training_are_in_the_form(layout: FormLayout) -> None:
    """R4.5, R7.1: explicit proxies; R3.11: the evaluation after training."""
    titles = {field.name: section.title for section in layout.right for field in section.fields}
    assert titles["wandb_http_proxy"] == titles["wandb_https_proxy"] == titles["track"]
    assert titles["eval_capture_video"] == titles["capture_video"]


def test_an_invalid_value_names_what_was_expected() -> None:
    assert field_problem(RATE, "0.1") == ""
    assert field_problem(RATE, "3") == "Expected a number above 0 and below 1."
    assert field_problem(RATE, "x") == "Expected a number above 0 and below 1."
    assert field_problem(SettingField("n", "int", 4, constraints={"ge": 1}), "1.5").startswith(
        "Expected a whole number"
    )
    assert field_problem(SettingField("n", "int", 4, constraints={"ge": 1}), "1e6") == ""
    assert field_problem(SettingField("env_id", "str"), " ") == "Required."


def test_an_optional_field_may_stay_unset() -> None:
    assert field_problem(KL, "") == ""
    assert field_problem(KL, "-1") != ""
    form = FieldTexts((KL,), {"target_kl": "0.5"})
    assert form.changed() == ["target_kl"]
    assert form.with_text("target_kl", "").texts == {}


def test_names_are_validated_as_in_the_contract() -> None:
    tags = SettingField("tags", "names", None, is_optional=True)
    assert field_problem(tags, "a, b-1") == ""
    assert field_problem(tags, "a, b c").startswith("Expected names")
    assert field_problem(SettingField("run_name", "name", None, is_optional=True), "../x") != ""


def test_a_field_with_its_default_again_is_not_kept(layout: FormLayout) -> None:
    draft = filled(learning_rate="0.1")
    assert draft.texts == {"learning_rate": "0.1"}
    assert filled(draft, learning_rate="2.5e-4").texts == {}


def test_an_unchanged_form_gives_a_minimal_payload(layout: FormLayout) -> None:
    (payload,) = PPO.payloads(0.0)
    assert config_of(payload) == {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 500_000, "seed": 1}
    Payload.parse(payload)


def test_the_names_of_worker_and_agent_and_the_users_name_at_wandb_are_in_the_form(layout: FormLayout) -> None:
    """R7.1: what the config names, the form has a field for."""
    draft = filled(worker_id="left", agent_id="ada", wandb_run_name="mine", wandb_email="ada@example.org")
    (payload,) = draft.payloads(0.0)
    parsed = Payload.parse(payload)
    assert (config_of(payload)["worker_id"], config_of(payload)["agent_id"]) == ("left", "ada")
    assert (parsed.artifacts.wandb.run_name, parsed.artifacts.wandb.email) == ("mine", "ada@example.org")
    assert "--agent-id ada" in draft.command_line()
    assert draft_from_payload(payload).payloads(0.0) == [payload]


def test_every_field_survives_a_round_trip_through_the_payload(layout: FormLayout) -> None:
    draft = filled(
        env_id="Acrobot-v1", total_timesteps="1e5", seed="7", learning_rate="0.1", anneal_lr="false",
        target_kl="0.01", video_mode="single", grid_limit="4", save_model="false", keep_checkpoints="5",
        checkpoint_every="1000", cpus="2", gpus="1", memory_mb="500", max_seconds="60", priority="-3", run_name="mine",
        tags="a, b", group="g", notes="two\nlines", tensorboard="false", backend="torch",
    )  # fmt: skip
    (payload,) = draft.payloads(0.0)
    parsed = Payload.parse(payload)
    assert config_of(payload)["total_timesteps"] == 100_000
    assert config_of(payload)["algo_params"] == {
        "learning_rate": 0.1, "anneal_lr": False, "target_kl": 0.01, "checkpoint_every": 1000, "backend": "torch",
    }  # fmt: skip
    assert payload["artifacts"]["video"] == {"mode": "single", "grid_limit": 4}
    assert (parsed.resources.gpus.requested, parsed.resources.gpus.mandatory) == (1, True)
    assert (parsed.metadata.tags, parsed.metadata.notes) == (("a", "b"), "two\nlines")
    assert not parsed.artifacts.tensorboard.enabled
    back = draft_from_payload(payload)
    assert back.rest == {}
    assert back.payloads(0.0) == [payload]
    save_preset("mine", replace(draft, seeds="1-3", rest={"artifacts": {"x": 1}}).to_preset())
    assert draft_from_preset(read_presets()["mine"]) == replace(back, seeds="1-3", rest={"artifacts": {"x": 1}})


@given(
    st.dictionaries(
        st.sampled_from(["gamma", "learning_rate", "clip_coef"]), st.floats(0.001, 0.999).map(repr), max_size=3
    ),
    st.integers(0, 2**31 - 1).map(str),
)
def test_a_payload_survives_a_round_trip_through_the_form(texts: dict[str, str], seed: str) -> None:
    made = filled(PPO, **texts, seed=seed).payloads(0.0)
    assert draft_from_payload(made[0]).payloads(0.0) == made


def test_settings_without_a_field_are_submitted_unchanged(layout: FormLayout) -> None:
    (payload,) = PPO.payloads(0.0)
    config_of(payload)["extras"] = {"tensorboard_dir": "tb", "learning_rate": 0.1, "algo_params": {"novel": 3}}
    payload["artifacts"]["persist_logs"] = False
    draft = draft_from_payload(payload)
    assert draft.texts == {"learning_rate": "0.1"}
    (again,) = filled(draft, gamma="0.5").payloads(0.0)
    assert again["artifacts"]["persist_logs"] is False
    assert config_of(again)["algo_params"] == {"novel": 3, "learning_rate": 0.1, "gamma": 0.5}
    assert again["artifacts"]["tensorboard"]["directory"] == "tb"
    assert "extras" not in config_of(again)
    assert draft.command_line().endswith("| mosaic submit -")


def test_an_algorithm_that_the_form_does_not_know_is_refused() -> None:
    with pytest.raises(BadInput, match="mosaic submit"):
        draft_from_payload(
            {"metadata": {"worker": {"id": "cleanrl", "config": {"algo": "cleanrl:ppo"}}}, "artifacts": {}}
        )


def test_the_form_trains_scripts_of_a_cleanrl_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R3.5, R7.1: of a folder with an interpreter, or of an installed package."""
    checkout = str(make_checkout(tmp_path))
    assert form_layout.script_names("cleanrl", checkout) == ("cleanrl:walk",)
    assert form_layout.script_names("bdi", checkout) == ()
    own = Draft("cleanrl", "cleanrl:walk", cleanrl=checkout, cleanrl_python="/v/bin/python")
    layout = own.layout
    assert [field.name for field in layout.core] == ["env_id", "total_timesteps", "seed"]
    assert {"learning_rate", "capture_video", "max_seconds"} <= layout.fields.keys()
    assert not {"grid_limit", "tensorboard", "keep_checkpoints"} & layout.fields.keys(), "nothing without effect"
    draft = filled(own, num_envs="2")
    (payload,) = draft.payloads(0.0)
    config = config_of(payload)
    assert (config["algo"], config["algo_params"]) == ("cleanrl:walk", {"num_envs": 2})
    assert (config["cleanrl"], config["cleanrl_python"]) == (checkout, "/v/bin/python")
    assert program_environment(payload) is not None
    assert draft_from_payload(payload) == draft == Draft.from_json(draft.to_json())
    words = ["--cleanrl", checkout, "--cleanrl-python", "/v/bin/python"]
    assert shlex.split(draft.command_line())[:7] == ["mosaic", "train", "cleanrl:walk", *words]
    preset = draft.to_preset()
    assert draft_from_preset(preset, checkout, "/v/bin/python") == draft
    with pytest.raises(BadInput, match="Choose your CleanRL"):
        draft_from_preset(preset)

    monkeypatch.setattr(form_layout, "find_installed_scripts", lambda: open_script_folder(checkout))
    form_layout.forget_scripts()
    installed = draft_from_preset(preset)
    assert "--cleanrl" not in installed.command_line()
    form_layout.forget_scripts()


def test_several_seeds_make_a_group(layout: FormLayout) -> None:
    made = replace(filled(run_name="mine"), seeds="1-2,7").payloads(0.0)
    assert [config_of(payload)["seed"] for payload in made] == [1, 2, 7]
    assert len({payload["metadata"]["group"] for payload in made}) == 1
    assert made[2]["run_name"] == "mine-7"
    assert replace(PPO, seeds="x").problems() == {"seed": "Expected seeds such as 1-5 or 1,3,7."}
    with pytest.raises(BadInput, match="seed"):
        replace(PPO, seeds="5-1").payloads(0.0)


def test_problems_are_listed_by_field(layout: FormLayout) -> None:
    draft = filled(learning_rate="3", gamma="x", total_timesteps="10")
    assert list(draft.problems()) == ["learning_rate", "gamma"]
    with pytest.raises(BadInput, match="learning_rate"):
        draft.payloads(0.0)


def test_the_command_line_is_equivalent_to_the_form(layout: FormLayout) -> None:
    draft = filled(
        learning_rate="0.1", anneal_lr="false", tags="a,b", notes="it's mine", tensorboard="false",
        target_kl="0.5", video_mode="off",
    )  # fmt: skip
    assert shlex.split(draft.command_line()) == [
        "mosaic", "train", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "500000", "--seed", "1",
        "--learning-rate", "0.1", "--no-anneal-lr", "--target-kl", "0.5", "--no-tensorboard", "--video-mode", "off",
        "--tag", "a", "--tag", "b", "--note", "it's mine",
    ]  # fmt: skip
    assert "--seeds 1-3,5" in replace(PPO, seeds="1-3, 5").command_line()


def refusal(*problems: tuple[str, str]) -> ConfigRefused:
    return ConfigRefused("LOG705 The config was refused.", [FieldProblem(*problem) for problem in problems])


def marked(error: Exception, draft: Draft) -> dict[str, str]:
    refusals = Refusals()
    refusals.take(error, draft.fields)
    return refusals.messages(draft)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("metadata.worker.config.extras.algo_params.gamma", "gamma"),
        ("env_id", "env_id"),
        ("resources.gpus.requested", "gpus"),
        ("schedule.max_duration_seconds", "max_seconds"),
    ],
)
def test_a_refusal_is_shown_at_the_field_it_names(layout: FormLayout, path: str, name: str) -> None:
    assert marked(refusal((path, "too large")), PPO) == {name: "Too large."}


def test_a_refusal_without_a_field_of_the_form_is_shown_at_none(layout: FormLayout) -> None:
    for error in (
        refusal(("", "odd")),
        refusal(("metadata.stray", "unknown key")),
        NoDaemon("gamma: no answer."),
        OSError(),
    ):
        assert marked(error, PPO) == {}


def test_every_field_that_a_refusal_names_is_marked(layout: FormLayout) -> None:
    error = refusal(("gamma", "too large"), ("metadata.stray", "unknown key"), ("env_id", "missing"), ("seed", "odd"))
    found = marked(error, filled(seed="3"))
    assert found == {"seed": "Odd.", "gamma": "Too large.", "env_id": "Missing."}
    assert next(iter(found)) == "seed", "which gets the focus"


def test_of_settings_that_do_not_fit_together_the_changed_one_is_marked() -> None:
    names = ("num_envs", "num_steps", "num_minibatches")
    error = refusal(*((name, "cannot be cut.") for name in names), ("gamma", "odd"))
    assert marked(error, PPO) == {**dict.fromkeys(names, "Cannot be cut."), "gamma": "Odd."}
    changed = filled(num_minibatches="7")
    assert marked(error, changed) == {"num_minibatches": "Cannot be cut.", "gamma": "Odd."}
    refusals = Refusals()
    assert refusals.take(error, changed.fields), "it names fields of the form alone"
    refusals.drop("num_envs")
    assert refusals.messages(changed) == {"gamma": "Odd."}, "one of them was changed: they may fit now"
    assert not refusals.take(refusal(("gamma", "odd"), ("metadata.stray", "unknown key")), changed.fields)


def test_a_draft_survives_saving_and_loading(layout: FormLayout) -> None:
    draft = replace(filled(gamma="0.5"), seeds="1-3", rest={"a": 1})
    assert Draft.from_json(draft.to_json()) == draft
    assert Draft.from_json({"worker": "x"}) is None
    assert Draft.from_json(None) is None
    assert draft.summary() == "ppo · CartPole-v1 · seeds 1-3"


def test_labels_are_readable_words(layout: FormLayout) -> None:
    labels = {name: field_label(field) for name, field in layout.fields.items()}
    assert labels["learning_rate"] == "Learning rate"
    assert labels["gae_lambda"] == "GAE lambda"
    assert "_" not in "".join(labels.values())
    assert (labels["total_timesteps"], field_unit(layout.fields["total_timesteps"])) == ("Total timesteps", "")
    assert "Default: 0.00025" in field_tooltip(layout.fields["learning_rate"])


def test_environments_that_are_not_installed_come_last_with_their_extra() -> None:
    listings = [
        EnvironmentListing(id="ALE/Pong-v5", family="atari", is_installed=False, extra="atari"),
        EnvironmentListing(id="CartPole-v1", family="classic_control", is_installed=True, extra="train"),
        EnvironmentListing(id="tabular/x", family="functional", is_installed=False),
    ]
    found = sort_environments(listings)
    assert [one.id for one in found] == ["CartPole-v1", "ALE/Pong-v5", "tabular/x"]
    assert families(found) == [("classic_control", True), ("atari", False), ("functional", False)]
    assert environment_problem("ALE/Pong-v5", found) == "Is not installed: pip install 'mosaic-rl[atari]'"
    assert environment_problem("tabular/x", found) == "Is not in this version."
    assert environment_problem("Own-v0", found) == environment_problem("CartPole-v1", found) == ""


def test_a_text_that_is_the_default_of_another_algorithm_does_not_count_as_changed() -> None:
    draft = Draft("cleanrl", "ppo_continuous_action").with_text("env_id", "CartPole-v1")
    assert draft.changed() == ["env_id"]
    assert replace(draft, algorithm="ppo").changed() == []
    assert replace(draft, seeds="1-3", texts={"buffer_size": "7"}).changed() == ["seed"]
