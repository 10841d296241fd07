"""API keys: in the environment, the system keyring, or one file of the user's own. Never in a workspace.

`find_secret("wandb_api_key")` looks in the environment first. Configs, records and arguments hold a reference such as
`secret:wandb_api_key`, which means nothing to anybody who does not have the store.
"""

from mosaic.secrets.payload_redaction import redact_secrets, store_secrets
from mosaic.secrets.proxies import wandb_environment
from mosaic.secrets.secret_store import (
    SECRET_VARIABLES,
    add_secret,
    additional_secret_names,
    delete_secret,
    find_secret,
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
    "put_secret",
    "redact_secrets",
    "reference",
    "resolve_reference",
    "secret_location",
    "store_secrets",
    "wandb_environment",
]
