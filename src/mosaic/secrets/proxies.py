"""How W&B is reached: the key and the proxies that its processes get in their environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from mosaic.secrets import dotenv
from mosaic.secrets.secret_store import find_secret, is_reference, resolve_reference

if TYPE_CHECKING:
    from mosaic.contracts.payload import WandbArtifacts

PROXY_VARIABLES = {"http": "WANDB_VPN_HTTP_PROXY", "https": "WANDB_VPN_HTTPS_PROXY"}
"""Where a workspace's `.env` names the proxies of a VPN."""
PROXY_SECRET_NAMES = {"http": "wandb_vpn_http_proxy", "https": "wandb_vpn_https_proxy"}
"""What the secret store calls those of the user's own settings: an address may hold a password."""
EMAIL_VARIABLE = "WANDB_USER_EMAIL"
"""Whom W&B attributes a run to that was uploaded with a service account's key."""
NO_PROXY_HOSTS = ("localhost", "127.0.0.1", "::1")
"""What no proxy stands before."""
_SCHEMES = ("http", "https", "socks5", "socks5h")


class Proxies(NamedTuple):
    http: str | None
    https: str | None
    problems: list[str]
    """One sentence for each thing that was passed over; without any password."""


class WandbEnvironment(NamedTuple):
    variables: dict[str, str]
    """To be laid over the environment of a process that talks to W&B."""
    problems: list[str]


def wandb_environment(wandb: WandbArtifacts, root: Path, inherited: Mapping[str, str] = os.environ) -> WandbEnvironment:
    """For the `artifacts.wandb` of a payload in the workspace at `root`: the API key, the email and the proxies."""
    found = resolve_proxies(wandb, root)
    variables = proxy_variables(found, inherited)
    key = wandb_key(wandb)
    if key:
        variables["WANDB_API_KEY"] = key
    if wandb.email:
        variables[EMAIL_VARIABLE] = wandb.email
    return WandbEnvironment(variables, found.problems)


def wandb_key(wandb: WandbArtifacts) -> str | None:
    """The one that the config refers to, else the user's."""
    return (resolve_reference(wandb.api_key) if wandb.api_key else None) or find_secret("wandb_api_key")


def resolve_proxies(wandb: WandbArtifacts, root: Path) -> Proxies:
    """Those of the config, else those of `.env`, else the user's own; and only where the VPN box is ticked."""
    told = {"http": _resolve_value(wandb.http_proxy), "https": _resolve_value(wandb.https_proxy)}
    if not wandb.use_vpn_proxy:
        problems = [
            f"wandb_{kind}_proxy is set but wandb_use_vpn_proxy is not: it has no effect."
            for kind in told
            if told[kind]
        ]
        return Proxies(None, None, problems)
    problems = []
    if not any(told.values()):
        values, problems = dotenv.load_workspace_dotenv(root)
        told = {kind: values.get(name) for kind, name in PROXY_VARIABLES.items()}
    if not any(told.values()):
        told = {kind: find_secret(name) for kind, name in PROXY_SECRET_NAMES.items()}
    usable = {kind: normalize_address(value) for kind, value in told.items() if value}
    for kind in [kind for kind in told if told[kind]]:
        if usable[kind] is None:
            problems.append(f"The {kind} proxy for W&B is no address; expected one such as http://10.0.0.1:3128.")
    if not any(told.values()):
        problems.append(
            "wandb_use_vpn_proxy is set, but no proxy is named. "
            f"Set wandb_https_proxy, or {PROXY_VARIABLES['https']} in {root / '.env'}"
        )
    # W&B speaks HTTPS: whoever names one proxy means it for that.
    http, https = usable.get("http"), usable.get("https")
    return Proxies(http or https, https or http, problems)


def proxy_variables(proxies: Proxies, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    if not (proxies.http or proxies.https):
        return {}
    variables: dict[str, str] = {}
    for name, value in (("http_proxy", proxies.http), ("https_proxy", proxies.https)):
        # Half of the world reads them in small letters and half in capitals.
        variables |= {name: value or "", name.upper(): value or ""}
    direct = inherited.get("NO_PROXY") or inherited.get("no_proxy") or ""
    hosts = [host.strip() for host in direct.split(",") if host.strip()]
    kept = ",".join([*hosts, *(host for host in NO_PROXY_HOSTS if host not in hosts)])
    return {**variables, "no_proxy": kept, "NO_PROXY": kept}


def normalize_address(text: str) -> str | None:
    """With a scheme, or None where it names no host."""
    address = text.strip() if "//" in text else f"http://{text.strip()}"
    try:
        parts = urlsplit(address)
        is_good = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    return address if is_good and not any(char.isspace() for char in address) else None


def strip_credentials(address: str) -> str:
    """An address as it may be shown: without user and password."""
    return address.rsplit("@", 1)[-1] if "@" in address else address.split("//", 1)[-1]


def _resolve_value(value: str | None) -> str | None:
    if value is None or not value.strip():
        return None
    return resolve_reference(value) if is_reference(value) else value
