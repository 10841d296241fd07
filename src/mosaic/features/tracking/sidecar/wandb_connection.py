"""Decides whether W&B can be reached, for uploads, for `mosaic wandb probe` and for the window's settings.

W&B's own client retries for minutes to days, so it is not started before `check_connection` has succeeded. Standard
library only.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import os
import re
import socket
import ssl
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from mosaic.features.tracking.sidecar.wandb_environment import (
    SERVER_VARIABLE,
    api_key,
    server_url,
    strip_credentials,
    wandb_environment,
)

CHECK_NAMES = ("package", "server", "proxy", "DNS", "TLS", "key")
"""In their order; each check uses what the ones before it established."""
STEP_TIMEOUT_S = 8.0
"""Time limit of each check; WANDB_INIT_TIMEOUT replaces it."""
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


def check_connection(env: Mapping[str, str]) -> WandbProblem | None:
    """Returns None where W&B answers and accepts the key, or where W&B's client may do what cannot be checked."""
    if api_key(env) is None:
        return NO_KEY_PROBLEM
    with closing(_ConnectionChecks(env, [])) as checks:
        try:
            for name in CHECK_NAMES[1:]:
                checks.run(name)
        except _CheckFailed as failure:
            return failure.problem
    return None


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    state: str
    """ok, fail or skipped."""
    found: str
    todo: str = ""


def run_checks(env: Mapping[str, str], problems: list[str]) -> Iterator[Finding]:
    """Yields a finding for each of CHECK_NAMES; after a failure, the rest is skipped."""
    with closing(_ConnectionChecks(env, problems)) as checks:
        has_failed = False
        for name in CHECK_NAMES:
            if has_failed and (name != "key" or api_key(env) is not None):
                yield Finding(name, "skipped", "there is a key; it was not tried" if name == "key" else "not checked")
                continue
            try:
                yield Finding(name, "ok", checks.run(name))
            except _CheckFailed as failure:
                # Without the package the rest can still be checked where the server is known.
                has_failed = name != "package"
                yield Finding(name, "fail", failure.found, failure.advice)


def run_diagnostics(root: Path, wandb: Mapping[str, Any]) -> Iterator[Finding]:
    """Runs the checks with the key and the proxies of a payload's `artifacts.wandb` in the workspace at `root`."""
    from mosaic.contracts.payload import WandbArtifacts

    yield from run_checks(*wandb_environment(WandbArtifacts.model_validate(wandb), root))


def diagnostics_command() -> list[str]:
    """Returns the command that prints one JSON line per check, for the window."""
    return [sys.executable, "-P", "-m", "mosaic.features.tracking.sidecar", "check"]


def diagnostics_request(root: Path, wandb: Mapping[str, Any]) -> str:
    """For the standard input of the command: `artifacts.wandb` of a payload, with references, never secrets."""
    return json.dumps({"root": str(root), "wandb": dict(wandb)})


def check_from_stdin() -> None:
    request = json.load(sys.stdin)
    for finding in run_diagnostics(Path(request["root"]), request["wandb"]):
        print(json.dumps(asdict(finding)), flush=True)
    os._exit(0)  # a thread may still wait for a name server


class _CheckFailed(Exception):
    """`found` and `advice` describe the failed check; `problem` describes what it means for an upload, if anything."""

    def __init__(self, problem: WandbProblem | None, found: str = "", advice: str = "") -> None:
        self.problem = problem
        self.found = found or (problem.message if problem else "")
        self.advice = advice or (problem.advice if problem else "") or "Try again later."
        super().__init__(self.found)


def _unreachable(reason: str, found: str = "", advice: str = "") -> _CheckFailed:
    return _CheckFailed(WandbProblem(f"W&B cannot be reached ({reason})"), found, advice)


