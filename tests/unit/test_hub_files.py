"""Building what a repository on the Hub holds, and creating a run from what was pulled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from pydantic import ValidationError
from tests.helpers.cli_trainer import call
from tests.helpers.worker_runs import small, train_here

from mosaic.base.journal import read_all
from mosaic.contracts.errors import BadInput, CheckpointDamaged, UnknownName
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import RunRecord
from mosaic.contracts.views import EvaluationSummary
from mosaic.features.hub.core import HashedFile, PolicyDescription, PullResult, PushRequest, PushState
from mosaic.features.hub.core_pull import check_loadable, create_run_folder, describe_cleanrl_repo, pull
from mosaic.features.hub.core_push import HubBundle, build_bundle, explain_hub_error, model_card

SUMMARY: dict[str, Any] = {
    "algo": "ppo", "env_id": "CartPole-v1", "checkpoint_step": 64, "deterministic": True, "episodes": 3,
    "policy_path": "/home/private_user/private", "avg_return": 12.5, "median_return": 12.0, "min_return": 9.0,
    "max_return": 16.5, "std_return": 3.25, "iqm": 12.0, "ci95": [9.5, 15.5], "videos": ["videos/x.mp4"],
    "batches": [{"batch": 1, "episodes": 3, "returns": [9.0, 12.0, 16.5]}],
}  # fmt: skip
EVALUATION = EvaluationSummary.model_validate(SUMMARY)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_here(RunFolder(tmp_path_factory.mktemp("it's here") / "01TRAINED"), small())


def create_bundle(folder: RunFolder, evaluation: RunFolder | None = None) -> HubBundle:
    return build_bundle(PushRequest("me/cart", folder, folder.checkpoint(64), evaluation))


def create_evaluation(path: Path, **changes: Any) -> RunFolder:
    folder = RunFolder(path)
    folder.eval_videos.mkdir(parents=True)
    (folder.eval_videos / "rl-video-episode-0.mp4").write_bytes(b"video")
    folder.eval_summary.write_text(json.dumps({**SUMMARY, **changes}))
    return folder


def test_a_bundle_holds_checkpoint_model_settings_evaluation_video_and_card(trained: RunFolder, tmp_path: Path) -> None:
    bundle = create_bundle(trained, evaluation=create_evaluation(tmp_path / "eval"))
    assert bundle.files.keys() == {
        "README.md", "mosaic.json", "config.json", "evaluation.json", "replay.mp4", "ppo.cleanrl_model",
        "checkpoints/64/manifest.json", "checkpoints/64/weights.safetensors", "checkpoints/64/state.npz",
    }  # fmt: skip
    assert bundle.omissions == ()
    description = json.loads(content(bundle, "mosaic.json"))
    assert description["files"].keys() == bundle.files.keys() - {"README.md", "mosaic.json"}
    Payload.parse(json.loads(content(bundle, "config.json")))


def content(bundle: HubBundle, name: str) -> str:
    return read_bytes(bundle, name).decode()


def read_bytes(bundle: HubBundle, name: str) -> bytes:
    with bundle.files[name].as_file() as file:
        return file.read()


def test_paths_of_this_machine_are_not_pushed(trained: RunFolder, tmp_path: Path) -> None:
    bundle = create_bundle(trained, evaluation=create_evaluation(tmp_path / "eval"))
    for name in bundle.files:
        data = read_bytes(bundle, name)
        assert b"private_user" not in data, name
        assert str(tmp_path).encode() not in data, name


def test_without_an_evaluation_the_card_gives_the_training_return(trained: RunFolder) -> None:
    bundle = create_bundle(trained)
    assert "mosaic eval" in " ".join(bundle.omissions)
    assert "of the last training episodes: " in content(bundle, "README.md")
    assert "Not evaluated afterwards." in content(bundle, "README.md")
    assert "evaluation.json" not in bundle.files


def test_an_evaluation_of_another_checkpoint_is_not_included(trained: RunFolder, tmp_path: Path) -> None:
    bundle = create_bundle(trained, evaluation=create_evaluation(tmp_path / "eval", checkpoint_step=32))
    assert "evaluation.json" not in bundle.files


def test_a_damaged_checkpoint_is_not_pushed(trained: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(tmp_path / "copy")
    copy.checkpoint(64).mkdir(parents=True)
    for path in trained.checkpoint(64).iterdir():
        (copy.checkpoint(64) / path.name).write_bytes(path.read_bytes())
    weights = copy.checkpoint(64) / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(CheckpointDamaged, match=r"weights\.safetensors"):
        create_bundle(copy)
    (copy.checkpoint(64) / "manifest.json").write_text("{")
    with pytest.raises(CheckpointDamaged, match="cannot be read"):
        create_bundle(copy)


def create_policy(**changes: Any) -> PolicyDescription:
    settings = {"learning_rate": 0.1, "note": "a|b\nc"}
    plain: dict[str, Any] = {"worker": "cleanrl", "algo": "ppo", "env_id": "CartPole-v1", "files": {}}
    return PolicyDescription(**{**plain, "seed": 3, "step": 64, "settings": settings, **changes})


def test_the_hub_reads_the_cards_metadata_and_metrics() -> None:
    data = ModelCard(model_card(create_policy(), EVALUATION, "me/cart", has_video=True)).data.to_dict()  # type: ignore[no-untyped-call]
    assert "CartPole-v1" in data["tags"]
    assert "reinforcement-learning" in data["tags"]
    assert data["library_name"] == "mosaic-rl"
    [entry] = data["model-index"]
    [result] = entry["results"]
    assert entry["name"] == "ppo"
    assert result["dataset"]["name"] == "CartPole-v1"
    assert result["metrics"][0] == {
        "type": "mean_reward", "value": "12.50 +/- 3.25", "name": "mean_reward", "verified": False,
    }  # fmt: skip


def test_the_card_shows_the_interval_the_settings_and_how_to_load_it() -> None:
    text = model_card(create_policy(), EVALUATION, "me/cart", has_video=False)
    assert "12.50 (Student's 95 % confidence interval: 9.50 to 15.50)" in text
    assert "mosaic pull me/cart" in text
    assert "| `learning_rate` | `0.1` |" in text
    assert "replay.mp4" not in text


def test_a_card_without_any_score_has_no_results() -> None:
    text = model_card(create_policy(score=None), None, "me/cart", has_video=False)
    assert "model-index" not in text
    assert "Results" not in text


def test_names_are_quoted_in_the_cards_metadata() -> None:
    text = model_card(create_policy(env_id="a:b/c-v1"), EVALUATION, "me/cart", has_video=False)
    data = ModelCard(text).data.to_dict()  # type: ignore[no-untyped-call]
    assert data["model-index"][0]["results"][0]["dataset"]["name"] == "a:b/c-v1"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a\\b", "", "a//b", "./a", "a/", "a\nb", "a/./b"])
def test_a_path_that_leaves_its_folder_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="inside the repository" if name else "at least 1 character"):
        create_policy(files={name: HashedFile(size_bytes=1, sha256="0" * 64)})


def test_a_model_that_is_not_a_model_file_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"ends in \.cleanrl_model"):
        create_policy(model="checkpoints/64/weights.safetensors")


def test_a_pulled_policy_becomes_a_run_that_names_no_path_and_no_program(trained: RunFolder, tmp_path: Path) -> None:
    source = tmp_path / "source"
    bundle = create_bundle(trained)
    for name in bundle.files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(read_bytes(bundle, name))
    (source / "stray.py").write_text("raise SystemExit")
    pulled_folder = RunFolder(tmp_path / "01PULLED")
    pulled = PullResult("me/cart", "http://hub/me/cart", "abc" * 9, bundle.description)
    create_run_folder(source, pulled_folder, pulled_folder.run_id, pulled)
    assert pulled_folder.last_checkpoint.resolve() == pulled_folder.checkpoint(64)
    assert [path.name for path in pulled_folder.models.glob("*/*")] == ["ppo.cleanrl_model"]
    assert not list(pulled_folder.path.rglob("*.py"))
    record = RunRecord.model_validate_json(pulled_folder.record.read_text())
    assert (record.run_id, record.algo, record.env_id, record.tags) == ("01PULLED", "ppo", "CartPole-v1", ("hub",))
    payload = json.loads(pulled_folder.config.read_text())
    Payload.parse(payload)
    assert payload["metadata"]["worker"]["config"].keys() == {
        "algo",
        "env_id",
        "seed",
        "total_timesteps",
        "algo_params",
    }
    assert [event["kind"] for event in read_all(pulled_folder.journal)] == ["progress", "checkpoint"]


def test_an_algorithm_that_no_installed_worker_has_is_refused() -> None:
    with pytest.raises(UnknownName, match="pppo"):
        check_loadable(create_policy(algo="pppo"))
    with pytest.raises(UnknownName, match="worker"):
        check_loadable(create_policy(worker="elsewhere"))


CLEANRL_CARD = """---
tags: [CartPole-v1]
model-index:
- name: PPO
  results:
  - task: {type: reinforcement-learning, name: reinforcement-learning}
    dataset: {name: CartPole-v1, type: CartPole-v1}
    metrics: [{type: mean_reward, value: 500.00 +/- 0.00, name: mean_reward, verified: false}]
