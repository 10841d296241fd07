"""The sections of a payload, and the extras that are translated into them (R3.2, R3.3)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.worker_runs import events, small, train_here

from cleanrl_worker.shell.worker_config import parse_request
from mosaic.base.worker_registry import get_worker, name_worker
from mosaic.contracts.errors import ConfigRefused
from mosaic.contracts.extras import REFUSED_KEYS, RESERVED_EXTRAS, flatten_sections, translate_extras
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.options import RunKind
from mosaic.contracts.payload import Payload, WandbArtifacts
from mosaic.features.tracking.sidecar.wandb_environment import wandb_environment
from mosaic.trainer.records import summary_fields
from mosaic.worker.evaluation_batches import batch_size
from mosaic.worker.worker_run import tensorboard_folder

EXAMPLES: dict[str, Any] = {
    "mode": "policy_eval",
    "policy_path": "/runs/x",
    "eval_batch_size": 7,
    "eval_episodes": 7,
    "eval_repeat": True,
    "eval_stochastic": True,
    "record_steps": True,
    "seed_override": 9,
    "tensorboard_dir": "curves",
    "track_wandb": True,
    "wandb_project_name": "p",
    "wandb_entity": "e",
    "wandb_run_name": "r",
    "wandb_api_key": "secret:wandb_api_key",
    "wandb_email": "me@example.org",
    "wandb_use_vpn_proxy": True,
    "wandb_http_proxy": "proxy:1",
    "wandb_https_proxy": "proxy:2",
    "capture_video": True,
    "eval_capture_video": True,
    "record_episodes": True,
    "video_mode": "single",
    "fastlane_video_mode": "single",
    "grid_limit": 3,
    "fastlane_grid_limit": 3,
    "fastlane_only": True,
    "save_model": True,
    "upload_model": True,
    "hf_entity": "me",
    "algo_params": {"gamma": 0.5},
    "cleanrl": "/checkout",
    "cleanrl_python": "/python",
}


def payload(extras: Any = None, worker: str = "cleanrl", **sections: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 3}
    if extras is not None:
        config["extras"] = extras
    return {"metadata": {"worker": {"id": worker, "config": config}}, "artifacts": {}, **sections}


def value_at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data[key]
    return data


def refusal(data: Any) -> str:
    with pytest.raises(ConfigRefused) as refused:
        Payload.parse(data)
    return str(refused.value)


def test_there_is_an_example_of_every_reserved_extra() -> None:
    assert set(EXAMPLES) == set(RESERVED_EXTRAS)


@pytest.mark.parametrize("name", RESERVED_EXTRAS)
def test_every_reserved_extra_becomes_a_field_of_a_section(name: str) -> None:
    extras = {name: EXAMPLES[name]}
    if name in ("mode", "policy_path"):
        extras = {"mode": EXAMPLES["mode"], "policy_path": EXAMPLES["policy_path"]}
    parsed = Payload.parse(payload(extras))
    data = parsed.to_json()
    assert value_at(data, RESERVED_EXTRAS[name]) == EXAMPLES[name]
    assert "extras" not in data["metadata"]["worker"]["config"]
    assert Payload.parse(data) == parsed


def test_what_was_not_given_stays_unset() -> None:
    data = payload({"track_wandb": None, "video_mode": None})
    assert Payload.parse(data).to_json() == payload()


def test_other_extras_become_settings_of_the_algorithm() -> None:
    parsed = Payload.parse(payload({"gamma": 0.9, "target_kl": None, "algo_params": {"num_envs": 2}}))
    assert parsed.metadata.worker.config["algo_params"] == {"gamma": 0.9, "target_kl": None, "num_envs": 2}


@pytest.mark.parametrize(
    ("extras", "sections", "words"),
    [
        (
            {"track_wandb": True},
            {"artifacts": {"wandb": {"enabled": False}}},
            ("metadata.worker.config.extras.track_wandb is True", "artifacts.wandb.enabled is False"),
        ),
        (
            {"mode": "policy_eval"},
            {"kind": "train"},
            ("metadata.worker.config.extras.mode is 'policy_eval'", "kind is 'train'"),
        ),
        (
            {"eval_batch_size": 3, "eval_episodes": 4},
            {},
            ("extras.eval_episodes is 4", "extras.eval_batch_size is 3"),
        ),
        (
            {"gamma": 0.9, "algo_params": {"gamma": 0.8}},
            {},
            ("extras.gamma is 0.9", "extras.algo_params.gamma is 0.8"),
        ),
    ],
)
def test_an_extra_and_a_section_that_disagree_are_refused_with_both_paths(
    extras: dict[str, Any], sections: dict[str, Any], words: tuple[str, str]
) -> None:
    message = refusal(payload(extras, **sections))
    assert message.startswith("LOG705 ")
    assert all(word in message for word in words), message


@pytest.mark.parametrize("key", REFUSED_KEYS)
def test_a_key_of_other_trainers_that_nothing_obeys_is_refused_with_the_reason(key: str) -> None:
    assert f"metadata.worker.config.extras.{key}: {REFUSED_KEYS[key]}" in refusal(payload({key: 1}))
    data = payload()
    data["metadata"]["worker"][key] = 1
    assert f"metadata.worker.{key}: {REFUSED_KEYS[key]}" in refusal(data)
    data = payload()
    data["metadata"]["worker"]["config"][key] = 1
    assert f"metadata.worker.config.{key}: {REFUSED_KEYS[key]}" in refusal(data)


def without_id(**worker: Any) -> dict[str, Any]:
    data = payload()
    data["metadata"]["worker"] = {"config": data["metadata"]["worker"]["config"], **worker}
    return data


def test_a_payload_without_the_id_of_its_worker_is_that_of_the_worker_which_reads_it() -> None:
    """R3.1: the worker's command line."""
    assert parse_request(without_id()).payload == parse_request(payload()).payload
    assert name_worker(without_id()) == payload(), "the first worker is the default"
    assert name_worker(without_id(), "bdi")["metadata"]["worker"]["id"] == "bdi"
    assert name_worker(without_id(module="bdi_worker.cli"))["metadata"]["worker"]["id"] == "bdi"
    assert name_worker(without_id(module="cleanrl_worker"), "bdi")["metadata"]["worker"]["id"] == "cleanrl"
    assert parse_request(without_id(module="cleanrl_worker.cli", id="cleanrl_worker")).config.algo == "ppo"


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        ({"module": "os.path"}, "metadata.worker.module: no worker has this module. Known: cleanrl_worker.cli"),
        ({"module": ["cleanrl_worker"]}, "metadata.worker.module: no worker has this module."),
        ({"module": "bdi_worker", "id": "cleanrl"}, "metadata.worker.module: names the worker 'bdi', but id is"),
        ({"module": "bdi_worker"}, "metadata.worker.id: 'bdi' is another worker; this one is 'cleanrl'."),
    ],
)
def test_a_module_that_names_no_or_another_worker_is_refused(worker: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        parse_request(without_id(**worker))
    assert words in str(refused.value)


def test_an_extra_and_a_section_that_agree_are_accepted() -> None:
    data = payload({"track_wandb": True, "wandb_project_name": "p"}, artifacts={"wandb": {"enabled": True}})
    assert Payload.parse(data).to_json()["artifacts"] == {"wandb": {"enabled": True, "project": "p"}}


def test_a_disagreement_about_a_secret_does_not_show_it() -> None:
    message = refusal(payload({"wandb_api_key": "canary1"}, artifacts={"wandb": {"api_key": "canary2"}}))
    assert "extras.wandb_api_key" in message
    assert "canary" not in message


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        ({"grid_limit": 0}, "metadata.worker.config.extras.grid_limit: "),
        ({"mode": "watch"}, "metadata.worker.config.extras.mode: "),
        ({"tensorboard_dir": "../.."}, "metadata.worker.config.extras.tensorboard_dir: expected a path inside"),
        ({"mode": "policy_eval"}, "metadata.worker.config.extras.policy_path: missing"),
        ({"policy_path": "/x"}, "set metadata.worker.config.extras.mode to 'policy_eval'"),
        ([], "metadata.worker.config.extras: expected a JSON object"),
    ],
)
def test_a_refusal_names_the_path_that_was_written(extras: Any, words: str) -> None:
    assert words in refusal(payload(extras))


