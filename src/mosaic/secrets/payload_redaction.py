"""Replaces secrets in a submission by references, before it is written, checked or shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from mosaic.secrets.secret_store import add_secret, is_reference, reference

_SECRET_KEY_ENDINGS = ("apikey", "password", "passwd", "secret", "token")
_PROXY_KEY_ENDING = "proxy"
ReplaceSecret = Callable[[str, str], str]
"""Maps the name of a secret and its value to the replacement."""


def redact_secrets(data: Any) -> Any:
    """Returns a copy with references in place of secrets, without storing them."""
    return _replace_secrets(data, lambda name, value: reference(name))


def store_secrets(data: Any) -> Any:
    """Stores the secrets and returns a copy with references in place of them."""
    return _replace_secrets(data, add_secret)


def _replace_secrets(data: Any, replace: ReplaceSecret, path: tuple[str, ...] = ()) -> Any:
    if isinstance(data, dict):
        return {name: _replace_secrets(value, replace, (*path, str(name))) for name, value in data.items()}
    if isinstance(data, list):
        return [_replace_secrets(value, replace, path) for value in data]
    if isinstance(data, str) and path and is_secret(path[-1], data):
        # `artifacts.wandb.api_key` has the name of the key that the user stores: wandb_api_key.
        is_artifact = path[0] == "artifacts"
        return replace(_secret_name("_".join(path[1:]) if is_artifact else path[-1]), data)
    return data


def is_secret(key: str, value: str) -> bool:
    """Decides by the name of the key; the address of a proxy is a secret if it contains a password."""
    if not value.strip() or is_reference(value):
        return False
    word = re.sub(r"[^a-z0-9]", "", key.lower())
    if word.endswith(_PROXY_KEY_ENDING):
        return has_password(value)
    return word.endswith(_SECRET_KEY_ENDINGS)


def has_password(address: str) -> bool:
    try:
        return urlsplit(address if "//" in address else f"//{address}").password is not None
    except ValueError:  # not a valid address
        return "@" in address


def _secret_name(key: str) -> str:
    return re.sub(r"[^a-z0-9_.-]+", "_", key.lower()).lstrip("_.-0123456789")[:70] or "secret"
