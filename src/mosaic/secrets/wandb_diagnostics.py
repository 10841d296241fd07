"""Whether W&B can be reached, and if not, what stands in between: the package, DNS, the proxy, TLS or the key.

`python -m mosaic.secrets.wandb_diagnostics` runs the checks and prints one JSON line per finding; `run_diagnostics()`
starts it and reads its output. It is a process of its own because a name server may hang where no time limit of ours
reaches.
"""

from __future__ import annotations

import base64
import importlib.metadata
import json
import netrc
import os
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from mosaic.contracts.errors import MosaicError
from mosaic.secrets.proxies import strip_credentials, wandb_environment

STEP_TIMEOUT_S = 8.0
"""How long each thing that is asked may take."""
TOTAL_TIMEOUT_S = 60.0
SERVER_VARIABLE = "WANDB_BASE_URL"
OK, FAIL, SKIPPED = "ok", "fail", "skipped"
CHECK_NAMES = ("package", "server", "proxy", "DNS", "TLS", "key")
_SERVER_URL_SCRIPT = "import wandb; print(wandb.Settings().base_url)"
_MAX_REPLY_BYTES = 1 << 16
_QUERY = {"query": "query Viewer { viewer { username entity } }"}

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Finding:
    name: str
    state: str
    """ok, fail or skipped."""
    found: str
    todo: str = ""


class _CheckFailed(Exception):
    def __init__(self, found: str, todo: str) -> None:
        super().__init__(found)
        self.found = found
        self.todo = todo


# --- whoever wants to know


def diagnostics_command() -> list[str]:
    return [sys.executable, "-P", "-m", "mosaic.secrets.wandb_diagnostics"]


def format_request(root: Path, extras: Mapping[str, Any]) -> str:
    """For the standard input of `command`. It holds references, never secrets."""
    return json.dumps({"root": str(root), "extras": dict(extras)})


