"""Where secrets are kept and found: the environment, then the system keyring, then a file."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from mosaic.contracts.errors import BadInput
from mosaic.secrets import keyring_client, secrets_file

SECRET_VARIABLES = {"wandb_api_key": "WANDB_API_KEY", "hf_token": "HF_TOKEN"}
"""What the environment calls them."""
REFERENCE_PREFIX = "secret:"
"""How a reference begins. What stands behind it is a name, never a value."""
ENVIRONMENT, KEYRING, FILE = "environment", "keyring", "file"
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,79}")


def reference(name: str) -> str:
    """What a config says in place of the secret."""
    return REFERENCE_PREFIX + _check_name(name)


def find_secret(name: str) -> str | None:
    """The environment's, else the stored one."""
    return os.environ.get(SECRET_VARIABLES.get(name, ""), "").strip() or _read_stored(name)


def resolve_reference(text: str) -> str | None:
    """What a reference stands for. A reference names the store's, so that one wins over the environment's."""
    name = text.removeprefix(REFERENCE_PREFIX)
    return _read_stored(name) or find_secret(name) if is_reference(text) else None


def is_reference(text: str) -> bool:
    return text.startswith(REFERENCE_PREFIX) and _NAME.fullmatch(text.removeprefix(REFERENCE_PREFIX)) is not None


def secret_location(name: str) -> str | None:
    """`environment`, `keyring`, `file`, or nothing where nobody has it."""
    if os.environ.get(SECRET_VARIABLES.get(name, ""), "").strip():
        return ENVIRONMENT
    if keyring_client.get(_check_name(name)):
        return KEYRING
    return FILE if name in secrets_file.read_secrets() else None


def put_secret(name: str, value: str) -> str:
    """Stores it and says where: `keyring` or `file`."""
    value = value.strip()
    if not value or any(ord(char) < 33 or ord(char) == 127 for char in value):
        raise BadInput(f"{_check_name(name)}: this is no key; expected one word without spaces. Copy it again.")
    if keyring_client.put(_check_name(name), value):
        secrets_file.set_or_remove(name, None)  # or an older one would come back when the keyring is locked
        return KEYRING
    secrets_file.set_or_remove(name, value)
    return FILE


def delete_secret(name: str) -> bool:
    """From everywhere it was stored; whether there was anything to forget."""
    was_there = keyring_client.delete(_check_name(name))
    return secrets_file.set_or_remove(name, None) or was_there


def add_secret(name: str, value: str) -> str:
    """Stores it beside what is there already under that name, and gives the reference to it.

    A config that brings a key of its own does not replace the one that its user has logged in with.
    """
    value = value.strip()
    chosen = next(candidate for candidate in _candidate_names(name) if _read_stored(candidate) in (None, value))
    put_secret(chosen, value)
    return reference(chosen)


def additional_secret_names(name: str) -> list[str]:
    """The names under which secrets of configs are stored beside the user's own."""
    others = itertools.islice(_candidate_names(name), 1, None)
    return list(itertools.takewhile(lambda candidate: _read_stored(candidate) is not None, others))


def _candidate_names(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in itertools.count(2))


def secrets_file_path() -> Path:
    return secrets_file.secrets_path()


def _read_stored(name: str) -> str | None:
    return keyring_client.get(_check_name(name)) or secrets_file.read_secrets().get(name)


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is no name of a secret; expected small letters, digits and _ . - such as 'hf_token'.")
    return name
