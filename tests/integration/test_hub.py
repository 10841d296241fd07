"""Pushing and pulling with the real huggingface_hub, against a fake Hub on loopback."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import wait_for
from tests.helpers.hub_server import TOKEN, Hub, running_hub
from tests.helpers.worker_runs import small, train_here

from mosaic.base.journal import read_all
from mosaic.contracts.errors import BadInput, MissingExtra, MosaicError
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.payload import Payload
from mosaic.features.hub.core import PushRequest, PushResult, PushState, requested_repo
from mosaic.features.hub.core_pull import pull
from mosaic.features.hub.core_push import OnProgress, push_after_training
from mosaic.features.hub.core_push import push as push_policy

SMALL = ("--total-timesteps", "256", "--num-envs", "2", "--num-steps", "32", "--env-id", "CartPole-v1")
CLEANRL_CARD = """---
model-index:
- name: PPO
  results:
  - task: {type: reinforcement-learning, name: reinforcement-learning}
    dataset: {name: CartPole-v1, type: CartPole-v1}
    metrics: [{type: mean_reward, value: 24.00 +/- 0.00, name: mean_reward, verified: false}]
---
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train_here(RunFolder(tmp_path_factory.mktemp("it's a run") / "01TRAINED"), small())


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with running_hub() as fake_hub:
        for name, value in {**fake_hub.environment, "HF_HOME": str(tmp_path / "hf")}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # was read at the import
        yield fake_hub


def push(
    folder: RunFolder,
    repo: str = "tester/cart",
    on_progress: OnProgress = lambda *_: None,
    timeout_s: float = 30,
    is_private: bool = False,
) -> PushResult:
    request = PushRequest(repo, folder, folder.checkpoint(64), is_private=is_private)
    return push_policy(request, on_progress, timeout_s)


def test_a_push_creates_a_repository_and_the_next_one_commits_only_changes(hub: Hub, trained: RunFolder) -> None:
    seen: list[tuple[int, int]] = []
    done = push(trained, is_private=True, on_progress=lambda *progress: seen.append(progress))
    repo = hub.repos["tester/cart"]
    assert repo.is_private
    assert done.url == f"{hub.url}/tester/cart"
    assert done.commit == repo.head
    assert {"README.md", "mosaic.json", "ppo.cleanrl_model", "checkpoints/64/weights.safetensors"} <= repo.files.keys()
    assert repo.files["checkpoints/64/state.npz"] == (trained.checkpoint(64) / "state.npz").read_bytes()
    assert seen[-1] == (done.size_bytes, done.size_bytes)
    assert len(seen) > 3
    assert seen == sorted(seen)
    assert TOKEN.encode() not in b"".join(repo.files.values())
    # Files of an earlier push are removed; other files stay; what the Hub has is not uploaded again.
    repo.add({**repo.files, "checkpoints/32/state.npz": b"old", "notes.txt": b"mine"}, "by hand")
    sent = [request for request in hub.requests if request.startswith("PUT")]
    push(trained)
    assert "checkpoints/32/state.npz" not in repo.files
    assert repo.files["notes.txt"] == b"mine"
    assert [request for request in hub.requests if request.startswith("PUT")] == sent


@pytest.mark.parametrize(
    ("fault", "repo", "timeout_s", "expected"),
    [
        ({}, "elsewhere/cart", 30, "may not write to elsewhere/cart (403)"),
        ({"/api/repos/create": 401}, "tester/cart", 30, "does not accept the token"),
        ({"/api/models/tester/cart/commit": 409}, "tester/cart", 30, "another client at the same time (409)"),
        ({"/api/repos/create": "hang"}, "tester/cart", 1.5, "did not answer within 2 seconds"),
        ({"/api/repos/create": "drop"}, "tester/cart", 30, "cannot be reached"),
    ],
)
def test_an_error_of_the_hub_is_reported_in_one_sentence(
    hub: Hub, trained: RunFolder, fault: dict[str, int | str], repo: str, timeout_s: float, expected: str
) -> None:
    hub.faults = fault
    with pytest.raises(MosaicError) as raised:
        push(trained, repo, timeout_s=timeout_s)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)
    assert TOKEN not in str(raised.value)


