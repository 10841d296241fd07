"""`mosaic actors` and `mosaic llm`: who can act, and the key that one of them needs."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from tests.helpers.cli_trainer import call

from mosaic.base import secret_store as secrets

KEY = "sk-canary0123456789"


def test_actors_are_listed_with_what_they_need() -> None:
    """R9.2: descriptors."""
    rows = {row["kind"]: row for row in json.loads(call(None, "actors", "--json").out)}
    assert {"human", "random", "policy", "script", "llm", "bdi"} <= rows.keys()
    assert rows["human"]["needs"] == ["window"]
    assert rows["llm"]["is_discrete_only"] is True
    assert "frozen_lake" in rows["bdi"]["examples"]
    table = call(None, "actors").out
    assert "policy:…" in table
    assert "a run or a file" in table


def test_one_actor_is_explained_with_its_options() -> None:
    result = call(None, "actors", "llm")
    assert (result.code, "max_calls" in result.out, "temperature" in result.out) == (0, True, True)
    assert "Did you mean 'llm'" in call(None, "actors", "llmm").err


def test_actors_are_listed_without_importing_what_they_use() -> None:
    code = (
        "import sys; from mosaic.worker.actor_registry import discover_actors; discover_actors(); "
        "print([name for name in ('gymnasium', 'numpy', 'torch', 'httpx', 'agentspeak', 'mosaic.worker.actors') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "keyring", secrets.KeyringClient())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.usefixtures("no_keyring")
def test_the_key_of_language_models_is_stored_and_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "mosaic llm login" in call(None, "llm", "status").out
    monkeypatch.setattr(sys, "stdin", io.StringIO(KEY + "\n"))
    result = call(None, "llm", "login")
    assert (result.code, "stored in" in result.out, KEY in result.out + result.err) == (0, True, False)
    assert secrets.find_secret("openai_api_key") == KEY
    assert json.loads(call(None, "llm", "status", "--json").out) == {"key": "file"}
    assert call(None, "llm", "logout").out == "Deleted the key.\n"
    assert secrets.find_secret("openai_api_key") is None


def test_a_key_as_an_argument_is_refused_and_not_repeated() -> None:
    result = call(None, "llm", "login", KEY)
    assert (result.code, KEY in result.out + result.err) == (2, False)
    assert "mosaic llm login < key.txt" in result.err
