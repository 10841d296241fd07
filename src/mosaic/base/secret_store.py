"""API keys in the environment, the system keyring or a private file. Never in a workspace.

Configs, records and arguments contain a reference such as `secret:wandb_api_key`, which is useless without the store.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mosaic.base.files import config_folder, lock_private_folder, write_json
from mosaic.contracts.errors import BadInput

SECRET_VARIABLES = {"wandb_api_key": "WANDB_API_KEY", "hf_token": "HF_TOKEN", "openai_api_key": "OPENAI_API_KEY"}
"""Their names in the environment."""
REFERENCE_PREFIX = "secret:"
"""Precedes the name of a secret, never its value."""
ENVIRONMENT, KEYRING, FILE = "environment", "keyring", "file"
MIN_MASKED_LENGTH = 20
KEYRING_TIMEOUT_S = 5.0
"""After this the file is used instead."""
KEYRING_RETRY_AFTER_S = 60.0
"""How long a keyring that failed is not used."""
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,79}")
_SECRET_KEY_ENDINGS = ("apikey", "password", "passwd", "secret", "token")
_PROXY_KEY_ENDING = "proxy"


# --- the store


def find_secret(name: str) -> str | None:
    """Returns the environment's secret, else the stored one."""
    return _read_environment(name) or _read_stored(name)


def secret_location(name: str) -> str | None:
    """Returns `environment`, `keyring`, `file`, or None where it is not set."""
    if _read_environment(name):
        return ENVIRONMENT
    if _read_keyring(_check_name(name)):
        return KEYRING
    return FILE if name in read_secrets_file() else None


def put_secret(name: str, value: str) -> str:
    """Stores a secret and returns where: `keyring` or `file`."""
    value = value.strip()
    if not value or any(ord(char) < 33 or ord(char) == 127 for char in value):
        raise BadInput(f"{_check_name(name)}: not a valid key; expected one word without spaces. Copy it again.")
    is_in_keyring = keyring.request("put", _check_name(name), value) is True
    # An older one in the file would be found again when the keyring is locked.
    _set_in_file(name, None if is_in_keyring else value)
    return KEYRING if is_in_keyring else FILE


def delete_secret(name: str) -> bool:
    """Deletes a secret wherever it is stored; returns whether it was."""
    was_in_keyring = keyring.request("delete", _check_name(name)) is True
    return _set_in_file(name, None) or was_in_keyring


def add_secret(name: str, value: str) -> str:
    """Stores a secret of a config and returns the reference to it.

    It never gets the name under which the user logs in: other runs would use it.
    """
    value = value.strip()
    if _read_stored(name) == value:
        return reference(name)
    free = next(candidate for candidate in _additional_names(name) if _read_stored(candidate) in (None, value))
    put_secret(free, value)
    return reference(free)


def additional_secret_names(name: str) -> list[str]:
    """Lists the names under which secrets of configs are stored next to the user's."""
    return list(itertools.takewhile(lambda candidate: _read_stored(candidate) is not None, _additional_names(name)))


def delete_with_config_keys(name: str) -> int:
    """Deletes a secret and those of configs that are stored next to it; returns how many there were."""
    return sum(delete_secret(one) for one in [name, *additional_secret_names(name)])


def masked_config_keys(name: str) -> dict[str, str]:
    """By name: the last four characters of each key that was submitted in a config, if it is as long as keys are."""
    keys = {other: _read_stored(other) or "" for other in additional_secret_names(name)}
    return {other: f"…{key[-4:]}" if len(key) >= MIN_MASKED_LENGTH else "…" for other, key in keys.items()}


def _additional_names(name: str) -> Iterator[str]:
    return (f"{name}-{number}" for number in itertools.count(2))


def _read_environment(name: str) -> str:
    return os.environ.get(SECRET_VARIABLES.get(name, ""), "").strip()


def _read_stored(name: str) -> str | None:
    return _read_keyring(_check_name(name)) or read_secrets_file().get(name)


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is not a valid secret name; expected a-z, 0-9 and _ . - such as 'hf_token'.")
    return name


# --- references in configs


def reference(name: str) -> str:
    """Returns what a config contains in place of the secret."""
    return REFERENCE_PREFIX + _check_name(name)


def is_reference(text: str) -> bool:
    return text.startswith(REFERENCE_PREFIX) and _NAME.fullmatch(text.removeprefix(REFERENCE_PREFIX)) is not None


def resolve_reference(text: str) -> str | None:
    """Returns the secret that a reference names: the stored one, which precedes the environment's here."""
    name = text.removeprefix(REFERENCE_PREFIX)
    return _read_stored(name) or find_secret(name) if is_reference(text) else None