def test_an_evaluation_requires_a_policy_and_a_training_takes_none() -> None:
    assert "evaluation.policy_path: missing" in refusal(payload(kind="policy_eval"))
    assert "set kind to 'policy_eval'" in refusal(payload(evaluation={"policy_path": "/x"}))
    assert Payload.parse(payload(kind="policy_eval", evaluation={"policy_path": "/x"})).kind is RunKind.POLICY_EVAL


def test_the_kind_and_the_worker_of_a_play_session_belong_together() -> None:
    assert "kind: 'play' needs the worker 'play'" in refusal(payload(kind="play"))
    session = {"metadata": {"worker": {"id": "play", "config": {}}}, "artifacts": {}}
    assert "the worker 'play' needs kind 'play'" in refusal(session)
    assert Payload.parse({**session, "kind": "play"}).kind is RunKind.PLAY


def test_artifacts_stay_mandatory_next_to_extras() -> None:
    data = payload({"track_wandb": True})
    del data["artifacts"]
    assert "artifacts: missing" in refusal(data)


def test_the_translation_does_not_modify_its_input() -> None:
    data = payload({"track_wandb": True})
    before = json.dumps(data)
    translate_extras(data)
    assert json.dumps(data) == before


def test_sections_are_flattened_to_the_names_of_extras() -> None:
    # fastlane_only refuses records of steps
    extras = {**EXAMPLES, "record_steps": False, "record_episodes": False, "algo_params": {}}
    flat = flatten_sections(Payload.parse(payload(extras)).to_json())
    names = {"eval_episodes", "fastlane_video_mode", "fastlane_grid_limit"}
    names |= {"algo_params", "cleanrl", "cleanrl_python"}
    assert flat == {name: value for name, value in extras.items() if name not in names}