class _ConnectionChecks:
    def __init__(self, env: Mapping[str, str], problems: list[str]) -> None:
        self._env = env
        self._problems = problems
        self._server = urlsplit("")
        self._proxy: SplitResult | None = None
        self._connection: HTTPConnection | None = None
        try:  # the variable that limits W&B's own client
            self._timeout_s = max(0.1, float(env["WANDB_INIT_TIMEOUT"]))
        except (KeyError, ValueError):
            self._timeout_s = STEP_TIMEOUT_S

    def run(self, name: str) -> str:
        """Runs one of CHECK_NAMES and returns what it found."""
        check: Callable[[], str] = getattr(self, f"_check_{name.lower()}")
        return check()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _check_package(self) -> str:
        try:
            return f"wandb {importlib.metadata.version('wandb')}"
        except importlib.metadata.PackageNotFoundError:
            raise _CheckFailed(NOT_INSTALLED_PROBLEM) from None

    def _check_server(self) -> str:
        url = server_url(self._env)
        if not url:
            raise _CheckFailed(WandbProblem("The address of W&B's server is unknown", True, f"Set {SERVER_VARIABLE}."))
        try:
            self._server = urlsplit(url)
            self._host = self._server.hostname or ""
            self._port = self._server.port or (443 if self._server.scheme == "https" else 80)
        except ValueError:
            self._host = ""
        scheme = self._server.scheme
        if scheme not in ("http", "https") or not self._host:
            advice = f"Set {SERVER_VARIABLE} to an address that starts with https://."
            raise _CheckFailed(WandbProblem(f"{url!r} is not a valid address", True, advice))
        # The proxy of the environment that was passed, not of this process.
        proxy = self._env.get(f"{scheme}_proxy") or self._env.get(f"{scheme.upper()}_PROXY")
        no_proxy = {"no": self._env.get("no_proxy") or self._env.get("NO_PROXY") or ""}
        if proxy and not urllib.request.proxy_bypass_environment(f"{self._host}:{self._port}", no_proxy):  # type: ignore[attr-defined]
            self._proxy = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
        return url + (f" (from {SERVER_VARIABLE})" if self._env.get(SERVER_VARIABLE, "").strip() else "")

    def _check_proxy(self) -> str:
        if self._problems:
            problem = WandbProblem(self._problems[0].rstrip("."))
            raise _CheckFailed(problem, advice="Fix that or disable the VPN proxy.")
        proxy = self._proxy
        if proxy is None:
            return "none; direct"
        if proxy.scheme != "http":  # W&B's client supports it
            found = f"a {proxy.scheme} proxy ({strip_credentials(proxy.geturl())}) cannot be checked"
            raise _CheckFailed(None, found, "W&B may still work: try mosaic wandb sync.")
        if not proxy.hostname:
            raise _CheckFailed(WandbProblem("The proxy's address has no host"), advice=_CHECK_PROXY)
        address = f"{proxy.hostname}:{proxy.port or 80}"
        self._connection = HTTPConnection(proxy.hostname, proxy.port or 80, timeout=self._timeout_s)
        if self._server.scheme == "https":
            self._connection.set_tunnel(self._host, self._port, self._proxy_headers())
        self._connect(self._connection, f"the proxy {address}", _CHECK_PROXY)
        return f"{address} is reachable"

    def _check_dns(self) -> str:
        if self._proxy is not None:
            return "resolved by the proxy"
        try:
            addresses = self._call(lambda: socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            reason = "no answer from the name server" if isinstance(error, TimeoutError) else "unknown host"
            found = f"{self._host} cannot be resolved ({describe_error(error)})"
            raise _unreachable(reason, found, _CHECK_NETWORK) from None
        return f"{self._host} is {addresses[0][4][0]}"

    def _check_tls(self) -> str:
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
            raise _CheckFailed(problem, found, advice) from None
        except (OSError, ValueError) as error:
            found = f"{where} does not speak TLS ({describe_error(error)})"
            raise _unreachable("TLS failed", found, "Check the address.") from None
        return f"{self._connection.sock.version()}, the certificate is trusted"

    def _check_key(self) -> str:
        key = api_key(self._env)
        if key is None:
            raise _CheckFailed(NO_KEY_PROBLEM)
        status, body = self._query_viewer(key)
        if status != 200:
            raise _CheckFailed(problem_from_status(status))
        try:
            viewer = json.loads(body)["data"]["viewer"]
        except (ValueError, KeyError, TypeError):
            url, advice = self._server.geturl(), f"Check {SERVER_VARIABLE} and the proxy."
            raise _CheckFailed(WandbProblem(f"The server at {url} is not W&B", True, advice)) from None
        if not viewer:
            raise _CheckFailed(_REJECTED_KEY_PROBLEM)
        return f"of {viewer.get('username') or viewer.get('entity') or 'an unnamed user'}"

    def _connect(self, connection: HTTPConnection, where: str, advice: str) -> None:
        try:
            self._call(connection.connect)
        except (OSError, UnicodeError, HTTPException) as error:
            refusal = re.match(r"Tunnel connection failed: (\d+)", str(error))
            if refusal is None:
                reason = describe_error(error)
                raise _unreachable(reason, f"{where} cannot be reached ({reason})", advice) from None
            if refusal[1] == "407":
                found, advice = "the proxy requires a user and a password", "Use http://USER:PASSWORD@HOST:PORT."
            else:
                found = f"the proxy refuses a connection to {self._host} (status {refusal[1]})"
                advice = "Ask the proxy's administrator, or use another one."
            raise _unreachable(f"the proxy answers {refusal[1]}", found, advice) from None

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
            raise _unreachable(describe_error(error)) from None

    def _call(self, function: Callable[[], Answer]) -> Answer:
        """Raises TimeoutError where it takes too long: resolving a name has no time limit of its own."""
        answer: Future[Answer] = Future()

        def target() -> None:
            try:
                answer.set_result(function())
            except Exception as error:
                answer.set_exception(error)

        threading.Thread(target=target, daemon=True).start()
        return answer.result(self._timeout_s + 0.5)


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
