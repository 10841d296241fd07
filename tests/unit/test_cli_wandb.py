from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.cli_trainer import FakeTrainer, call, view

from mosaic import secrets
from mosaic.contracts.errors import unknown_name_error
from mosaic.contracts.folder import RunFolder
from mosaic.secrets import keyring_client
from mosaic.sidecar.wandb_diagnostics import CHECK_NAMES, Finding

KEY = "canary0123456789abcdef0123456789abcdef01"
OFFLINE, SYNCED, NOTHING = "01OFFLINE0000000", "01SYNCED00000000", "01NOTHING0000000"
Json = dict[str, Any]


def state(run_id: str, word: str, **facts: Any) -> Json:
    folder = {"state": word, "size_bytes": 2_000_000, "sent_bytes": 0, "records": 12, "error": None, "url": None}
    plain = {"run_id": run_id, "state": word, "url": None, "error": None, "algo": "ppo", "env_id": "CartPole-v1"}
    return {**plain, "runs": {"offline-run-1": folder}, **facts}


class Trainer(FakeTrainer):
    def __init__(self) -> None:
        super().__init__(view(OFFLINE), view(SYNCED), view(NOTHING))
        self.states = [state(OFFLINE, "offline"), state(SYNCED, "synced", url="http://w/1")]
        self.payload = {"metadata": {"worker": {"config": {"extras": {"wandb_https_proxy": "p:1"}}}}}

    def wandb(self, run: str = "") -> Iterator[Json]:
        if run and run not in self.views:
            raise unknown_name_error("run", run, self.views)
        yield from (one for one in self.states if run in ("", one["run_id"]))


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring_client, "_keyring", keyring_client.KeyringClient())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_a_key_comes_by_stdin_and_is_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, KEY + "\n")
    said = call(None, "wandb", "login")
    assert said.code == 0
    assert "stored in" in said.out
    assert KEY not in said.out + said.err
    assert secrets.find_secret("wandb_api_key") == KEY
    typed(monkeypatch, KEY)
    assert json.loads(call(None, "wandb", "login", "--json").out) == {"stored_in": "file"}


@pytest.mark.parametrize("arguments", [(KEY,), ("--key", KEY), (f"--key={KEY}",)])
def test_a_key_as_an_argument_is_refused_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    typed(monkeypatch, "")
    said = call(None, "wandb", "login", *arguments)
    assert said.code == 2
    assert "never an argument" in said.err
    assert KEY not in said.out + said.err


@pytest.mark.parametrize("text", ["", "short\n", KEY + " " + KEY])
def test_what_is_no_key_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    typed(monkeypatch, text)
    said = call(None, "wandb", "login")
    assert said.code == 2
    assert "no " in said.err
    assert secrets.find_secret("wandb_api_key") is None


def test_a_key_is_forgotten_alone_or_with_those_that_configs_brought() -> None:
    for value in ("mine", "second", "third"):
        secrets.add_secret("wandb_api_key", value)
    assert call(None, "wandb", "logout").out == "The key is forgotten.\n"
    assert call(None, "wandb", "logout").out == "No key was stored.\n"
    assert call(None, "wandb", "logout", "--all").out == "2 keys are forgotten.\n"


def test_a_key_of_the_environment_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert "still set" in call(None, "wandb", "logout").err
    typed(monkeypatch, KEY)
    assert "comes before" in call(None, "wandb", "login").err
    assert json.loads(call(Trainer(), "wandb", "status", "--json").out)["key"] == "environment"


def test_the_status_says_what_is_where_and_what_to_do() -> None:
    said = call(Trainer(), "wandb", "status")
    assert (said.code, "mosaic wandb login" in said.out) == (0, True)
    rows = [line.split() for line in said.out.splitlines()[2:]]
    assert rows == [
        [OFFLINE[:10], "ppo", "CartPole-v1", "offline", "12", "2.0", "MB", "on", "this", "machine"],
        [SYNCED[:10], "ppo", "CartPole-v1", "synced", "12", "2.0", "MB", "http://w/1"],
    ]
    assert "1 waits: mosaic wandb sync --all" in said.err
    told = json.loads(call(Trainer(), "wandb", "status", SYNCED, "--json").out)
    assert (told["key"], [one["run_id"] for one in told["runs"]]) == (None, [SYNCED])


