"""Stores API keys in the environment, the system keyring or a private file. Never in a workspace.

Configs, records and arguments contain a reference such as `secret:wandb_api_key`, which is useless without the store.
"""

from mosaic.secrets.payload_redaction import redact_secrets, store_secrets
from mosaic.secrets.secret_store import (
    SECRET_VARIABLES,
    add_secret,
    additional_secret_names,
    delete_secret,
    find_secret,
    is_reference,
    put_secret,
    reference,
    resolve_reference,
    secret_location,
)

__all__ = [
    "SECRET_VARIABLES",
    "add_secret",
    "additional_secret_names",
    "delete_secret",
    "find_secret",
    "is_reference",
    "put_secret",
    "redact_secrets",
    "reference",
    "resolve_reference",
    "secret_location",
    "store_secrets",
]
