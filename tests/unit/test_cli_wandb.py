from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.cli_trainer import FakeTrainer, call, view

from mosaic.base import secret_store as secrets
from mosaic.contracts.errors import unknown_name_error
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.views import WandbStatus
from mosaic.features.tracking.sidecar.wandb_connection import CHECK_NAMES, Finding

KEY = "canary0123456789abcdef0123456789abcdef01"
OFFLINE, SYNCED, NOTHING = "01RUN00000OFFLINE", "01RUN000000SYNCED", "01RUN00000NOTHING"
Json = dict[str, Any]


def state(run_id: str, value: str, **fields: Any) -> Json:
    folder = {"state": value, "size_bytes": 2_000_000, "sent_bytes": 0, "records": 12, "error": None, "url": None}
    plain = {"run_id": run_id, "state": value, "url": None, "error": None, "algo": "ppo", "env_id": "CartPole-v1"}
    return {**plain, "runs": {"offline-run-1": folder}, **fields}


class Trainer(FakeTrainer):
    def __init__(self) -> None:
        super().__init__(view(OFFLINE), view(SYNCED), view(NOTHING))
        self.states = [state(OFFLINE, "offline"), state(SYNCED, "synced", url="http://w/1")]
        self.config_json["artifacts"]["wandb"] = {"https_proxy": "p:1"}

    def read_wandb(self, run: str = "") -> Iterator[WandbStatus]:
        if run and run not in self.views:
            raise unknown_name_error("run", run, self.views)
        yield from (
            WandbStatus.model_validate({"stage": "finished", **one})
            for one in self.states
            if run in ("", one["run_id"])
        )


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "keyring", secrets.KeyringClient())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def type_stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_a_key_is_read_from_stdin_and_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    type_stdin(monkeypatch, KEY + "\n")
    result = call(None, "wandb", "login")
    assert result.code == 0
    assert "stored in" in result.out
    assert KEY not in result.out + result.err
    assert secrets.find_secret("wandb_api_key") == KEY
    type_stdin(monkeypatch, KEY)
    assert json.loads(call(None, "wandb", "login", "--json").out) == {"stored_in": "file"}


@pytest.mark.parametrize("arguments", [(KEY,), ("--key", KEY), (f"--key={KEY}",)])
def test_a_key_as_an_argument_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    type_stdin(monkeypatch, "")
    result = call(None, "wandb", "login", *arguments)
    assert result.code == 2
    assert "must not be an argument" in result.err
    assert KEY not in result.out + result.err


@pytest.mark.parametrize("text", ["", "short\n", KEY + " " + KEY])
def test_an_invalid_key_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    type_stdin(monkeypatch, text)
    result = call(None, "wandb", "login")
    assert result.code == 2
    assert "ot a valid" in result.err
    assert secrets.find_secret("wandb_api_key") is None


def test_a_key_is_deleted_alone_or_with_those_of_configs() -> None:
    secrets.put_secret("wandb_api_key", "mine")
    for value in ("second", "third"):
        secrets.add_secret("wandb_api_key", value)
    assert call(None, "wandb", "logout").out == "Deleted the key.\n"
    assert call(None, "wandb", "logout").out == "No key was stored.\n"
    assert call(None, "wandb", "logout", "--all").out == "Deleted 2 keys.\n"


def test_keys_of_configs_are_shown_masked() -> None:
    """R4.6: they are used by the runs that name them, though the user has stored none."""
    secrets.add_secret("wandb_api_key", KEY)
    secrets.add_secret("wandb_api_key", "short")
    shown = call(Trainer(), "wandb", "status")
    assert f"wandb_api_key-2 (…{KEY[-4:]}), wandb_api_key-3 (…)" in " ".join(shown.out.split())
    assert KEY not in shown.out
    data = json.loads(call(Trainer(), "wandb", "status", "--json").out)
    assert (data["key"], data["config_keys"]["wandb_api_key-2"]) == (None, f"…{KEY[-4:]}")


def test_a_key_in_the_environment_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert "still set" in call(None, "wandb", "logout").err
    type_stdin(monkeypatch, KEY)
    assert "precedes the stored" in call(None, "wandb", "login").err
    assert json.loads(call(Trainer(), "wandb", "status", "--json").out)["key"] == "environment"


