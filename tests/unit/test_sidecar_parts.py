"""The parts of the sidecar: tracking requests, the end of a run, failing trackers, W&B's error messages."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.run_folders import make_run_folder

from mosaic.base.journal import Journal
from mosaic.base.processes import own_identity
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import Attempt
from mosaic.features.tracking.sidecar import recorder, run_monitor, wandb_connection, wandb_environment
from mosaic.features.tracking.sidecar.recorder import Recorder, logs_videos, wandb_run_fields
from mosaic.features.tracking.sidecar.run_monitor import RunMonitor
from mosaic.features.tracking.sidecar.sidecar_spec import build_sidecar_spec
from mosaic.features.tracking.sidecar.wandb_sync import client_environment, is_user_program

ATTEMPT = Attempt(number=1, slot=1, started_at=0.0, journal_from=7)
GONE = {"pid": 2**22 + 1, "start": "1", "boot_id": own_identity()["boot_id"]}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "it's a workspace" / "trainer" / "runs" / "01K")
    folder.path.mkdir(parents=True)
    return folder


def payload(extras: dict[str, Any] | None = None, worker: str = "cleanrl", **more: Any) -> Payload:
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 3, "extras": extras or {}}
    artifacts = more.pop("artifacts", {})
    return Payload.parse({"metadata": {"worker": {"id": worker, "config": config}, **more}, "artifacts": artifacts})


# --- tracking requests


def test_a_run_is_tracked_only_on_request() -> None:
    for untracked in (payload(), payload({"track_wandb": False})):
        assert not untracked.artifacts.wandb.enabled
        assert not untracked.artifacts.trackio.enabled


@pytest.mark.parametrize("fields", [{"extras": {"track_wandb": True}}, {"artifacts": {"wandb": {"enabled": True}}}])
def test_both_ways_of_requesting_are_equivalent(fields: dict[str, Any]) -> None:
    tracked = payload(**fields)
    assert (tracked.artifacts.wandb.enabled, tracked.artifacts.trackio.enabled) == (True, False)
    run = wandb_run_fields(tracked, "01K0000000ABCDEF", {})
    assert (run["project"], run["entity"], run["name"]) == ("mosaic", None, "CartPole-v1__ppo__3__ABCDEF")


def test_names_come_from_the_payload_before_the_environment() -> None:
    env = {"WANDB_PROJECT": "from-env", "WANDB_ENTITY": "team", "WANDB_NAME": "named"}
    run = wandb_run_fields(payload({"track_wandb": True}), "01K", env)
    assert (run["name"], run["group"], run["tags"], run["notes"]) == ("named", None, None, None), "left to wandb"
    run = wandb_run_fields(payload({"track_wandb": True}, group="g", tags=["t" * 80], notes="n"), "01K", env)
    assert (run["project"], run["entity"], run["group"], run["notes"]) == ("from-env", "team", "g", "n")
    assert run["tags"] == ["t" * 64], "the longest that W&B accepts"
    extras = {"track_wandb": True, "wandb_project_name": "p", "wandb_entity": "e", "wandb_run_name": "r"}
    run = wandb_run_fields(payload(extras), "01K", env)
    assert (run["project"], run["entity"], run["name"]) == ("p", "e", "r")


def test_keys_proxies_and_tracking_options_are_not_logged_as_settings() -> None:
    extras = {
        "track_wandb": True, "wandb_api_key": "secret:x", "wandb_https_proxy": "http://p", "hf_entity": "h",
        "learning_rate": 0.1, "algo_params": {"gamma": 0.9},
    }  # fmt: skip
    settings = wandb_run_fields(payload(extras), "01K", {})["config"]
    assert settings == {"algo": "ppo", "env_id": "CartPole-v1", "seed": 3, "learning_rate": 0.1, "gamma": 0.9}


@pytest.mark.parametrize(
    ("value", "has_videos"), [(None, True), ("1", True), ("0", False), ("False", False), ("no", False)]
)
def test_videos_are_logged_unless_switched_off(value: str | None, has_videos: bool) -> None:
    """R4.3: `WANDB_INIT_TIMEOUT`, `WANDB_MONITOR_GYM`."""
    assert logs_videos({} if value is None else {"WANDB_MONITOR_GYM": value}) is has_videos


def test_a_users_program_tracks_itself() -> None:
    script = {"argv": ["python"], "cwd": "/"}
    script_payload = Payload.parse({"metadata": {"worker": {"id": "script", "config": script}}, "artifacts": {}})
    assert is_user_program(script_payload)
    assert is_user_program(payload({"cleanrl": "/a/checkout"}))
    assert not is_user_program(payload())


# --- starting one


def test_a_run_without_tracking_has_no_sidecar(folder: RunFolder) -> None:
    assert build_sidecar_spec(folder, payload(), ATTEMPT) is None


def test_a_tracked_run_has_a_sidecar_without_secrets_in_its_arguments(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_TOKEN", "token")
    monkeypatch.setenv("WANDB_API_KEY", "canary")
    spec = build_sidecar_spec(folder, payload({"track_wandb": True}), ATTEMPT)
    assert spec is not None
    assert "--upload-only" not in spec["argv"]
    assert spec["argv"][spec["argv"].index("--journal-from") + 1] == "7"
    assert "canary" not in " ".join(spec["argv"])
    assert "MOSAIC_TOKEN" not in spec["env"]


def test_what_the_caller_of_a_tracked_run_sets_for_wandb_precedes_the_daemons_environment(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://daemon")
    caller = {"WANDB_BASE_URL": "http://caller"}
    spec = build_sidecar_spec(folder, payload({"track_wandb": True}), ATTEMPT, tracking=caller)
    assert spec is not None
    assert spec["env"]["WANDB_BASE_URL"] == "http://caller"


def test_a_script_has_a_sidecar_that_uploads_unless_it_chose_a_mode(folder: RunFolder) -> None:
    script, caller = payload({"cleanrl": "/c"}), {"WANDB_API_KEY": "k", "HOME": "/h"}
    spec = build_sidecar_spec(folder, script, ATTEMPT, caller, has_wandb_probe=True)
    assert spec is not None
    assert "--upload-only" in spec["argv"]
    assert spec["env"]["WANDB_API_KEY"] == "k"
    assert spec["env"].get("HOME") != "/h", "only what W&B needs of the caller's environment"
    assert build_sidecar_spec(folder, script, ATTEMPT, {"WANDB_MODE": "offline"}, has_wandb_probe=True) is None
    assert build_sidecar_spec(folder, script, ATTEMPT, {}, has_wandb_probe=False) is None


def test_the_client_has_limited_retries_and_stays_in_the_run_folder(folder: RunFolder) -> None:
    inherited = {
        "WANDB_BASE_URL": "http://w/",
        "WANDB_MODE": "offline",
        "WANDB_SERVICE": "x",
        "WANDB_API_KEY": "k",
        "PATH": "/p",
    }
    env = client_environment(inherited, folder)
    assert (env["WANDB_DIR"], env["WANDB_CACHE_DIR"]) == (str(folder.path), str(folder.wandb))
    assert (env["WANDB_BASE_URL"], env["WANDB_API_KEY"], env["PATH"]) == ("http://w", "k", "/p")
    assert int(env["WANDB__FILE_STREAM_RETRY_MAX"]) < 10
    assert not {"WANDB_MODE", "WANDB_SERVICE"} & set(env)


# --- the end of a run


def append_event(folder: RunFolder, kind: str, **fields: Any) -> None:
    journal = Journal(folder.keeper)
    journal.append(kind, **fields)
    journal.close()


def test_a_run_is_over_when_its_keeper_reports_the_exit(folder: RunFolder) -> None:
    append_event(folder, "keeper_started", process=own_identity())
    append_event(folder, "exited", code=0)
    monitor = RunMonitor(folder, folder.keeper.stat().st_size)
    assert not monitor.is_over(), "that was an earlier attempt"
    append_event(folder, "keeper_started", process=own_identity())
    assert not monitor.is_over()
    append_event(folder, "exited", code=0)
    assert monitor.is_over()
    assert not monitor.is_superseded


@pytest.mark.parametrize("keeper", [GONE, own_identity()])
def test_a_run_whose_keeper_and_worker_are_gone_is_over(folder: RunFolder, keeper: Any) -> None:
    append_event(folder, "keeper_started", process=keeper)
    append_event(folder, "worker_started", process=GONE)
    assert RunMonitor(folder, 0).is_over() is (keeper is GONE)


def test_a_run_that_was_started_again_has_another_sidecar(folder: RunFolder) -> None:
    append_event(folder, "keeper_started", process=own_identity())
    append_event(folder, "keeper_started", process=own_identity())
    monitor = RunMonitor(folder, 0)
    assert monitor.is_over()
    assert monitor.is_superseded


def test_a_run_whose_folder_is_gone_is_superseded(folder: RunFolder) -> None:
    append_event(folder, "keeper_started", process=own_identity())
    monitor = RunMonitor(folder, 0)
    folder.path.rename(folder.path.with_name("trash"))
    assert monitor.is_over()
    assert monitor.is_superseded


def test_a_keeper_that_never_writes_is_not_waited_for(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = RunMonitor(folder, 0)
    assert not monitor.is_over()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + run_monitor.KEEPER_TIMEOUT_S + 1)
    assert monitor.is_over()


# --- failing trackers


class FakeRecorder(Recorder):
    name = "fake"
    fails_at = ""

    def record_call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails_at:
            raise RuntimeError("tracker broke")

    def open(self) -> None:
        self.calls: list[str] = []
        self.record_call("open")

    def log_scalars(self, *_: Any) -> None:
        self.record_call("log_scalars")

    def log_checkpoint(self, *_: Any) -> None:
        self.record_call("log_checkpoint")

    def close(self) -> None:
        self.record_call("close")


@pytest.mark.parametrize("fails_at", ["", "open", "log_scalars", "log_checkpoint", "close"])
def test_a_tracker_that_fails_is_reported_once_and_dropped(tmp_path: Path, fails_at: str) -> None:
    folder = make_run_folder(tmp_path)
    folder.checkpoint(3).mkdir(parents=True)
    folder.last_checkpoint.symlink_to("3")
    journal = Journal(folder.journal)
    for step in (1, 2):
        journal.append("metrics", series={"a": [[step, 1.0, 1.0]]})
    journal.close()
    events: list[tuple[str, dict[str, object]]] = []

    def emit_event(kind: str, /, **fields: object) -> None:
        events.append((kind, fields))

    tracker = FakeRecorder(folder, payload(), None, emit_event)
    tracker.fails_at = fails_at
    assert tracker.finish() is (not fails_at)
    warnings = [fields["text"] for kind, fields in events if kind == "warning"]
    if not fails_at:
        assert warnings == []
        assert tracker.calls == ["open", "log_scalars", "log_scalars", "log_checkpoint", "close"]
        return
    assert len(warnings) == 1
    assert "tracker broke" in str(warnings[0])
    assert tracker.calls[-1] == fails_at
    assert tracker.calls.count(fails_at) == 1


def test_a_tracker_that_is_not_installed_names_its_extra() -> None:
    message = recorder._failure_message("wandb", ModuleNotFoundError("No module named 'wandb'", name="wandb"), "01K")
    assert "pip install 'mosaic-rl[wandb]'" in message
    assert message.endswith("mosaic wandb sync 01K")


# --- error messages


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("Post: read tcp 127.0.0.1:1: connection reset by peer", "The connection to W&B was interrupted"),
        ("dial tcp: lookup api.wandb.ai: no such host", "W&B cannot be reached (unknown host)"),
        ("x509: certificate signed by unknown authority", "W&B cannot be reached (TLS failed)"),
        ("POST http://w/graphql giving up after 3 attempt(s) while retrying: HTTP 429: slow down", "429"),
        ("Post \"http://w\": dial tcp 127.0.0.1:1: connect: connection refused", "refused"),
        ("Timed out while retrying: context deadline exceeded", "no answer"),
        ("Fatal error while uploading data. Some run data will not be synced", "was interrupted"),
        ("Error: permission denied", "403"),
        ("API key must have 40+ characters", "401"),
        ("something\nelse.", "The upload to W&B failed (something else)"),
    ],
)  # fmt: skip
def test_an_error_of_wandbs_client_becomes_a_sentence(output: str, expected: str) -> None:
    assert expected in wandb_connection.problem_from_output(output).message


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection refused"),
        (TimeoutError("timed out"), "no answer"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ConnectionResetError("Remote end closed connection"), "connection interrupted"),
    ],
)
def test_a_network_error_has_a_short_description(error: Exception, expected: str) -> None:
    assert wandb_connection.describe_error(error) == expected


@pytest.fixture
def default_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the server that wandb would name."""
    monkeypatch.setattr(wandb_environment, "query_server_url", lambda env: "https://w.example/")


@pytest.mark.usefixtures("default_server")
def test_the_key_of_wandb_login_is_found(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine w.example login user password from-netrc\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert wandb_environment.api_key({"HOME": str(tmp_path)}) == "from-netrc"
    assert wandb_environment.api_key({"HOME": str(tmp_path), "WANDB_API_KEY": "from-env"}) == "from-env"
    assert wandb_environment.api_key({"HOME": str(tmp_path), "WANDB_BASE_URL": "https://other.example"}) is None
    assert wandb_connection.check_connection({"HOME": str(tmp_path / "nowhere")}) == wandb_connection.NO_KEY_PROBLEM


@pytest.mark.usefixtures("default_server")
def test_the_server_is_the_environments_then_wandbs_default(tmp_path: Path) -> None:
    assert wandb_environment.server_url({"HOME": str(tmp_path)}) == "https://w.example"
    assert wandb_environment.server_url({"HOME": str(tmp_path), "WANDB_BASE_URL": "http://here"}) == "http://here"
