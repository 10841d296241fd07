"""Decides whether W&B can be reached and with which key, for uploads and for `mosaic wandb probe`.

W&B's own client retries for minutes to days, so it is not started before `check_connection` has succeeded. Standard
library only.
"""

from __future__ import annotations

import base64
import functools
import importlib.metadata
import importlib.util
import json
import netrc
import re
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from mosaic.sidecar.wandb_environment import strip_credentials

STEP_TIMEOUT_S = 8.0
"""Time limit of each check."""
SERVER_VARIABLE = "WANDB_BASE_URL"
_SERVER_URL_SCRIPT = "import wandb; print(wandb.Settings().base_url)"
_MAX_REPLY_BYTES = 1 << 20
_QUERY = {"query": "query Viewer { viewer { username entity } }", "operationName": "Viewer"}
_CHECK_NETWORK = "Check the network and the firewall. With a VPN, set its proxy."
_CHECK_PROXY = "Check the proxy's address, and whether the VPN is connected."

Answer = TypeVar("Answer")


class WandbProblem(NamedTuple):
    message: str
    """A sentence without its full stop."""
    is_permanent: bool = False
    """Retrying is useless until the user has done something."""
    advice: str = ""
    """What the user can do, as a sentence."""
    is_from_server: bool = False
    """W&B itself refused; otherwise it was not reached."""

    @property
    def sentence(self) -> str:
        return f"{self.message}. {self.advice}".strip()


class CheckFailed(Exception):
    """`found` and `advice` describe the failed check; `problem` describes what it means for an upload."""

    def __init__(self, problem: WandbProblem, found: str = "", advice: str = "") -> None:
        super().__init__(found or problem.message)
        self.problem = problem
        self.found = found or problem.message
        self.advice = advice or problem.advice or "Try again later."


NO_KEY_PROBLEM = WandbProblem("No W&B API key is stored", True, "Store one: mosaic wandb login.")
NOT_INSTALLED_PROBLEM = WandbProblem("wandb is not installed", True, "Install it: pip install 'mosaic-rl[wandb]'.")
_REJECTED_KEY_PROBLEM = WandbProblem(
    "W&B does not accept the API key (401)", True, "Store another one: mosaic wandb login.", True
)
_STATUS_PROBLEMS = {
    401: _REJECTED_KEY_PROBLEM,
    403: WandbProblem("W&B denies access (403)", True, "Check the key, the entity and the project.", True),
    404: WandbProblem("W&B has no such project or entity (404)", True, "Check the entity and the project.", True),
    429: WandbProblem("W&B received too many requests (429)", is_from_server=True),
}
_OUTPUT_PATTERNS = (
    (r"Fatal error while uploading", "The upload to W&B was interrupted"),
    (r"refused", "W&B cannot be reached (connection refused)"),
    (r"no such host|name resolution|Name or service", "W&B cannot be reached (unknown host)"),
    (r"x509|certificate|tls:", "W&B cannot be reached (TLS failed)"),
    (r"deadline exceeded|[Tt]imed? ?out", "W&B cannot be reached (no answer)"),
    (r"EOF|reset by peer|broken pipe|closed", "The connection to W&B was interrupted"),
)


def problem_from_status(status: int) -> WandbProblem:
    what = f"W&B has an internal error ({status})" if status >= 500 else f"W&B refused the request ({status})"
    return _STATUS_PROBLEMS.get(status, WandbProblem(what, is_from_server=True))


def problem_from_output(text: str) -> WandbProblem:
    """Turns an error message of W&B's client into a problem."""
    status = re.search(r"\bHTTP (\d{3})\b|\bstatus(?: code)?:? (\d{3})\b", text)
    if status:
        return problem_from_status(int(status[1] or status[2]))
    if "permission denied" in text.lower():
        return _STATUS_PROBLEMS[403]
    if re.search(r"unauthorized|API key|not logged in", text, re.IGNORECASE):
        return _REJECTED_KEY_PROBLEM
    for pattern, message in _OUTPUT_PATTERNS:
        if re.search(pattern, text):
            return WandbProblem(message)
    details = " ".join(text.split())[:200].rstrip(".")
    return WandbProblem(f"The upload to W&B failed ({details})" if details else "The upload to W&B failed")


def is_wandb_installed() -> bool:
    return importlib.util.find_spec("wandb") is not None


def server_url(env: Mapping[str, str]) -> str:
    """Returns the environment's server, else wandb's default; empty where wandb is not installed."""
    return (env.get(SERVER_VARIABLE, "").strip() or _cached_server_url(tuple(sorted(env.items())))).rstrip("/")


@functools.cache
def _cached_server_url(env: tuple[tuple[str, str], ...]) -> str:
    return query_server_url(dict(env))


