"""Taking secrets out of what a user submits, before anything of it is written, judged or told."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from mosaic.secrets.store import is_reference, keep_secret, reference

_ENDINGS = ("apikey", "password", "passwd", "secret", "token")
_PROXY_ENDING = "proxy"
Replace = Callable[[str, str], str]
"""The name of a secret and its value; what to write instead."""


def without_secrets(data: Any) -> Any:
    """A copy with references in place of secrets. Nothing is stored: this is for those who only look."""
    return _replaced(data, lambda name, value: reference(name))


def storing_secrets(data: Any) -> Any:
    """A copy with references in place of secrets, which are in the store from now on."""
    return _replaced(data, keep_secret)


def _replaced(data: Any, replace: Replace, key: str = "") -> Any:
    if isinstance(data, dict):
        return {name: _replaced(value, replace, str(name)) for name, value in data.items()}
    if isinstance(data, list):
        return [_replaced(value, replace, key) for value in data]
    if isinstance(data, str) and is_secret(key, data):
        return replace(_name(key), data)
    return data


def is_secret(key: str, value: str) -> bool:
    """By the name of its key; of a proxy's address, when it holds a password."""
    if not value.strip() or is_reference(value):
        return False
    word = re.sub(r"[^a-z0-9]", "", key.lower())
    if word.endswith(_PROXY_ENDING):
        return has_password(value)
    return word.endswith(_ENDINGS)


def has_password(address: str) -> bool:
    try:
        return urlsplit(address if "//" in address else f"//{address}").password is not None
    except ValueError:  # no address at all, so nobody knows what it holds
        return "@" in address


def _name(key: str) -> str:
    return re.sub(r"[^a-z0-9_.-]+", "_", key.lower()).lstrip("_.-0123456789")[:70] or "secret"