# --- payloads of the notes and of earlier versions


def test_an_evaluation_with_older_names_is_accepted() -> None:
    extras = {
        "mode": "policy_eval", "policy_path": "/p/ppo.cleanrl_model", "eval_capture_video": False,
        "fastlane_only": False, "video_mode": "grid", "grid_limit": 4, "eval_batch_size": 50, "eval_episodes": 50,
        "eval_repeat": True,
    }  # fmt: skip
    data = payload(extras, worker="cleanrl_worker")
    data["metadata"]["ui"] = {"eval_batch_size": 50, "eval_repeat": True}
    parsed = Payload.parse(data)
    assert parsed.is_evaluation
    assert (parsed.evaluation.episodes, parsed.evaluation.repeat) == (50, True)
    assert parsed.metadata.ui == {"eval_batch_size": 50, "eval_repeat": True}
    assert get_worker("cleanrl_worker").id == "cleanrl"
    assert batch_size(parsed) == 50


def test_a_config_that_an_earlier_version_accepted_is_read_even_where_it_disagrees(tmp_path: Path) -> None:
    """Earlier versions wrote W&B's settings twice, and took whichever was on."""
    old = payload(
        {"track_wandb": True, "wandb_project_name": "theirs", "algo_params": {"gamma": 0.5}},
        artifacts={"tensorboard": {"enabled": True}, "wandb": {"enabled": False, "project": "ours"}},
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps(old))
    parsed = Payload.read(path)
    assert (parsed.artifacts.wandb.enabled, parsed.artifacts.wandb.project) == (True, "ours")
    assert parsed.metadata.worker.config["algo_params"] == {"gamma": 0.5}
    with pytest.raises(ConfigRefused):
        Payload.parse(old)


def test_a_config_that_cannot_be_read_is_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"metadata": 3}')
    with pytest.raises(ValueError, match="artifacts: missing"):
        Payload.read(path)


# --- nothing is accepted and ignored


def test_frames_only_needs_frames() -> None:
    assert "fastlane_only asks for live frames" in refusal(payload({"fastlane_only": True, "video_mode": "off"}))
    assert "no records of episodes" in refusal(payload({"fastlane_only": True, "record_episodes": True}))
    request = parse_request(payload({"fastlane_only": True}))
    assert request.artifacts.video.mode == "grid"


def test_frames_only_writes_no_step_records(tmp_path: Path) -> None:
    folder = train_here(RunFolder(tmp_path / "01RUN"), small(extras={"fastlane_only": True}))
    kinds = {json.loads(line)["kind"] for line in folder.journal.read_text().splitlines()}
    assert not [kind for kind in kinds if "step" in kind]


def test_the_email_reaches_wandb(tmp_path: Path) -> None:
    variables = wandb_environment(WandbArtifacts(email="me@example.org"), tmp_path, {})[0]
    assert variables["WANDB_USER_EMAIL"] == "me@example.org"


def test_worker_and_agent_are_named_in_the_handshake(tmp_path: Path) -> None:
    folder = train_here(RunFolder(tmp_path / "01RUN"), small(worker_id="w-1", agent_id="a-1"))
    (hello,) = events(folder, "hello")
    assert (hello["worker_id"], hello["agent_id"]) == ("w-1", "a-1")
    data = payload()
    data["metadata"]["worker"]["worker_id"] = "w-2"
    assert parse_request(data).names == {"worker_id": "w-2"}


def test_worker_and_agent_are_named_in_the_record() -> None:
    data = payload()
    data["metadata"]["worker"] |= {"worker_id": "w-1"}
    data["metadata"]["worker"]["config"]["agent_id"] = "a-1"
    fields = summary_fields(Payload.parse(data), {"total_timesteps": 64})
    assert (fields["worker_id"], fields["agent_id"], fields["total_timesteps"]) == ("w-1", "a-1", 64)
    assert fields["kind"] is RunKind.TRAIN


def test_the_command_line_s_extras_win_over_sections() -> None:
    data = payload(artifacts={"video": {"mode": "single"}})
    assert parse_request(data, {"extras": {"video_mode": "off"}}).artifacts.video.mode == "off"
    folder = RunFolder("/x")
    assert tensorboard_folder(parse_request(data, {"extras": {"tensorboard_dir": "tb"}}).payload, folder) == (
        folder.path / "tb"
    )