def test_a_run_without_anything_of_wandbs_is_said() -> None:
    assert "has nothing of W&B's" in call(Trainer(), "wandb", "status", NOTHING).err
    empty = Trainer()
    empty.states = []
    assert "--track" in call(empty, "wandb", "status").err


def uploading(monkeypatch: pytest.MonkeyPatch, *said: Json) -> list[list[Path]]:
    asked: list[list[Path]] = []

    def uploads(folders: Iterable[RunFolder]) -> Iterator[Json]:
        asked.append([folder.path for folder in folders])
        yield from said

    monkeypatch.setattr("mosaic.sidecar.upload_client.upload_runs", uploads)
    return asked


def test_syncing_uploads_what_waits_and_says_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = state(OFFLINE, "synced", url="http://w/2")
    asked = uploading(monkeypatch, state(OFFLINE, "syncing"), {**done, "is_last": True, "problems": ["Odd .env."]})
    said = call(Trainer(), "wandb", "sync", "--all", root=tmp_path)
    assert asked == [[tmp_path / "trainer" / "runs" / OFFLINE]]
    assert (said.code, said.out) == (0, f"Run {OFFLINE[:10]} is synced: http://w/2\n")
    assert "Odd .env." in said.err


def test_an_upload_that_fails_or_breaks_off_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "W&B cannot be reached (connection refused)."
    failed = state(OFFLINE, "failed", error=error)
    uploading(monkeypatch, {**failed, "is_last": True})
    said = call(Trainer(), "wandb", "sync", OFFLINE)
    assert (said.code, said.out) == (
        1,
        f"Run {OFFLINE[:10]} is not synced. W&B cannot be reached (connection refused).\n",
    )
    uploading(monkeypatch)
    said = call(Trainer(), "wandb", "sync", OFFLINE, "--json")
    assert said.code == 1
    assert [(one["state"], one["error"]) for one in json.loads(said.out)] == [
        ("failed", "The upload ended unexpectedly.")
    ]


def test_syncing_what_is_synced_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = uploading(monkeypatch)
    said = call(Trainer(), "wandb", "sync", SYNCED)
    assert (said.code, said.out, asked) == (0, "Nothing waits.\n", [])
    assert "is synced already" in said.err
    assert [one["state"] for one in json.loads(call(Trainer(), "wandb", "sync", SYNCED, "--json").out)] == ["synced"]


@pytest.mark.parametrize("arguments", [(), (OFFLINE, "--all")])
def test_syncing_wants_runs_or_all_of_them(arguments: tuple[str, ...]) -> None:
    said = call(Trainer(), "wandb", "sync", *arguments)
    assert said.code == 2
    assert "or --all" in said.err


def probing(monkeypatch: pytest.MonkeyPatch, *found: Finding) -> list[Json]:
    asked: list[Json] = []

    def findings(root: Path, extras: Json) -> Iterator[Finding]:
        asked.append(extras)
        yield from found

    monkeypatch.setattr("mosaic.sidecar.wandb_diagnostics.run_diagnostics", findings)
    return asked


def test_a_probe_says_one_line_for_each_stretch_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Finding(name, "ok", "fine") for name in CHECK_NAMES[:-1]] + [
        Finding("key", "fail", "no key", "Store yours.")
    ]
    asked = probing(monkeypatch, *found)
    said = call(Trainer(), "wandb", "probe")
    assert said.code == 1
    assert [line.split()[:2] for line in said.out.splitlines()] == [[one.name, one.state] for one in found]
    assert said.out.splitlines()[-1].endswith("no key. Store yours.")
    told = json.loads(call(Trainer(), "wandb", "probe", OFFLINE, "--vpn", "--json").out)
    assert (told["ok"], told["findings"][-1]["todo"]) == (False, "Store yours.")
    assert asked == [{}, {"wandb_https_proxy": "p:1", "wandb_use_vpn_proxy": True}]


def test_a_probe_that_finds_the_way_clear_ends_with_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    probing(monkeypatch, *(Finding(name, "ok", "fine") for name in CHECK_NAMES))
    assert call(Trainer(), "wandb", "probe").code == 0