def query_server_url(env: Mapping[str, str]) -> str:
    """Asks wandb, which reads settings files of its own; takes most of a second."""
    try:
        command = [sys.executable, "-P", "-c", _SERVER_URL_SCRIPT]
        process = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=3 * STEP_TIMEOUT_S)
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


def check_connection(env: Mapping[str, str]) -> WandbProblem | None:
    """Returns None where W&B answers and accepts the key."""
    if api_key(env) is None:
        return NO_KEY_PROBLEM
    with closing(ConnectionChecks(env)) as checks:
        try:
            checks.check_server()
            if checks.can_check_proxy:  # W&B's client supports proxies that we cannot check
                for check in (checks.check_proxy, checks.check_dns, checks.check_tls, checks.check_key):
                    check()
        except CheckFailed as failure:
            return failure.problem
    return None


class ConnectionChecks:
    """The checks in their order; each uses what the ones before it established, and returns what it found."""

    def __init__(self, env: Mapping[str, str], problems: list[str] | None = None) -> None:
        self._env = env
        self._problems = problems or []
        self._server = urlsplit("")
        self._connection: HTTPConnection | None = None
        try:  # the variable that limits W&B's own client
            self._timeout_s = min(STEP_TIMEOUT_S, max(0.1, float(env["WANDB_INIT_TIMEOUT"])))
        except (KeyError, ValueError):
            self._timeout_s = STEP_TIMEOUT_S

    def check_package(self) -> str:
        try:
            return f"wandb {importlib.metadata.version('wandb')}"
        except importlib.metadata.PackageNotFoundError:
            raise CheckFailed(NOT_INSTALLED_PROBLEM) from None

    def check_server(self) -> str:
        url = server_url(self._env)
        if not url:
            raise CheckFailed(WandbProblem("The address of W&B's server is unknown", True, f"Set {SERVER_VARIABLE}."))
        try:
            self._server = urlsplit(url)
            self._host = self._server.hostname or ""
            self._port = self._server.port or (443 if self._server.scheme == "https" else 80)
        except ValueError:
            self._host = ""
        if self._server.scheme not in ("http", "https") or not self._host:
            advice = f"Set {SERVER_VARIABLE} to an address that starts with https://."
            raise CheckFailed(WandbProblem(f"{url!r} is not a valid address", True, advice))
        return url + (f" (from {SERVER_VARIABLE})" if self._env.get(SERVER_VARIABLE, "").strip() else "")

    @property
    def _proxy(self) -> SplitResult | None:
        """Of the environment that was passed, not of this process."""
        scheme = self._server.scheme
        address = self._env.get(f"{scheme}_proxy") or self._env.get(f"{scheme.upper()}_PROXY")
        no_proxy = {"no": self._env.get("no_proxy") or self._env.get("NO_PROXY") or ""}
        if not address or urllib.request.proxy_bypass_environment(f"{self._host}:{self._port}", no_proxy):  # type: ignore[attr-defined]
            return None
        return urlsplit(address if "//" in address else f"http://{address}")

    @property
    def can_check_proxy(self) -> bool:
        return self._proxy is None or self._proxy.scheme == "http"

    def check_proxy(self) -> str:
        if self._problems:
            raise CheckFailed(WandbProblem(self._problems[0].rstrip(".")), advice="Fix that or disable the VPN proxy.")
        proxy = self._proxy
        if proxy is None:
            return "none; direct"
        if not self.can_check_proxy:
            found = f"a {proxy.scheme} proxy ({strip_credentials(proxy.geturl())}) cannot be checked"
            raise CheckFailed(WandbProblem(found), advice="W&B may still work: try mosaic wandb sync.")
        if not proxy.hostname:
            raise CheckFailed(WandbProblem("The proxy's address has no host"), advice=_CHECK_PROXY)
        address = f"{proxy.hostname}:{proxy.port or 80}"
        self._connection = HTTPConnection(proxy.hostname, proxy.port or 80, timeout=self._timeout_s)
        if self._server.scheme == "https":
            self._connection.set_tunnel(self._host, self._port, self._proxy_headers())
        self._connect(self._connection, f"the proxy {address}", _CHECK_PROXY)
        return f"{address} is reachable"

    def check_dns(self) -> str:
        if self._proxy is not None:
            return "resolved by the proxy"
        try:
            addresses = self._call(lambda: socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            reason = "no answer from the name server" if isinstance(error, TimeoutError) else "unknown host"
            found = f"{self._host} cannot be resolved ({describe_error(error)})"
            raise CheckFailed(WandbProblem(f"W&B cannot be reached ({reason})"), found, _CHECK_NETWORK) from None
        return f"{self._host} is {addresses[0][4][0]}"

    def check_tls(self) -> str:
        where = f"{self._host}:{self._port}"
        if self._connection is None:
            self._connection = HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            self._connect(self._connection, where, _CHECK_NETWORK)
        if self._server.scheme == "http":
            return "none: the server's address starts with http://"
        context = ssl.create_default_context(cafile=self._env.get("REQUESTS_CA_BUNDLE") or None)
        try:
            self._connection.sock = context.wrap_socket(self._connection.sock, server_hostname=self._host)
        except ssl.SSLCertVerificationError as error:
            problem = WandbProblem("W&B cannot be reached (untrusted certificate)", advice="Check: mosaic wandb probe.")
            found = f"the certificate of {where} is not trusted ({error.verify_message})"
            advice = "If your proxy intercepts TLS, set SSL_CERT_FILE and REQUESTS_CA_BUNDLE to its certificate."
            raise CheckFailed(problem, found, advice) from None
        except (OSError, ValueError) as error:
            found = f"{where} does not speak TLS ({describe_error(error)})"
            raise CheckFailed(WandbProblem("W&B cannot be reached (TLS failed)"), found, "Check the address.") from None
        return f"{self._connection.sock.version()}, the certificate is trusted"

    @property
    def has_key(self) -> bool:
        return api_key(self._env) is not None

    def check_key(self) -> str:
        key = api_key(self._env)
        if key is None:
            raise CheckFailed(NO_KEY_PROBLEM)
        status, body = self._query_viewer(key)
        if status != 200:
            raise CheckFailed(problem_from_status(status))
        try:
            viewer = json.loads(body)["data"]["viewer"]
        except (ValueError, KeyError, TypeError):
            url, advice = self._server.geturl(), f"Check {SERVER_VARIABLE} and the proxy."
            raise CheckFailed(WandbProblem(f"The server at {url} is not W&B", True, advice)) from None
        if not viewer:
            raise CheckFailed(_REJECTED_KEY_PROBLEM)
        return f"of {viewer.get('username') or viewer.get('entity') or 'an unnamed user'}"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _connect(self, connection: HTTPConnection, where: str, advice: str) -> None:
        try:
            self._call(connection.connect)
        except (OSError, UnicodeError, HTTPException) as error:
            refusal = re.match(r"Tunnel connection failed: (\d+)", str(error))
            if refusal is None:
                reason = describe_error(error)
                problem = WandbProblem(f"W&B cannot be reached ({reason})")
                raise CheckFailed(problem, f"{where} cannot be reached ({reason})", advice) from None
            problem = WandbProblem(f"W&B cannot be reached (the proxy answers {refusal[1]})")
            if refusal[1] == "407":
                found, advice = "the proxy requires a user and a password", "Use http://USER:PASSWORD@HOST:PORT."
            else:
                found = f"the proxy refuses a connection to {self._host} (status {refusal[1]})"
                advice = "Ask the proxy's administrator, or use another one."
            raise CheckFailed(problem, found, advice) from None

    def _proxy_headers(self) -> dict[str, str]:
        proxy = self._proxy
        if proxy is None or proxy.username is None:
            return {}
        return {"Proxy-Authorization": _basic(unquote(proxy.username), unquote(proxy.password or ""))}

    def _query_viewer(self, key: str) -> tuple[int, bytes]:
        assert self._connection is not None
        headers = {"Content-Type": "application/json", "Authorization": _basic("api", key), "User-Agent": "mosaic"}
        path = self._server.path.rstrip("/") + "/graphql"
        if self._proxy is not None and self._server.scheme == "http":
            path = f"http://{self._host}:{self._port}{path}"
            headers |= self._proxy_headers()
        try:
            self._connection.request("POST", path, json.dumps(_QUERY), headers)
            reply = self._connection.getresponse()
            return reply.status, reply.read(_MAX_REPLY_BYTES)
        except (OSError, HTTPException) as error:
            raise CheckFailed(WandbProblem(f"W&B cannot be reached ({describe_error(error)})")) from None

    def _call(self, function: Callable[[], Answer]) -> Answer:
        """Raises TimeoutError where it takes too long: resolving a name has no time limit of its own."""
        answers: list[Answer] = []
        errors: list[BaseException] = [TimeoutError()]

        def target() -> None:
            try:
                answers.append(function())
            except Exception as error:
                errors.insert(0, error)

        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        thread.join(self._timeout_s + 0.5)
        if answers:
            return answers[0]
        raise errors[0]


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def describe_error(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, (ConnectionError, HTTPException)):
        return "connection interrupted"
    return str(getattr(error, "strerror", None) or error or type(error).__name__).rstrip(".")