def test_a_hub_that_cannot_be_reached_is_named(trained: RunFolder, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", nowhere)
        with pytest.raises(MosaicError, match=f"{nowhere} cannot be reached"):
            push(trained)


@pytest.mark.parametrize("path", ["/api/models/tester/cart", "/tester/cart/resolve"])
def test_a_download_that_is_not_answered_ends_in_time(hub: Hub, trained: RunFolder, tmp_path: Path, path: str) -> None:
    push(trained)
    hub.faults = {path: "hang"}
    with pytest.raises(MosaicError, match="did not answer within 2 seconds"):
        pull("tester/cart", tmp_path, timeout_s=1.5)


def test_without_the_extra_the_error_names_what_to_install(trained: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"mosaic-rl\[hub\]"):
        push(trained)


PULL_LIMIT = "The policy of tester/cart has 0.0 GB, more than 1e-06 GB, and is not downloaded."


def test_a_policy_with_more_than_the_limit_is_not_downloaded(hub: Hub, trained: RunFolder, tmp_path: Path) -> None:
    """Its weights included; the size is known before."""
    push(trained)
    hub.requests.clear()
    with pytest.raises(BadInput, match=f"{PULL_LIMIT} If you want it all: --max-gb 1"):
        pull("tester/cart", tmp_path / "pulled", max_gb=1e-6)
    assert not [request for request in hub.requests if request.endswith((".safetensors", ".npz", ".cleanrl_model"))]
    assert pull("tester/cart", tmp_path / "pulled", max_gb=0.1).policy.algo == "ppo"


def test_a_repository_that_does_not_match_its_description_is_refused(
    hub: Hub, trained: RunFolder, tmp_path: Path
) -> None:
    push(trained)
    good = hub.repos["tester/cart"].files
    described = json.loads(good["mosaic.json"])
    changed = {**good, "checkpoints/64/weights.safetensors": b"other"}
    described["files"]["../../escaped"] = described["files"].pop("config.json")
    escaping = {**good, "mosaic.json": json.dumps(described).encode()}
    lacking = {name: content for name, content in good.items() if name != "checkpoints/64/state.npz"}
    for number, (files, expected) in enumerate(
        [(changed, "does not match mosaic.json"), (escaping, "is invalid"), (lacking, "lacks checkpoints/64/state")]
    ):
        hub.put(f"tester/bad{number}", files)
        into = tmp_path / str(number) / "into"
        into.mkdir(parents=True)
        with pytest.raises(BadInput, match=expected):
            pull(f"tester/bad{number}", into)
    with pytest.raises(BadInput, match=r"\(404\)"):
        pull("tester/nothing", tmp_path)
    assert not (tmp_path / "escaped").exists()


def test_a_model_is_uploaded_after_training_where_cleanrl_would_put_it(hub: Hub, trained: RunFolder) -> None:
    """R3.11: models, evaluation after training, upload."""
    events: list[tuple[str, dict[str, object]]] = []

    def emit_event(kind: str, /, **fields: object) -> None:
        events.append((kind, fields))

    repo = requested_repo(create_payload(upload_model=True))
    assert repo == "CartPole-v1-ppo-seed3"
    assert requested_repo(create_payload(upload_model=True, hf_entity="me")) == f"me/{repo}"
    assert requested_repo(create_payload()) is None
    assert requested_repo(create_payload(upload_model=True, mode="policy_eval", policy_path="/x")) is None
    push_after_training(trained, repo, "stopped", emit_event)
    assert events == []
    push_after_training(trained, repo, "succeeded", emit_event)
    assert hub.repos.keys() == {"tester/CartPole-v1-ppo-seed3"}
    assert [kind for kind, _ in events] == ["hub_pushed"]
    hub.faults = {"/api/repos/create": 503}
    push_after_training(trained, repo, "succeeded", emit_event)
    assert events[-1][0] == "warning"
    assert "mosaic push 01TRAINED --repo OWNER/CartPole-v1-ppo-seed3" in str(events[-1][1]["text"])
    state = PushState.parse(json.loads((trained.hub / "push.json").read_text()))
    assert state is not None
    assert state.state == "failed"


def create_payload(**extras: object) -> Payload:
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 3, "extras": extras}
    return Payload.parse({"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}})


def test_a_pulled_policy_plays_like_the_pushed_one(workspace: Workspace, hub: Hub, tmp_path: Path) -> None:
    """The complete path, on the command line."""
    settings = (*SMALL, "--checkpoint-every", "64", "--upload-model")
    run = mosaic(workspace, "train", "ppo", *settings, "--json").json["run_id"]
    played = mosaic(workspace, "eval", run, "--episodes", "3", "--seed-override", "7", "--video", "--json").json
    pushed = mosaic(workspace, "push", "last", "--repo", "tester/cart", "--json")
    assert pushed.code == 0, pushed.err
    assert {"evaluation.json", "replay.mp4"} <= set(pushed.json["files"])
    assert f"{played['avg_return']:.2f} +/- " in hub.repos["tester/cart"].files["README.md"].decode()
    assert f"step 256 is at {hub.url}/tester/cart" in mosaic(workspace, "show", run).out

    def play(policy: str) -> list[float]:
        result = mosaic(workspace, "eval", policy, "--episodes", "3", "--seed-override", "7", "--json")
        assert result.code == 0, result.err
        return list(result.json["returns"])

    pulled = mosaic(workspace, "pull", "tester/cart", "--json")
    assert pulled.code == 0, pulled.err
    assert pulled.json["run_id"] != run
    assert pulled.json["checkpoint_step"] == 256
    assert play(pulled.json["run_id"]) == played["returns"]
    out = tmp_path / "it's out"
    pulled_out = mosaic(workspace, "pull", "tester/cart", "--revision", pushed.json["commit"], "--out", str(out))
    assert pulled_out.code == 0, pulled_out.err
    assert (out / "checkpoints" / "last" / "manifest.json").is_file()

    # After the run, the sidecar has pushed it where CleanRL would.
    journal = workspace.run(run).sidecar
    wait_for(lambda: journal.exists() and read_all(journal), "the upload")
    [event] = read_all(journal)
    assert (event["kind"], event["repo"], event["step"]) == ("hub_pushed", "tester/CartPole-v1-ppo-seed1", 256)

    # An earlier checkpoint gets its own model file.
    last = hub.repos["tester/cart"].files["ppo.cleanrl_model"]
    assert mosaic(workspace, "push", run, "--repo", "tester/earlier", "--checkpoint", "192").code == 0
    assert hub.repos["tester/earlier"].files["ppo.cleanrl_model"] != last

    # Repositories of CleanRL's own scripts can be pulled, too.
    hub.put("tester/theirs", {"README.md": CLEANRL_CARD.encode(), "ppo.cleanrl_model": last, "ppo.py": b"raise"})
    theirs = mosaic(workspace, "pull", "tester/theirs", "--json")
    assert theirs.code == 0, theirs.err
    assert not list(Path(theirs.json["run_dir"]).rglob("*.py"))
    assert play(theirs.json["run_id"]) == played["returns"]
    refused = mosaic(workspace, "push", theirs.json["run_id"], "--repo", "tester/again")
    assert (refused.code, "no checkpoint to push" in refused.err) == (2, True)
    assert not list(workspace.trainer.glob(".pulling-*"))
