"""Decides with which server, API key and proxies W&B is reached."""

from __future__ import annotations

import functools
import netrc
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from mosaic.base.secret_store import find_secret, is_reference, resolve_reference
from mosaic.contracts.errors import BadInput

if TYPE_CHECKING:
    from mosaic.contracts.payload import WandbArtifacts

PROXY_VARIABLES = {"http": "WANDB_VPN_HTTP_PROXY", "https": "WANDB_VPN_HTTPS_PROXY"}
"""Names of the VPN's proxies in a workspace's `.env`."""
OWN_PROXY_VARIABLES = {"http": "WANDB_HTTP_PROXY", "https": "WANDB_HTTPS_PROXY"}
"""Names under which wandb itself reads a proxy from its environment."""
PROXY_SECRET_NAMES = {"http": "wandb_vpn_http_proxy", "https": "wandb_vpn_https_proxy"}
"""Names of the user's proxies in the secret store: an address may contain a password."""
EMAIL_VARIABLE = "WANDB_USER_EMAIL"
"""The user that W&B attributes a run to if it was uploaded with a service account's key."""
SERVER_VARIABLE = "WANDB_BASE_URL"
NO_PROXY_HOSTS = ("localhost", "127.0.0.1", "::1")
_SCHEMES = ("http", "https", "socks5", "socks5h")
_SERVER_URL_SCRIPT = "import wandb; print(wandb.Settings().base_url)"
_SERVER_URL_TIMEOUT_S = 24.0


class Proxies(NamedTuple):
    http: str | None
    https: str | None
    problems: list[str]
    """One sentence for each value that is ignored; without passwords."""


def wandb_environment(
    wandb: WandbArtifacts, root: Path, inherited: Mapping[str, str] = os.environ
) -> tuple[dict[str, str], list[str]]:
    """Returns the environment of a process that talks to W&B, and problems with it.

    It has the key, email and proxies of `wandb`, the section of a payload in the workspace at `root`.
    """
    env = dict(inherited)
    if wandb.email:
        env[EMAIL_VARIABLE] = wandb.email
    try:
        proxies = resolve_proxies(wandb, root, inherited)
        env |= _proxy_variables(proxies, inherited)
        key = (resolve_reference(wandb.api_key) if wandb.api_key else None) or find_secret("wandb_api_key")
    except BadInput as error:  # a secret store that cannot be read
        return env, [str(error)]
    if key:
        env["WANDB_API_KEY"] = key
    return env, proxies.problems


def is_wandb_installed() -> bool:
    return find_spec("wandb") is not None


def server_url(env: Mapping[str, str]) -> str:
    """Returns the environment's server, else wandb's default; empty where wandb is not installed."""
    return (env.get(SERVER_VARIABLE, "").strip() or query_server_url(tuple(sorted(env.items())))).rstrip("/")