def test_the_status_shows_every_run_and_the_next_command() -> None:
    result = call(Trainer(), "wandb", "status")
    assert (result.code, "mosaic wandb login" in result.out) == (0, True)
    rows = [line.split() for line in result.out.splitlines()[2:]]
    assert rows == [
        [OFFLINE[-6:], "ppo", "CartPole-v1", "offline", "12", "2.0", "MB", "on", "this", "machine"],
        [SYNCED[-6:], "ppo", "CartPole-v1", "synced", "12", "2.0", "MB", "http://w/1"],
    ]
    assert "1 not uploaded: mosaic wandb sync --all" in result.err
    data = json.loads(call(Trainer(), "wandb", "status", SYNCED, "--json").out)
    assert (data["key"], [one["run_id"] for one in data["runs"]]) == (None, [SYNCED])


def test_a_run_without_wandb_data_is_reported() -> None:
    assert "has no W&B data" in call(Trainer(), "wandb", "status", NOTHING).err
    empty = Trainer()
    empty.states = []
    assert "--track" in call(empty, "wandb", "status").err


def fake_uploads(monkeypatch: pytest.MonkeyPatch, *states: Json) -> list[list[Path]]:
    requests: list[list[Path]] = []

    def sync_runs(folders: Iterable[RunFolder], on_message: Callable[[Json], None]) -> None:
        requests.append([folder.path for folder in folders])
        for message in states:
            on_message(message)

    monkeypatch.setattr("mosaic.features.tracking.sidecar.wandb_sync.sync_runs", sync_runs)
    return requests


def test_sync_uploads_offline_runs_and_prints_their_urls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    synced = {**state(OFFLINE, "synced", url="http://w/2"), "is_last": True, "problems": ["Odd .env."]}
    requests = fake_uploads(monkeypatch, state(OFFLINE, "syncing"), synced)
    result = call(Trainer(), "wandb", "sync", "--all", root=tmp_path)
    assert requests == [[tmp_path / "trainer" / "runs" / OFFLINE]]
    assert (result.code, result.out) == (0, f"Run {OFFLINE[-6:]} is synced: http://w/2\n")
    assert "Odd .env." in result.err


def test_an_upload_that_fails_or_ends_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "W&B cannot be reached (connection refused)."
    failed = state(OFFLINE, "failed", error=error)
    fake_uploads(monkeypatch, {**failed, "is_last": True})
    result = call(Trainer(), "wandb", "sync", OFFLINE)
    assert (result.code, result.out) == (
        1,
        f"Run {OFFLINE[-6:]} is not synced. W&B cannot be reached (connection refused).\n",
    )
    fake_uploads(monkeypatch)
    result = call(Trainer(), "wandb", "sync", OFFLINE, "--json")
    assert result.code == 1
    assert [(one["state"], one["error"]) for one in json.loads(result.out)] == [
        ("failed", "The upload ended unexpectedly.")
    ]


def test_syncing_a_synced_run_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = fake_uploads(monkeypatch)
    result = call(Trainer(), "wandb", "sync", SYNCED)
    assert (result.code, result.out, requests) == (0, "Nothing to upload.\n", [])
    assert "is synced already" in result.err
    assert [one["state"] for one in json.loads(call(Trainer(), "wandb", "sync", SYNCED, "--json").out)] == ["synced"]


@pytest.mark.parametrize("arguments", [(), (OFFLINE, "--all")])
def test_sync_requires_runs_or_all(arguments: tuple[str, ...]) -> None:
    result = call(Trainer(), "wandb", "sync", *arguments)
    assert result.code == 2
    assert "or use --all" in result.err


def fake_probe(monkeypatch: pytest.MonkeyPatch, *findings: Finding) -> list[Json]:
    requests: list[Json] = []

    def run_diagnostics(root: Path, wandb: Json) -> Iterator[Finding]:
        requests.append(wandb)
        yield from findings

    monkeypatch.setattr("mosaic.features.tracking.sidecar.wandb_connection.run_diagnostics", run_diagnostics)
    return requests


def test_a_probe_prints_one_line_per_check(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = [Finding(name, "ok", "fine") for name in CHECK_NAMES[:-1]] + [
        Finding("key", "fail", "no key", "Store yours.")
    ]
    requests = fake_probe(monkeypatch, *findings)
    result = call(Trainer(), "wandb", "probe")
    assert result.code == 1
    assert [line.split()[:2] for line in result.out.splitlines()] == [[one.name, one.state] for one in findings]
    assert result.out.splitlines()[-1].endswith("no key. Store yours.")
    data = json.loads(call(Trainer(), "wandb", "probe", OFFLINE, "--vpn", "--json").out)
    assert (data["ok"], data["findings"][-1]["todo"]) == (False, "Store yours.")
    assert requests == [{}, {"https_proxy": "p:1", "use_vpn_proxy": True}]


def test_a_probe_without_failures_exits_with_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_probe(monkeypatch, *(Finding(name, "ok", "fine") for name in CHECK_NAMES))
    assert call(Trainer(), "wandb", "probe").code == 0
