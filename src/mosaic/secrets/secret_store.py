"""Stores and finds secrets: in the environment, then the system keyring, then a file."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from mosaic.contracts.errors import BadInput
from mosaic.secrets import keyring_client, secrets_file

SECRET_VARIABLES = {"wandb_api_key": "WANDB_API_KEY", "hf_token": "HF_TOKEN"}
"""Their names in the environment."""
REFERENCE_PREFIX = "secret:"
"""Precedes the name of a secret, never its value."""
ENVIRONMENT, KEYRING, FILE = "environment", "keyring", "file"
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,79}")


def reference(name: str) -> str:
    """Returns what a config contains in place of the secret."""
    return REFERENCE_PREFIX + _check_name(name)


def find_secret(name: str) -> str | None:
    """Returns the environment's secret, else the stored one."""
    return _read_environment(name) or _read_stored(name)


def resolve_reference(text: str) -> str | None:
    """Returns the secret that a reference names: the stored one, which precedes the environment's here."""
    name = text.removeprefix(REFERENCE_PREFIX)
    return _read_stored(name) or find_secret(name) if is_reference(text) else None


def is_reference(text: str) -> bool:
    return text.startswith(REFERENCE_PREFIX) and _NAME.fullmatch(text.removeprefix(REFERENCE_PREFIX)) is not None


def secret_location(name: str) -> str | None:
    """Returns `environment`, `keyring`, `file`, or None where it is not set."""
    if _read_environment(name):
        return ENVIRONMENT
    if keyring_client.get(_check_name(name)):
        return KEYRING
    return FILE if name in secrets_file.read_secrets() else None


def put_secret(name: str, value: str) -> str:
    """Stores a secret and returns where: `keyring` or `file`."""
    value = value.strip()
    if not value or any(ord(char) < 33 or ord(char) == 127 for char in value):
        raise BadInput(f"{_check_name(name)}: not a valid key; expected one word without spaces. Copy it again.")
    is_in_keyring = keyring_client.put(_check_name(name), value)
    # An older one in the file would be found again when the keyring is locked.
    secrets_file.set_or_remove(name, None if is_in_keyring else value)
    return KEYRING if is_in_keyring else FILE


def delete_secret(name: str) -> bool:
    """Deletes a secret wherever it is stored; returns whether it was."""
    was_in_keyring = keyring_client.delete(_check_name(name))
    return secrets_file.set_or_remove(name, None) or was_in_keyring


def add_secret(name: str, value: str) -> str:
    """Stores a secret next to those of the same name, and returns the reference to it.

    The key of a config does not replace the one that its user has logged in with.
    """
    value = value.strip()
    free = next(candidate for candidate in _candidate_names(name) if _read_stored(candidate) in (None, value))
    put_secret(free, value)
    return reference(free)


def additional_secret_names(name: str) -> list[str]:
    """Lists the names under which secrets of configs are stored next to the user's."""
    others = itertools.islice(_candidate_names(name), 1, None)
    return list(itertools.takewhile(lambda candidate: _read_stored(candidate) is not None, others))


def _candidate_names(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in itertools.count(2))


def secrets_file_path() -> Path:
    return secrets_file.secrets_path()


def _read_environment(name: str) -> str:
    return os.environ.get(SECRET_VARIABLES.get(name, ""), "").strip()


def _read_stored(name: str) -> str | None:
    return keyring_client.get(_check_name(name)) or secrets_file.read_secrets().get(name)


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is not a valid secret name; expected a-z, 0-9 and _ . - such as 'hf_token'.")
    return name