def redact_secrets(data: Any) -> Any:
    """Returns a copy of a submission with references in place of secrets, without storing them."""
    return _replace_secrets(data, lambda name, value: reference(name))


def store_secrets(data: Any) -> Any:
    """Stores the secrets of a submission and returns a copy with references in place of them."""
    return _replace_secrets(data, add_secret)


def _replace_secrets(data: Any, replace: Callable[[str, str], str], path: tuple[str, ...] = ()) -> Any:
    if isinstance(data, dict):
        return {name: _replace_secrets(value, replace, (*path, str(name))) for name, value in data.items()}
    if isinstance(data, list):
        return [_replace_secrets(value, replace, path) for value in data]
    if isinstance(data, str) and path and is_secret(path[-1], data):
        # `artifacts.wandb.api_key` has the name of the key that the user stores: wandb_api_key.
        key = "_".join(path[1:]) if path[0] == "artifacts" else path[-1]
        name = re.sub(r"[^a-z0-9_.-]+", "_", key.lower()).lstrip("_.-0123456789")[:70]
        return replace(name or "secret", data)
    return data


def is_secret(key: str, value: str) -> bool:
    """Decides by the name of the key; the address of a proxy is a secret if it contains a password."""
    if not value.strip() or is_reference(value):
        return False
    word = re.sub(r"[^a-z0-9]", "", key.lower())
    if word.endswith(_PROXY_KEY_ENDING):
        return _has_password(value)
    return word.endswith(_SECRET_KEY_ENDINGS)


def _has_password(address: str) -> bool:
    try:
        return urlsplit(address if "//" in address else f"//{address}").password is not None
    except ValueError:  # not a valid address
        return "@" in address


# --- the system keyring


class KeyringClient:
    """Accesses the system keyring in a child process: a keyring may wait forever to be unlocked."""

    SCRIPT = """
import json, sys
import keyring
verb, name, value = json.load(sys.stdin)
if verb == "put":
    keyring.set_password("mosaic", name, value)
    reply = keyring.get_password("mosaic", name) == value
elif verb == "get":
    reply = keyring.get_password("mosaic", name)
else:
    reply = keyring.get_password("mosaic", name) is not None
    if reply:
        keyring.delete_password("mosaic", name)
json.dump(reply, sys.stdout)
"""

    def __init__(self, timeout_s: float = KEYRING_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._retry_at = 0.0
        self._lock = threading.Lock()

    def request(self, verb: str, name: str, value: str = "") -> str | bool | None:
        """Returns None where there is no working keyring."""
        if importlib.util.find_spec("keyring") is None:
            return None
        with self._lock:  # so that the daemon's threads do not each wait for the same broken keyring
            if time.monotonic() < self._retry_at:
                return None
            try:
                # The value goes through a pipe: arguments are visible to all users.
                process = subprocess.run(
                    [sys.executable, "-P", "-c", self.SCRIPT],
                    input=json.dumps([verb, name, value]),
                    capture_output=True,
                    encoding="utf-8",
                    errors="replace",
                    timeout=self._timeout_s,
                    check=True,
                )
                reply: str | bool | None = json.loads(process.stdout)
                return reply
            except (OSError, ValueError, subprocess.SubprocessError):
                self._retry_at = time.monotonic() + KEYRING_RETRY_AFTER_S
                return None


keyring = KeyringClient()


def _read_keyring(name: str) -> str | None:
    value = keyring.request("get", name)
    return value if isinstance(value, str) and value else None


# --- the private file, for systems without a keyring


def secrets_path() -> Path:
    return config_folder() / "secrets.json"


def read_secrets_file() -> dict[str, str]:
    path = secrets_path()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadInput(f"The secrets in {path} cannot be read: {error.strerror or error}.") from None
    except ValueError:
        data = None
    if not isinstance(data, dict) or not all(isinstance(value, str) for value in data.values()):
        raise BadInput(f"{path} is damaged; expected a JSON object of names and keys. Fix or remove it.")
    return data


def _set_in_file(name: str, value: str | None) -> bool:
    """Sets a secret, or removes it with None; returns whether anything changed."""
    path = secrets_path()
    if value is None and not path.exists():
        return False
    try:
        with lock_private_folder(path.parent):
            data = read_secrets_file()
            is_changed = data.get(name) != value
            if is_changed:
                others = {key: secret for key, secret in data.items() if key != name}
                write_json(path, others if value is None else {**others, name: value}, mode=0o600)
            path.chmod(0o600)
            return is_changed
    except OSError as error:
        raise BadInput(
            f"The key cannot be stored in {path}: {error.strerror or error}. "
            "Make that folder writable, or set the key in the environment."
        ) from None
