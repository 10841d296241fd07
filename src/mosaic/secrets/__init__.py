"""API keys: in the environment, the system keyring, or one file of the user's own. Never in a workspace.

`find_secret("wandb_api_key")` looks in the environment first. Configs, records and arguments hold a reference such as
`secret:wandb_api_key`, which means nothing to anybody who does not have the store.
"""

from mosaic.secrets.payloads import storing_secrets, without_secrets
from mosaic.secrets.proxies import wandb_environment
from mosaic.secrets.store import (
    VARIABLES,
    brought_along,
    find_secret,
    forget_secret,
    keep_secret,
    place_of,
    put_secret,
    reference,
    secret_behind,
)

__all__ = [
    "VARIABLES",
    "brought_along",
    "find_secret",
    "forget_secret",
    "keep_secret",
    "place_of",
    "put_secret",
    "reference",
    "secret_behind",
    "storing_secrets",
    "wandb_environment",
    "without_secrets",
]