@functools.cache
def query_server_url(env: tuple[tuple[str, str], ...]) -> str:
    """Asks wandb, which reads settings files of its own; takes most of a second."""
    try:
        command = [sys.executable, "-P", "-c", _SERVER_URL_SCRIPT]
        process = subprocess.run(
            command,
            env=dict(env),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SERVER_URL_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (process.stdout.split() or [""])[-1]


def netrc_path(env: Mapping[str, str]) -> Path:
    return Path(env.get("NETRC") or Path(env.get("HOME", "~")).expanduser() / ".netrc")


def api_key(env: Mapping[str, str]) -> str | None:
    """Returns the environment's key, else the one that `wandb login` stored in ~/.netrc."""
    key, path = env.get("WANDB_API_KEY", "").strip(), netrc_path(env)
    if key or not path.exists():
        return key or None
    try:
        entry = netrc.netrc(path).authenticators(urlsplit(server_url(env)).hostname or "")
    except (OSError, netrc.NetrcParseError):
        return None
    return entry[2] if entry else None


def resolve_proxies(wandb: WandbArtifacts, root: Path, inherited: Mapping[str, str] = os.environ) -> Proxies:
    """Returns the proxies of the payload, else of `.env`, of the environment, or of the settings.

    None without `use_vpn_proxy`.
    """
    given = {"http": _resolve_value(wandb.http_proxy), "https": _resolve_value(wandb.https_proxy)}
    if not wandb.use_vpn_proxy:
        unused = [f"wandb_{kind}_proxy" for kind, value in given.items() if value]
        return Proxies(
            None, None, [f"{name} is set but wandb_use_vpn_proxy is not: it has no effect." for name in unused]
        )
    problems: list[str] = []
    if not any(given.values()):
        values, problems = load_workspace_dotenv(root)
        names = {kind: (name, OWN_PROXY_VARIABLES[kind]) for kind, name in PROXY_VARIABLES.items()}
        given = {kind: values.get(name) or values.get(own) for kind, (name, own) in names.items()}
    if not any(given.values()):
        given = {kind: inherited.get(name) for kind, name in OWN_PROXY_VARIABLES.items()}
    if not any(given.values()):
        given = {kind: find_secret(name) for kind, name in PROXY_SECRET_NAMES.items()}
    valid = {kind: normalize_address(value) for kind, value in given.items() if value}
    for kind, address in valid.items():
        if address is None:
            problems.append(
                f"The {kind} proxy for W&B is not a valid address; expected one such as http://10.0.0.1:3128."
            )
    if not valid:
        problems.append(
            "wandb_use_vpn_proxy is set, but there is no proxy. "
            f"Set wandb_https_proxy, or {PROXY_VARIABLES['https']} in {root / '.env'}"
        )
    # A single proxy is used for both.
    http, https = valid.get("http"), valid.get("https")
    return Proxies(http or https, https or http, problems)


def _proxy_variables(proxies: Proxies, inherited: Mapping[str, str]) -> dict[str, str]:
    if not (proxies.http or proxies.https):
        return {}
    inherited_hosts = inherited.get("NO_PROXY") or inherited.get("no_proxy") or ""
    hosts = [host.strip() for host in inherited_hosts.split(",") if host.strip()]
    no_proxy = ",".join([*hosts, *(host for host in NO_PROXY_HOSTS if host not in hosts)])
    variables = {"http_proxy": proxies.http or "", "https_proxy": proxies.https or "", "no_proxy": no_proxy}
    # Some programs read the lower-case names, some the upper-case ones.
    own = {OWN_PROXY_VARIABLES["http"]: proxies.http or "", OWN_PROXY_VARIABLES["https"]: proxies.https or ""}
    return variables | {name.upper(): value for name, value in variables.items()} | own


def normalize_address(text: str) -> str | None:
    """Adds a missing scheme; returns None for an invalid address."""
    address = text.strip() if "//" in text else f"http://{text.strip()}"
    try:
        parts = urlsplit(address)
        is_valid = parts.scheme in _SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    return address if is_valid and not any(char.isspace() for char in address) else None


def strip_credentials(address: str) -> str:
    """Removes user and password, so that the address can be shown."""
    return address.rsplit("@", 1)[-1] if "@" in address else address.split("//", 1)[-1]


def _resolve_value(value: str | None) -> str | None:
    if value is None or not value.strip():
        return None
    return resolve_reference(value) if is_reference(value) else value


class DotEnv(NamedTuple):
    values: dict[str, str]
    problems: list[str]
    """One sentence for each line that was skipped. Never its text: it may contain a secret."""


def load_workspace_dotenv(root: Path) -> DotEnv:
    """Reads the workspace's own `.env`, else, for a workspace `var`, the one next to it."""
    from dotenv.parser import parse_stream

    for path in (root / ".env", *([root.parent / ".env"] if root.name == "var" else [])):
        try:
            with open(path, encoding="utf-8") as file:
                bindings = list(parse_stream(file))
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            reason = "it is not valid UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror or error
            return DotEnv({}, [f"{path} cannot be read: {reason}."])
        values = {binding.key: binding.value for binding in bindings if binding.key and binding.value is not None}
        invalid = [binding.original for binding in bindings if binding.error or (binding.key and binding.value is None)]
        # The text of a binding includes the empty lines before it.
        lines = [text.line + text.string[: -len(text.string.lstrip())].count("\n") for text in invalid]
        return DotEnv(values, [f"{path}, line {line}: skipped; expected NAME=value." for line in lines])
    return DotEnv({}, [])
