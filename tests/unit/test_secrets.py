from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Any

import pytest

from mosaic.base import secret_store as secrets
from mosaic.contracts.errors import BadInput


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "keyring", secrets.KeyringClient())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


class SystemKeyring:
    """Replaces the process that accesses the real one."""

    def __init__(self) -> None:
        self.stored: dict[str, str] = {}
        self.arguments: list[str] = []
        self.request_count = 0
        self.failure: Exception | None = None

    def __call__(self, command: list[str], *, input: str, **_: Any) -> CompletedProcess[str]:
        self.request_count += 1
        self.arguments += command
        if self.failure is not None:
            raise self.failure
        verb, name, value = json.loads(input)
        reply: Any = self.stored.get(name)
        if verb == "put":
            self.stored[name] = value
            reply = True
        elif verb == "delete":
            reply = self.stored.pop(name, None) is not None
        return CompletedProcess(command, 0, json.dumps(reply), "")


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> SystemKeyring:
    keyring = SystemKeyring()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("subprocess.run", keyring)
    return keyring


def test_without_a_keyring_a_key_is_stored_in_a_file_that_only_its_owner_can_read() -> None:
    assert secrets.find_secret("wandb_api_key") is None
    assert secrets.put_secret("wandb_api_key", " abc123\n") == "file"
    assert secrets.find_secret("wandb_api_key") == "abc123"
    path = secrets.secrets_path()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["secrets.json"]
    assert secrets.delete_secret("wandb_api_key")
    assert not secrets.delete_secret("wandb_api_key")
    assert secrets.secret_location("wandb_api_key") is None


def test_a_file_that_others_can_read_is_protected_when_it_is_next_written() -> None:
    secrets.put_secret("hf_token", "abc")
    secrets.secrets_path().chmod(0o644)
    secrets.put_secret("hf_token", "abc")
    assert stat.S_IMODE(secrets.secrets_path().stat().st_mode) == 0o600


def test_the_environment_precedes_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets.put_secret("hf_token", "stored")
    monkeypatch.setenv("HF_TOKEN", "from-env")
    assert secrets.find_secret("hf_token") == "from-env"
    assert secrets.secret_location("hf_token") == "environment"
    assert secrets.resolve_reference(secrets.reference("hf_token")) == "stored"


def test_a_reference_falls_back_to_the_environment_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert secrets.resolve_reference("secret:wandb_api_key") is None
    monkeypatch.setenv("WANDB_API_KEY", "from-env")
    assert secrets.resolve_reference("secret:wandb_api_key") == "from-env"
    assert secrets.resolve_reference("not a reference") is None


def test_a_relative_configuration_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "var")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert secrets.secrets_path() == tmp_path / ".config" / "mosaic" / "secrets.json"


def test_a_damaged_file_is_reported_and_left_unchanged() -> None:
    secrets.put_secret("hf_token", "abc")
    for text in ("{", "[]", '{"hf_token": 3}'):
        secrets.secrets_path().write_text(text)
        with pytest.raises(BadInput, match=r"secrets\.json is damaged"):
            secrets.put_secret("wandb_api_key", "xyz")
        assert secrets.secrets_path().read_text() == text


@pytest.mark.parametrize("value", ["", "  ", "two words", "line\nbreak", "\x7f"])
def test_an_invalid_key_is_refused_without_being_repeated(value: str) -> None:
    with pytest.raises(BadInput, match="one word without spaces") as refused:
        secrets.put_secret("hf_token", value)
    assert not value.strip() or value not in str(refused.value)


def test_a_keyring_is_preferred_and_no_file_is_created(system: SystemKeyring) -> None:
    assert secrets.put_secret("hf_token", "abc") == "keyring"
    assert secrets.find_secret("hf_token") == "abc"
    assert secrets.secret_location("hf_token") == "keyring"
    assert not secrets.secrets_path().exists()
    assert "abc" not in " ".join(system.arguments)
    assert secrets.delete_secret("hf_token")
    assert secrets.find_secret("hf_token") is None


@pytest.mark.parametrize("failure", [TimeoutExpired("python", 5.0), OSError("no bus")])
def test_a_keyring_that_hangs_or_fails_is_not_used_for_a_while(system: SystemKeyring, failure: Exception) -> None:
    system.failure = failure
    assert secrets.put_secret("hf_token", "abc") == "file"
    assert secrets.find_secret("hf_token") == "abc"
    assert system.request_count == 1


def test_the_key_of_a_config_does_not_replace_the_users() -> None:
    secrets.put_secret("wandb_api_key", "mine")
    assert secrets.add_secret("wandb_api_key", "mine") == "secret:wandb_api_key"
    assert secrets.add_secret("wandb_api_key", "other") == "secret:wandb_api_key-2"
    assert secrets.add_secret("wandb_api_key", "other") == "secret:wandb_api_key-2"
    assert secrets.add_secret("wandb_api_key", "third") == "secret:wandb_api_key-3"
    assert secrets.find_secret("wandb_api_key") == "mine"
    assert secrets.resolve_reference("secret:wandb_api_key-2") == "other"


def test_the_key_of_a_config_does_not_become_the_users_login() -> None:
    assert secrets.add_secret("wandb_api_key", "of-a-config") == "secret:wandb_api_key-2"
    assert secrets.find_secret("wandb_api_key") is None
    assert secrets.secret_location("wandb_api_key") is None
    assert secrets.resolve_reference("secret:wandb_api_key-2") == "of-a-config"


def test_secrets_anywhere_in_a_payload_become_references() -> None:
    extras = {"wandb_api_key": "K1", "wandb_http_proxy": "http://me:pw@proxy:3128", "wandb_https_proxy": "proxy:3128"}
    data = {"metadata": {"worker": {"config": {"extras": extras, "env_id": "X"}}, "ui": {"HF-Token": ["K2"]}}}
    before = json.dumps(data)
    clean = secrets.redact_secrets(data)
    assert not secrets.secrets_path().exists()
    stored = secrets.store_secrets(data)
    assert clean == json.loads(json.dumps(stored).replace('-2"', '"'))
    assert json.dumps(data) == before
    stored_extras = stored["metadata"]["worker"]["config"]["extras"]
    assert stored_extras["wandb_https_proxy"] == "proxy:3128"
    assert secrets.resolve_reference(stored_extras["wandb_api_key"]) == "K1"
    assert secrets.resolve_reference(stored_extras["wandb_http_proxy"]) == "http://me:pw@proxy:3128"
    assert stored["metadata"]["ui"] == {"HF-Token": ["secret:hf-token-2"]}
    assert secrets.store_secrets(stored) == stored


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("wandb_api_key", "abc", True),
        ("WANDB_APIKEY", "abc", True),
        ("password", "abc", True),
        ("wandb_api_key", "", False),
        ("wandb_api_key", "secret:wandb_api_key", False),
        ("env_id", "CartPole-v1", False),
        ("http_proxy", "user:pw@host:1", True),
        ("http_proxy", "http://user@host:1", False),
        ("http_proxy", "http://[me:pw@", True),
        ("key_map", "abc", False),
    ],
)
def test_secrets_are_recognized_by_their_keys(key: str, value: str, expected: bool) -> None:
    assert secrets.is_secret(key, value) is expected
