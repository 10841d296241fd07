"""The real keyring library with test backends: one that works, one that hangs, one that fails."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mosaic.base import secret_store as secrets

pytest.importorskip("keyring", reason="the keyring extra is not installed")

BACKEND = """
import json, os, time
from keyring.backend import KeyringBackend

class Works(KeyringBackend):
    priority = 1

    def _read(self):
        return json.load(open(os.environ["KEYRING_FILE"])) if os.path.exists(os.environ["KEYRING_FILE"]) else {}

    def get_password(self, service, name):
        return self._read().get(f"{service}/{name}")

    def set_password(self, service, name, value):
        json.dump({**self._read(), f"{service}/{name}": value}, open(os.environ["KEYRING_FILE"], "w"))

    def delete_password(self, service, name):
        data = self._read()
        del data[f"{service}/{name}"]
        json.dump(data, open(os.environ["KEYRING_FILE"], "w"))

class Hangs(Works):
    def get_password(self, service, name):
        time.sleep(60)

    set_password = get_password

class Fails(Works):
    def get_password(self, service, name):
        raise RuntimeError("locked")
"""


@pytest.fixture
def keyring_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds what the system keyring stores."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "test_backend.py").write_text(BACKEND)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path / "lib"), os.environ.get("PYTHONPATH"))))
    )
    monkeypatch.setenv("KEYRING_FILE", str(tmp_path / "keyring.json"))
    return tmp_path / "keyring.json"


def use_backend(monkeypatch: pytest.MonkeyPatch, backend: str, timeout_s: float = 30.0) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", f"test_backend.{backend}")
    monkeypatch.setattr(secrets, "keyring", secrets.KeyringClient(timeout_s))


def test_a_key_is_stored_in_the_system_keyring_and_no_file_is_created(
    keyring_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_backend(monkeypatch, "Works")
    assert secrets.put_secret("hf_token", "abc") == "keyring"
    assert json.loads(keyring_file.read_text(encoding="utf-8")) == {"mosaic/hf_token": "abc"}
    assert secrets.find_secret("hf_token") == "abc"
    assert secrets.delete_secret("hf_token")
    assert json.loads(keyring_file.read_text(encoding="utf-8")) == {}
    assert not secrets.secrets_path().exists()


@pytest.mark.parametrize(("backend", "timeout_s"), [("Hangs", 0.5), ("Fails", 30.0)])
def test_a_keyring_that_hangs_or_fails_is_replaced_by_the_file(
    keyring_file: Path, monkeypatch: pytest.MonkeyPatch, backend: str, timeout_s: float
) -> None:
    use_backend(monkeypatch, backend, timeout_s)
    assert secrets.put_secret("hf_token", "abc") == "file"
    assert secrets.find_secret("hf_token") == "abc"
    assert secrets.read_secrets_file() == {"hf_token": "abc"}