---
# Hyperparameters
```python
{'anneal_lr': True, 'seed': 7, 'learning_rate': 0.00025, 'track': True, 'wandb_entity': 'x', 'total_timesteps': 500}
```
"""


def test_the_card_of_cleanrls_own_upload_gives_environment_seed_and_settings() -> None:
    policy = describe_cleanrl_repo("me/cart", ["README.md", "ppo.cleanrl_model", "videos/x/y.mp4"], CLEANRL_CARD)
    assert (policy.algo, policy.env_id, policy.seed, policy.total_timesteps) == ("ppo", "CartPole-v1", 7, 500)
    assert policy.settings == {"anneal_lr": True, "learning_rate": 0.00025}
    assert policy.model == "ppo.cleanrl_model"


@pytest.mark.parametrize(
    ("names", "card", "why"),
    [
        (["README.md"], CLEANRL_CARD, "neither"),
        (["a.cleanrl_model", "b.cleanrl_model"], CLEANRL_CARD, "2 files"),
        (["ppo.cleanrl_model"], "", "names no environment"),
        (["ppo.cleanrl_model"], "```python\n{'env_id': '../../x'}\n```", "is invalid"),
        (["ppo.cleanrl_model"], "```python\n{'env_id': open('/etc/passwd')}\n```", "names no environment"),
    ],
)
def test_a_repository_that_describes_no_policy_is_refused(names: list[str], card: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        describe_cleanrl_repo("me/cart", names, card)


class StatusError(Exception):
    def __init__(self, status: int, server_message: str | None = None) -> None:
        self.response = type("Response", (), {"status_code": status})()
        self.server_message = server_message


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, "HF_TOKEN"),
        (403, "may not write to me/cart"),
        (404, "no model me/cart"),
        (409, "another client"),
        (429, "too many requests"),
        (503, "internal problem"),
        (418, "refused me/cart"),
    ],
)
def test_every_error_status_of_the_hub_becomes_a_sentence(status: int, expected: str) -> None:
    problem = explain_hub_error(RuntimeError("wrapped"), "me/cart", "http://hub", 60.0, is_push=True)
    assert problem is not None
    try:
        raise RuntimeError("Error while uploading") from StatusError(status, "Its own words.")
    except RuntimeError as error:
        problem = explain_hub_error(error, "me/cart", "http://hub", 60.0, is_push=True)
    assert expected in str(problem)
    assert f"({status})" in str(problem)


@pytest.mark.parametrize("name", ["not a name", "a/b/c", "", "../x", "-x/y", "me/"])
def test_an_invalid_repository_name_is_refused_without_a_request(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="OWNER/NAME"):
        pull(name, tmp_path)


def test_a_folder_that_is_not_empty_is_not_pulled_into(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    result = call(None, "pull", "me/cart", "--out", str(tmp_path))
    assert result.code == 2
    assert "not empty" in result.err


def test_a_bug_is_not_explained_away() -> None:
    assert explain_hub_error(AttributeError("x"), "me/cart", "http://hub", 60.0, is_push=True) is None


def test_the_push_state_records_where_a_policy_was_pushed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert PushState.parse(None) is None
    state = PushState(state="pushed", repo="me/cart", url="http://hub/me/cart", commit="abc", step=64)
    state.write(folder)
    assert PushState.parse(json.loads((folder.hub / "push.json").read_text())) == state
    assert "problem" not in state.to_json()
