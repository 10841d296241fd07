"""The sidecar's parts one by one: what is asked for, whether the run is over, trackers that fail, W&B's words."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.run_folders import a_folder

from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import Payload
from mosaic.contracts.processes import own_identity
from mosaic.journal import Journal
from mosaic.sidecar import recorder, run_monitor, wandb_connection
from mosaic.sidecar.recorder import Recorder
from mosaic.sidecar.run_monitor import RunMonitor
from mosaic.sidecar.sidecar_spec import build_sidecar_spec
from mosaic.sidecar.tracker_feed import TrackerFeed
from mosaic.sidecar.tracking_request import TrackedRunInfo, is_user_program, parse_tracking_request
from mosaic.sidecar.wandb_upload import client_environment

NOBODY = {"pid": 2**22 + 1, "start": "1", "boot_id": own_identity()["boot_id"]}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "it's a workspace" / "trainer" / "runs" / "01K")
    made.path.mkdir(parents=True)
    return made


def payload(extras: dict[str, Any] | None = None, worker: str = "cleanrl", **more: Any) -> Payload:
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 3, "extras": extras or {}}
    artifacts = more.pop("artifacts", {})
    return Payload.parse({"metadata": {"worker": {"id": worker, "config": config}, **more}, "artifacts": artifacts})


# --- what is asked for


def test_nobody_is_tracked_unasked() -> None:
    assert not parse_tracking_request(payload(), "01K", {})
    assert not parse_tracking_request(payload({"track_wandb": False}), "01K", {})


@pytest.mark.parametrize("asked", [{"extras": {"track_wandb": True}}, {"artifacts": {"wandb": {"enabled": True}}}])
def test_both_ways_of_asking_mean_the_same(asked: dict[str, Any]) -> None:
    facts = parse_tracking_request(payload(**asked), "01K0000000ABCDEF", {}).wandb
    assert facts is not None
    assert (facts.project, facts.entity, facts.name) == ("mosaic", None, "CartPole-v1__ppo__3__ABCDEF")
    assert parse_tracking_request(payload(**asked), "01K", {}).trackio is None


def test_names_come_from_the_payload_before_the_environment() -> None:
    env = {"WANDB_PROJECT": "of-env", "WANDB_ENTITY": "team"}
    facts = parse_tracking_request(
        payload({"track_wandb": True}, group="g", tags=["t" * 80], notes="n"), "01K", env
    ).wandb
    assert facts is not None
    assert (facts.project, facts.entity, facts.group, facts.notes) == ("of-env", "team", "g", "n")
    assert facts.tags == ("t" * 64,), "W&B takes no longer ones"
    extras = {"track_wandb": True, "wandb_project_name": "p", "wandb_entity": "e", "wandb_run_name": "r"}
    facts = parse_tracking_request(payload(extras), "01K", env).wandb
    assert facts is not None
    assert (facts.project, facts.entity, facts.name) == ("p", "e", "r")


def test_keys_proxies_and_tracking_itself_are_no_settings_of_a_run() -> None:
    extras = {
        "track_wandb": True, "wandb_api_key": "secret:x", "wandb_https_proxy": "http://p", "hf_entity": "h",
        "learning_rate": 0.1, "algo_params": {"gamma": 0.9},
    }  # fmt: skip
    facts = parse_tracking_request(payload(extras), "01K", {}).wandb
    assert facts is not None
    assert facts.config == {"algo": "ppo", "env_id": "CartPole-v1", "seed": 3, "learning_rate": 0.1, "gamma": 0.9}


@pytest.mark.parametrize(
    ("told", "has_videos"), [(None, True), ("1", True), ("0", False), ("False", False), ("no", False)]
)
def test_videos_are_logged_unless_switched_off(told: str | None, has_videos: bool) -> None:
    env = {} if told is None else {"WANDB_MONITOR_GYM": told}
    facts = parse_tracking_request(payload({"track_wandb": True}), "01K", env).wandb
    assert facts is not None
    assert facts.has_videos is has_videos


def test_a_program_of_the_users_tracks_itself() -> None:
    script = {"argv": ["python"], "cwd": "/"}
    own = Payload.parse({"metadata": {"worker": {"id": "script", "config": script}}, "artifacts": {}})
    assert is_user_program(own)
    assert is_user_program(payload({"cleanrl": "/a/checkout"}))
    assert not is_user_program(payload())


# --- starting one


def test_a_run_that_nobody_tracks_has_no_sidecar(folder: RunFolder) -> None:
    assert build_sidecar_spec(folder, payload(), None) is None


def test_a_tracked_run_has_one_and_its_secrets_are_no_arguments(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_TOKEN", "token")
    monkeypatch.setenv("WANDB_API_KEY", "canary")
    folder.journal.write_text("x" * 7)
    made = build_sidecar_spec(folder, payload({"track_wandb": True}), None)
    assert made is not None
    assert "--upload-only" not in made["argv"]
    assert made["argv"][made["argv"].index("--journal-from") + 1] == "7"
    assert "canary" not in " ".join(made["argv"])
    assert "MOSAIC_TOKEN" not in made["env"]


def test_a_script_has_one_that_uploads_unless_it_chose_a_mode(folder: RunFolder) -> None:
    made = build_sidecar_spec(
        folder, payload({"cleanrl": "/c"}), {"WANDB_API_KEY": "k", "HOME": "/h"}, has_wandb_probe=True
    )
    assert made is not None
    assert "--upload-only" in made["argv"]
    assert made["env"]["WANDB_API_KEY"] == "k"
    assert made["env"].get("HOME") != "/h", "of the caller's environment only what W&B needs"
    assert (
        build_sidecar_spec(folder, payload({"cleanrl": "/c"}), {"WANDB_MODE": "offline"}, has_wandb_probe=True) is None
    )
    assert build_sidecar_spec(folder, payload({"cleanrl": "/c"}), {}, has_wandb_probe=False) is None


def test_the_client_is_bounded_and_stays_in_the_run(folder: RunFolder) -> None:
    told = {
        "WANDB_BASE_URL": "http://w/",
        "WANDB_MODE": "offline",
        "WANDB_SERVICE": "x",
        "WANDB_API_KEY": "k",
        "PATH": "/p",
    }
    env = client_environment(told, folder)
    assert (env["WANDB_DIR"], env["WANDB_CACHE_DIR"]) == (str(folder.path), str(folder.wandb))
    assert (env["WANDB_BASE_URL"], env["WANDB_API_KEY"], env["PATH"]) == ("http://w", "k", "/p")
    assert int(env["WANDB__FILE_STREAM_RETRY_MAX"]) < 10
    assert not {"WANDB_MODE", "WANDB_SERVICE"} & set(env)


# --- whether the run is over


def told(folder: RunFolder, kind: str, **facts: Any) -> None:
    journal = Journal(folder.keeper)
    journal.append(kind, **facts)
    journal.close()


def test_a_run_is_over_when_its_keeper_says_so(folder: RunFolder) -> None:
    told(folder, "keeper_started", process=own_identity())
    told(folder, "exited", code=0)
    seen = RunMonitor(folder, folder.keeper.stat().st_size)
    assert not seen.is_over(), "that was an earlier attempt"
    told(folder, "keeper_started", process=own_identity())
    assert not seen.is_over()
    told(folder, "exited", code=0)
    assert seen.is_over()
    assert not seen.is_superseded


@pytest.mark.parametrize("keeper", [NOBODY, own_identity()])
def test_a_run_whose_keeper_and_worker_are_gone_is_over(folder: RunFolder, keeper: Any) -> None:
    told(folder, "keeper_started", process=keeper)
    told(folder, "worker_started", process=NOBODY)
    assert RunMonitor(folder, 0).is_over() is (keeper is NOBODY)


def test_a_run_that_was_started_again_has_another_sidecar(folder: RunFolder) -> None:
    told(folder, "keeper_started", process=own_identity())
    told(folder, "keeper_started", process=own_identity())
    seen = RunMonitor(folder, 0)
    assert seen.is_over()
    assert seen.is_superseded


def test_a_run_whose_folder_is_gone_is_nobodys(folder: RunFolder) -> None:
    told(folder, "keeper_started", process=own_identity())
    seen = RunMonitor(folder, 0)
    folder.path.rename(folder.path.with_name("trash"))
    assert seen.is_over()
    assert seen.is_superseded


def test_a_keeper_that_never_speaks_is_not_waited_for(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = RunMonitor(folder, 0)
    assert not seen.is_over()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + run_monitor.KEEPER_TIMEOUT_S + 1)
    assert seen.is_over()


# --- trackers that fail


class FakeTracker:
    name = "fake"

    def __init__(self, fails_at: str = "") -> None:
        self.row_count = 0
        self.said: list[str] = []
        self._fails_at = fails_at

    def __getattr__(self, word: str) -> Any:
        def called(*_: Any) -> None:
            self.said.append(word)
            if word == self._fails_at:
                raise RuntimeError("no more")

        return called


@pytest.mark.parametrize("fails_at", ["", "start", "log_scalars", "log_checkpoint", "finish"])
def test_a_tracker_that_fails_is_told_of_once_and_dropped(tmp_path: Path, fails_at: str) -> None:
    folder = a_folder(tmp_path)
    folder.checkpoint(3).mkdir(parents=True)
    folder.last_checkpoint.symlink_to("3")
    journal = Journal(folder.journal)
    for step in (1, 2):
        journal.append("metrics", series={"a": [[step, 1.0, 1.0]]})
    journal.close()
    said: list[tuple[str, dict[str, object]]] = []

    def say(kind: str, /, **facts: object) -> None:
        said.append((kind, facts))

    tracker = FakeTracker(fails_at)
    made = Recorder(folder, tracker, TrackedRunInfo("r", "n", "p"), TrackerFeed(folder), say)
    made.start()
    made.follow(is_over=True)
    assert made.finish() is (not fails_at)
    warnings = [facts["text"] for kind, facts in said if kind == "warning"]
    if not fails_at:
        assert warnings == []
        assert tracker.said == ["start", "log_scalars", "log_scalars", "log_checkpoint", "finish"]
        return
    assert len(warnings) == 1
    assert "no more" in str(warnings[0])
    assert tracker.said[-1] == fails_at
    assert tracker.said.count(fails_at) == 1


def test_a_tracker_that_is_not_installed_names_its_extra() -> None:
    words = recorder._failure_message("wandb", ModuleNotFoundError("No module named 'wandb'", name="wandb"), "01K")
    assert "pip install 'mosaic-rl[wandb]'" in words
    assert words.endswith("mosaic wandb sync 01K")


# --- W&B's words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "W&B cannot be reached (refused)"),
        (TimeoutError("timed out"), "W&B cannot be reached (no answer)"),
        (socket.gaierror(-2, "Name or service not known"), "its name is not known"),
        (ssl.SSLCertVerificationError("self-signed"), "certificate"),
        (ConnectionResetError("Remote end closed connection"), "broken off"),
        ("POST http://w/graphql giving up after 3 attempt(s) while retrying: HTTP 429: slow down", "429"),
        ("Post \"http://w\": dial tcp 127.0.0.1:1: connect: connection refused", "refused"),
        ("Timed out while retrying: context deadline exceeded", "no answer"),
        ("Fatal error while uploading data. Some run data will not be synced", "broke off"),
        ("Error: permission denied", "403"),
        ("API key must have 40+ characters", "401"),
        ("something of\nits own.", "The upload to W&B failed (something of its own)"),
    ],
)  # fmt: skip
def test_what_went_wrong_is_said_in_plain_words(error: object, words: str) -> None:
    assert words in wandb_connection.problem_from_error(error).message


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What wandb would say of its server."""
    wandb_connection._cached_server_url.cache_clear()
    monkeypatch.setattr(wandb_connection, "query_server_url", lambda env: "https://w.example/")


@pytest.mark.usefixtures("asked")
def test_a_key_that_wandb_login_left_is_found(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine w.example login user password of-netrc\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert wandb_connection.api_key({"HOME": str(tmp_path)}) == "of-netrc"
    assert wandb_connection.api_key({"HOME": str(tmp_path), "WANDB_API_KEY": "of-env"}) == "of-env"
    assert wandb_connection.api_key({"HOME": str(tmp_path), "WANDB_BASE_URL": "https://other.example"}) is None
    assert wandb_connection.check_connection({"HOME": str(tmp_path / "nowhere")}) == wandb_connection.NO_KEY_PROBLEM


@pytest.mark.usefixtures("asked")
def test_the_server_is_the_environments_then_what_wandb_says(tmp_path: Path) -> None:
    assert wandb_connection.server_url({"HOME": str(tmp_path)}) == "https://w.example"
    assert wandb_connection.server_url({"HOME": str(tmp_path), "WANDB_BASE_URL": "http://here"}) == "http://here"
