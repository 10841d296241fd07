"""Whether W&B can be talked to, asked once and briefly, and what is wrong if not, in plain words.

W&B's own client retries for minutes to days; nothing of it is started before this says yes. Standard library only.
"""

from __future__ import annotations

import base64
import functools
import http.client
import json
import netrc
import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from mosaic.secrets.wandb_diagnostics import SERVER_VARIABLE, STEP_TIMEOUT_S, query_server_url

_QUERY = {"query": "query Viewer { viewer { id entity } }", "operationName": "Viewer"}
_MAX_REPLY_BYTES = 1 << 20


class WandbProblem(NamedTuple):
    message: str
    """A sentence without its full stop."""
    is_permanent: bool = False
    """Trying again helps nobody before the user has done something."""
    advice: str = ""
    """What the user can do, as a sentence."""
    is_from_server: bool = False
    """W&B itself said no; otherwise nobody spoke with it."""


NO_KEY_PROBLEM = WandbProblem("No W&B API key is known", True, "Give one: mosaic wandb login.")
_STATUS_PROBLEMS = {
    401: WandbProblem("W&B does not know this API key (401)", True, "Give another one: mosaic wandb login.", True),
    403: WandbProblem("W&B does not allow this (403)", True, "Check the key, the entity and the project.", True),
    404: WandbProblem(
        "W&B does not know this project or entity (404)", True, "Check the entity and the project.", True
    ),
    429: WandbProblem("W&B asks to wait (429: too many requests)", is_from_server=True),
}


def server_url(env: Mapping[str, str]) -> str:
    """The environment's, else what wandb says; empty where it says nothing."""
    told = env.get(SERVER_VARIABLE, "").strip()
    return (told or _cached_server_url(tuple(sorted(env.items())))).rstrip("/")


@functools.cache
def _cached_server_url(env: tuple[tuple[str, str], ...]) -> str:
    """It takes most of a second to ask."""
    return query_server_url(dict(env)) or ""


def api_key(env: Mapping[str, str]) -> str | None:
    """The environment's, else the one that `wandb login` once left in ~/.netrc."""
    told = env.get("WANDB_API_KEY", "").strip()
    if told:
        return told
    path = netrc_path(env)
    if not path.exists():
        return None
    try:
        found = netrc.netrc(path).authenticators(urlsplit(server_url(env)).hostname or "")
    except (OSError, netrc.NetrcParseError):
        return None
    return found[2] if found else None


def netrc_path(env: Mapping[str, str]) -> Path:
    return Path(env.get("NETRC") or Path(env.get("HOME", "~")).expanduser() / ".netrc")


def check_connection(env: Mapping[str, str]) -> WandbProblem | None:
    """None: W&B answers, and knows the key."""
    key = api_key(env)
    if key is None:
        return NO_KEY_PROBLEM
    url = server_url(env)
    if not url:
        return WandbProblem("wandb does not say where its server is", True, f"Set {SERVER_VARIABLE}.")
    credentials = base64.b64encode(f"api:{key}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
    try:
        request = urllib.request.Request(f"{url}/graphql", json.dumps(_QUERY).encode(), headers)
        with _build_opener(env, url).open(request, timeout=_timeout_s(env)) as reply:
            told = json.loads(reply.read(_MAX_REPLY_BYTES))
        if told["data"]["viewer"] is None:
            return _STATUS_PROBLEMS[401]
    except urllib.error.HTTPError as error:
        return problem_from_status(error.code)
    except urllib.error.URLError as error:
        return problem_from_error(error.reason)
    except (KeyError, TypeError):
        return WandbProblem(f"What answers at {url} is not W&B", True, f"Check {SERVER_VARIABLE}.")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return problem_from_error(error)
    return None


def _timeout_s(env: Mapping[str, str]) -> float:
    """Whoever wants to wait less for W&B says so as for its own client."""
    try:
        return min(STEP_TIMEOUT_S, max(0.1, float(env["WANDB_INIT_TIMEOUT"])))
    except (KeyError, ValueError):
        return STEP_TIMEOUT_S


def problem_from_status(status: int) -> WandbProblem:
    known = _STATUS_PROBLEMS.get(status)
    if known is not None:
        return known
    if status >= 500:
        return WandbProblem(f"W&B has a fault of its own ({status})", is_from_server=True)
    return WandbProblem(f"W&B refused the request ({status})", is_from_server=True)


def problem_from_error(error: object) -> WandbProblem:
    if isinstance(error, ssl.SSLError):
        return WandbProblem(
            "W&B cannot be reached (no secure connection: the certificate was not accepted)",
            advice="Check the proxy and the machine's certificates: mosaic wandb probe.",
        )
    if isinstance(error, TimeoutError):
        return WandbProblem("W&B cannot be reached (no answer)")
    if isinstance(error, ConnectionRefusedError):
        return WandbProblem("W&B cannot be reached (refused)")
    if isinstance(error, socket.gaierror):
        return WandbProblem("W&B cannot be reached (its name is not known: is there a network?)")
    if isinstance(error, ValueError):
        return WandbProblem("W&B cannot be reached (what came back is no answer)")
    return problem_from_output(str(error))


_OUTPUT_PATTERNS = (
    (r"Fatal error while uploading", "The upload to W&B broke off"),
    (r"refused", "W&B cannot be reached (refused)"),
    (r"no such host|name resolution|Name or service", "W&B cannot be reached (its name is not known)"),
    (r"x509|certificate|tls:", "W&B cannot be reached (no secure connection)"),
    (r"deadline exceeded|[Tt]imed? ?out", "W&B cannot be reached (no answer)"),
    (r"EOF|reset by peer|broken pipe|closed", "The connection to W&B was broken off"),
)


def problem_from_output(text: str) -> WandbProblem:
    """Of what W&B's client said."""
    status = re.search(r"\bHTTP (\d{3})\b|\bstatus(?: code)?:? (\d{3})\b", text)
    if status:
        return problem_from_status(int(status[1] or status[2]))
    if re.search(r"permission denied|unauthorized|API key|not logged in", text, re.IGNORECASE):
        return _STATUS_PROBLEMS[401] if "permission" not in text.lower() else _STATUS_PROBLEMS[403]
    for pattern, words in _OUTPUT_PATTERNS:
        if re.search(pattern, text):
            return WandbProblem(words)
    said = " ".join(text.split())[:200].rstrip(".")
    return WandbProblem(f"The upload to W&B failed ({said})" if said else "The upload to W&B failed")


def _build_opener(env: Mapping[str, str], url: str) -> urllib.request.OpenerDirector:
    """With the proxies of `env`, not of this process."""
    proxies = {
        kind: address
        for kind in ("http", "https")
        if (address := env.get(f"{kind}_proxy") or env.get(f"{kind.upper()}_PROXY"))
    }
    direct = {"no": env.get("no_proxy") or env.get("NO_PROXY") or ""}
    if urllib.request.proxy_bypass_environment(urlsplit(url).hostname or "", direct):  # type: ignore[attr-defined]
        proxies = {}
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