def run_diagnostics(root: Path, extras: Mapping[str, Any]) -> Iterator[Finding]:
    """As they come. All of NAMES are told of, whatever happens."""
    process = subprocess.Popen(
        diagnostics_command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    guard = threading.Timer(TOTAL_TIMEOUT_S, process.kill)
    guard.start()
    left = list(CHECK_NAMES)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(format_request(root, extras))
        process.stdin.close()
        for line in process.stdout:
            finding = Finding(**json.loads(line))
            left.remove(finding.name)
            yield finding
        process.wait()
    finally:
        guard.cancel()
        guard.join()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    for name in left:
        yield Finding(name, FAIL, f"no answer within {TOTAL_TIMEOUT_S:g} s", "Try again, or look at the network.")


# --- the process that looks


def main() -> int:
    asked = json.load(sys.stdin)
    try:
        found = wandb_environment(asked["extras"], Path(asked["root"]))
        os.environ.update(found.variables)
        problems = found.problems
    except MosaicError as error:
        problems = [str(error)]
    for finding in run_checks(os.environ, problems):
        print(json.dumps(asdict(finding)), flush=True)
    sys.stdout.flush()
    os._exit(0)  # a thread may still wait for a name server


def run_checks(env: Mapping[str, str], problems: list[str]) -> Iterator[Finding]:
    """What was found of each of NAMES, in that order. Behind a failure, the rest is skipped."""
    with closing(ConnectionChecks(env, problems)) as route:
        yield from _iter_findings(route)


def _iter_findings(checks: ConnectionChecks) -> Iterator[Finding]:
    is_clear = True
    for name, step in zip(CHECK_NAMES, checks.checks(), strict=True):
        if not is_clear and (name != "key" or checks.has_key):
            yield Finding(name, SKIPPED, "there is one; it was not tried" if name == "key" else "not looked at")
            continue
        try:
            yield Finding(name, OK, step())
        except _CheckFailed as failure:
            # A missing package ends nothing: its server is known by other means, or the next line says so.
            is_clear = name == "package"
            yield Finding(name, FAIL, failure.found, failure.todo)


class ConnectionChecks:
    """The way to W&B, one stretch after the other; each step uses what the ones before it found."""

    def __init__(self, environment: Mapping[str, str], problems: list[str]) -> None:
        self._environment = environment
        self._problems = problems
        self._server: SplitResult = urlsplit("")
        self._proxy: SplitResult | None = None
        self._socket: socket.socket | None = None

    def checks(self) -> tuple[Callable[[], str], ...]:
        return self.check_package, self.check_server, self.check_proxy, self.check_dns, self.check_tls, self.check_key

    def check_package(self) -> str:
        try:
            return f"wandb {importlib.metadata.version('wandb')}"
        except importlib.metadata.PackageNotFoundError:
            raise _CheckFailed("wandb is not installed", "pip install 'mosaic-rl[wandb]'") from None

    def check_server(self) -> str:
        told = self._environment.get(SERVER_VARIABLE, "").strip()
        address = told or query_server_url(self._environment)
        if address is None:
            raise _CheckFailed(
                "wandb does not say where its server is", f"Set {SERVER_VARIABLE}, or install the wandb extra."
            )
        self._server = urlsplit(address)
        if self._server.scheme not in ("http", "https") or not self._host:
            raise _CheckFailed(f"{address!r} is no address", f"Set {SERVER_VARIABLE} to one that begins with https://")
        return address + (f" (from {SERVER_VARIABLE})" if told else "")

    def check_proxy(self) -> str:
        if self._problems:
            raise _CheckFailed(self._problems[0], "Mend that, or switch the VPN's proxy off.")
        address = self._proxy_address()
        if address is None:
            return "none; direct"
        proxy = urlsplit(address if "//" in address else f"http://{address}")
        self._proxy = proxy
        todo = "Check the proxy's address, and whether the VPN is up."
        if not proxy.hostname:
            raise _CheckFailed("the proxy's address names no host", todo)
        if proxy.scheme != "http":
            raise _CheckFailed(
                f"a {proxy.scheme} proxy ({strip_credentials(address)}) cannot be looked through",
                "W&B may still work: try mosaic wandb sync. Of http proxies this tells more.",
            )
        port = proxy.port or 80
        self._socket = _connect(proxy.hostname, port, f"the proxy {proxy.hostname}:{port}", todo)
        if self._server.scheme == "https":
            self._open_tunnel()
        return f"{proxy.hostname}:{port} lets us through"

    def check_dns(self) -> str:
        if self._proxy is not None:
            return "the proxy's business"
        found = _call_with_timeout(lambda: socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM))
        todo = "Check the network and its name server. Behind a VPN, set its proxy."
        if found is None:
            raise _CheckFailed(f"no answer for {self._host} within {STEP_TIMEOUT_S:g} s", todo)
        if isinstance(found, Exception):
            raise _CheckFailed(f"{self._host} is unknown ({_error_text(found)})", todo)
        return f"{self._host} is {found[0][4][0]}"

    def check_tls(self) -> str:
        where = f"{self._host}:{self._port}"
        if self._proxy is None:
            todo = "Check the network and the firewall. Behind a VPN, set its proxy."
            self._socket = _connect(self._host, self._port, where, todo)
        if self._server.scheme == "http":
            return "none: the server's address begins with http://"
        assert self._socket is not None
        context = ssl.create_default_context(cafile=self._environment.get("REQUESTS_CA_BUNDLE") or None)
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self._host)
        except ssl.SSLCertVerificationError as error:
            raise _CheckFailed(
                f"the certificate of {where} is not trusted ({error.verify_message})",
                "If your proxy opens TLS, set SSL_CERT_FILE and REQUESTS_CA_BUNDLE to its certificate.",
            ) from None
        except (OSError, ValueError) as error:
            raise _CheckFailed(
                f"{where} does not speak TLS ({_error_text(error)})", "Check the address, and what stands before it."
            ) from None
        return f"{self._socket.version()}, the certificate is trusted"

    @property
    def has_key(self) -> bool:
        return bool(self._find_key())

    def check_key(self) -> str:
        key = self._find_key()
        if not key:
            raise _CheckFailed("no key", "Store yours: mosaic wandb login, or set WANDB_API_KEY.")
        status, body = self._query_viewer(key)
        if status in (401, 403):
            raise _CheckFailed(f"W&B does not accept it ({status})", "Store another: mosaic wandb login")
        if status != 200:
            raise _CheckFailed(f"W&B answers with status {status}", "Try again later.")
        try:
            viewer = json.loads(body)["data"]["viewer"]
        except (ValueError, KeyError, TypeError):
            raise _CheckFailed(
                "something else than W&B answers there", f"Check {SERVER_VARIABLE} and the proxy."
            ) from None
        if not viewer:
            raise _CheckFailed("W&B does not know it", "Store another: mosaic wandb login")
        return f"of {viewer.get('username') or viewer.get('entity') or 'somebody'}"

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    # --- pieces

    def _find_key(self) -> str:
        """Ours, else the one that wandb's own login left, which its processes find by themselves."""
        told = self._environment.get("WANDB_API_KEY", "").strip()
        if told:
            return told
        try:
            found = netrc.netrc(self._environment.get("NETRC")).authenticators(self._host)
        except (OSError, netrc.NetrcParseError):
            return ""
        return found[2] or "" if found else ""

    @property
    def _host(self) -> str:
        try:
            return self._server.hostname or ""
        except ValueError:
            return ""

    @property
    def _port(self) -> int:
        try:
            return self._server.port or (443 if self._server.scheme == "https" else 80)
        except ValueError:
            return 443

    def _proxy_address(self) -> str | None:
        if urllib.request.proxy_bypass(f"{self._host}:{self._port}"):
            return None
        return urllib.request.getproxies().get(self._server.scheme)

    def _proxy_headers(self) -> dict[str, str]:
        assert self._proxy is not None
        if self._proxy.username is None:
            return {}
        pair = f"{unquote(self._proxy.username)}:{unquote(self._proxy.password or '')}"
        return {"Proxy-Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}

    def _open_tunnel(self) -> None:
        assert self._socket is not None
        assert self._proxy is not None
        lines = [f"CONNECT {self._host}:{self._port} HTTP/1.1", f"Host: {self._host}:{self._port}"]
        lines += [f"{name}: {value}" for name, value in self._proxy_headers().items()]
        try:
            self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
            answer = b""
            while b"\r\n\r\n" not in answer and len(answer) < _MAX_REPLY_BYTES:
                part = self._socket.recv(4096)
                if not part:
                    break
                answer += part
        except OSError as error:
            raise _CheckFailed(
                f"the proxy does not answer ({_error_text(error)})", "Check whether the VPN is up."
            ) from None
        words = answer.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        status = words[1] if len(words) > 1 else "nothing"
        if status == "407":
            raise _CheckFailed(
                "the proxy wants a user and a password", "Set them in its address: http://USER:PASSWORD@HOST"
            )
        if status != "200":
            raise _CheckFailed(
                f"the proxy does not let us through to {self._host} (it answers {status})",
                "Ask whoever runs the proxy, or use another.",
            )

    def _query_viewer(self, key: str) -> tuple[int, bytes]:
        path = self._server.path.rstrip("/") + "/graphql"
        headers = {
            "Content-Type": "application/json",
            "Authorization": "Basic " + base64.b64encode(f"api:{key}".encode()).decode(),
            "User-Agent": "mosaic",
        }
        if self._proxy is not None and self._server.scheme == "http":
            path = f"http://{self._host}:{self._port}{path}"
            headers |= self._proxy_headers()
        connection = HTTPConnection(self._host, self._port, timeout=STEP_TIMEOUT_S)
        connection.sock = self._socket
        try:
            connection.request("POST", path, json.dumps(_QUERY), headers)
            answer = connection.getresponse()
            return answer.status, answer.read(_MAX_REPLY_BYTES)
        except (OSError, HTTPException) as error:
            raise _CheckFailed(f"W&B does not answer ({_error_text(error)})", "Try again later.") from None
        finally:
            connection.close()


def query_server_url(environment: Mapping[str, str]) -> str | None:
    """Only wandb knows: a user may have set it in files of wandb's own. None where it does not say."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _SERVER_URL_SCRIPT],
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=3 * STEP_TIMEOUT_S,
        )
        said = done.stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        said = []
    return said[-1] if said else None


def _connect(host: str, port: int, target: str, todo: str) -> socket.socket:
    found = _call_with_timeout(lambda: socket.create_connection((host, port), timeout=STEP_TIMEOUT_S))
    if isinstance(found, socket.socket):
        return found
    why = (
        f"no answer within {STEP_TIMEOUT_S:g} s"
        if found is None or isinstance(found, TimeoutError)
        else _error_text(found)
    )
    raise _CheckFailed(f"{target} cannot be reached ({why})", todo)


def _call_with_timeout(call: Callable[[], Answer]) -> Answer | Exception | None:
    """What it answers or raises; None where it takes too long. Name servers know no time limit."""
    answers: list[Answer | Exception] = []

    def ask() -> None:
        try:
            answers.append(call())
        except (OSError, UnicodeError) as error:
            answers.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(STEP_TIMEOUT_S + 0.5)
    return answers[0] if answers else None


def _error_text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {STEP_TIMEOUT_S:g} s"
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(words).rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
