"""The connection checks name the part that fails. Everything is on loopback."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import socket
import subprocess
import threading
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from tests.helpers.wandb_routes import Talk, answering, listening, refused_port, silent

from mosaic.base.secret_store import put_secret
from mosaic.features.tracking.sidecar import wandb_connection

KEY = "canary0123456789"
VIEWER = json.dumps({"data": {"viewer": {"username": "ada", "entity": "ada"}}})


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_connection, "STEP_TIMEOUT_S", 0.3)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.31.0")
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def run_checks(
    monkeypatch: pytest.MonkeyPatch, server: str, key: str = KEY, **variables: str
) -> dict[str, wandb_connection.Finding]:
    """Runs the checks in this process, which is faster."""
    environment = {"WANDB_BASE_URL": server, "WANDB_API_KEY": key, **variables}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    findings = list(wandb_connection.run_checks(environment, []))
    assert [finding.name for finding in findings] == list(wandb_connection.CHECK_NAMES)
    assert all(finding.todo for finding in findings if finding.state == "fail")
    assert KEY not in repr(findings)
    return {finding.name: finding for finding in findings}


def failures(findings: dict[str, wandb_connection.Finding]) -> list[str]:
    return [name for name, finding in findings.items() if finding.state == "fail"]


def test_the_init_timeout_of_wandb_is_the_limit_of_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4.3: WANDB_INIT_TIMEOUT also lengthens the time that a slow server has."""

    def slow(caller: socket.socket) -> None:
        threading.Event().wait(0.8)
        answering("200 OK", VIEWER)(caller)

    with listening(slow) as port:
        assert failures(run_checks(monkeypatch, f"http://127.0.0.1:{port}")) == ["key"]
        assert failures(run_checks(monkeypatch, f"http://127.0.0.1:{port}", WANDB_INIT_TIMEOUT="30")) == []


def test_all_checks_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[str] = []
    with listening(answering("200 OK", VIEWER, heads)) as port:
        findings = run_checks(monkeypatch, f"http://127.0.0.1:{port}/")
    assert failures(findings) == []
    assert findings["key"].found == "of ada"
    assert "from WANDB_BASE_URL" in findings["server"].found
    assert heads[0].startswith("POST /graphql ")
    assert "Authorization: Basic " + base64.b64encode(f"api:{KEY}".encode()).decode() in heads[0]


@pytest.mark.parametrize(
    ("talk", "expected"),
    [
        (answering("401 Unauthorized"), "does not accept the API key (401)"),
        (answering("403 Forbidden"), "denies access (403)"),
        (answering("429 Too Many"), "too many requests (429)"),
        (answering("500 Broken"), "internal error (500)"),
        (answering("200 OK", '{"data": {"viewer": null}}'), "does not accept the API key (401)"),
        (answering("200 OK", "<html>log in to the hotel</html>"), "is not W&B"),
        (silent, "no answer"),
    ],
)
def test_a_rejected_key_is_distinguished_from_a_faulty_server(
    monkeypatch: pytest.MonkeyPatch, talk: Talk, expected: str
) -> None:
    with listening(talk) as port:
        findings = run_checks(monkeypatch, f"http://127.0.0.1:{port}")
    assert failures(findings) == ["key"]
    assert expected in findings["key"].found


def test_a_missing_package_is_reported_and_the_rest_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with listening(answering("200 OK", VIEWER)) as port:
        findings = run_checks(monkeypatch, f"http://127.0.0.1:{port}")
    assert failures(findings) == ["package"]
    assert "mosaic-rl[wandb]" in findings["package"].todo


def test_without_a_key_the_command_to_store_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused_port() as port:
        findings = run_checks(monkeypatch, f"http://127.0.0.1:{port}", key="", NETRC="/nowhere")
    assert failures(findings) == ["TLS", "key"]
    assert "mosaic wandb login" in findings["key"].todo


def test_the_key_of_wandb_login_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "netrc"
    path.write_text(f"machine 127.0.0.1 login user password {KEY}\n")
    path.chmod(0o600)
    with listening(answering("200 OK", VIEWER)) as port:
        findings = run_checks(monkeypatch, f"http://127.0.0.1:{port}", key="", NETRC=str(path))
    assert findings["key"].found == "of ada"


def test_a_server_that_refuses_or_speaks_no_tls_fails_at_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused_port() as port:
        findings = run_checks(monkeypatch, f"https://127.0.0.1:{port}")
    assert failures(findings) == ["TLS"]
    assert "refused" in findings["TLS"].found
    assert findings["key"].found == "there is a key; it was not tried"
    for talk in (answering("400 Bad"), silent):
        with listening(talk) as port:
            findings = run_checks(monkeypatch, f"https://127.0.0.1:{port}")
        assert failures(findings) == ["TLS"]
        assert "does not speak TLS" in findings["TLS"].found


def test_an_unknown_host_fails_at_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    """R4.5: proxies."""

    def unknown(*_: object, **__: object) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    findings = run_checks(monkeypatch, "https://unknown.invalid")
    assert failures(findings) == ["DNS"]
    assert "unknown.invalid cannot be resolved" in findings["DNS"].found


@pytest.mark.parametrize(
    ("status", "expected"),
    [("407 Proxy Authentication Required", "requires a user and a password"), ("403 Forbidden", "(status 403)")],
)
def test_a_proxy_that_refuses_the_connection_is_reported(
    monkeypatch: pytest.MonkeyPatch, status: str, expected: str
) -> None:
    heads: list[str] = []
    with listening(answering(status, seen=heads)) as port:
        findings = run_checks(monkeypatch, "https://api.invalid", https_proxy=f"http://me:s%40fe@127.0.0.1:{port}")
    assert failures(findings) == ["proxy"]
    assert expected in findings["proxy"].found
    assert heads[0].startswith("CONNECT api.invalid:443 ")
    assert base64.b64encode(b"me:s@fe").decode() in heads[0]
    assert "fe@" not in repr(findings)


def test_an_unreachable_proxy_fails_at_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused_port() as port:
        findings = run_checks(monkeypatch, "https://api.invalid", https_proxy=f"http://127.0.0.1:{port}")
    assert failures(findings) == ["proxy"]
    assert "refused" in findings["proxy"].found


def test_loopback_is_reached_without_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with refused_port() as closed_port, listening(answering("200 OK", VIEWER)) as port:
        findings = run_checks(
            monkeypatch, f"http://127.0.0.1:{port}", http_proxy=f"http://127.0.0.1:{closed_port}", no_proxy="127.0.0.1"
        )
    assert failures(findings) == []
    assert findings["proxy"].found == "none; direct"


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the wandb extra is not installed")
def test_the_diagnostics_process_uses_the_stored_key_and_the_vpn_proxy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_secret("wandb_api_key", KEY)
    heads: list[str] = []
    with listening(answering("200 OK", VIEWER, heads)) as proxy:
        (tmp_path / ".env").write_text(f"WANDB_VPN_HTTP_PROXY='127.0.0.1:{proxy}'")
        monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.invalid")
        process = subprocess.run(
            wandb_connection.diagnostics_command(),
            input=wandb_connection.diagnostics_request(tmp_path, {"use_vpn_proxy": True}),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        )
    findings = [wandb_connection.Finding(**json.loads(line)) for line in process.stdout.splitlines()]
    assert [(finding.name, finding.state) for finding in findings] == [
        (name, "ok") for name in wandb_connection.CHECK_NAMES
    ]
    assert heads[0].startswith("POST http://wandb.invalid:80/graphql ")


def test_a_name_server_that_never_answers_fails_at_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()
    threads: list[threading.Thread] = []

    def block(*_: object, **__: object) -> None:
        threads.append(threading.current_thread())
        is_over.wait()

    monkeypatch.setattr(socket, "getaddrinfo", block)
    try:
        findings = run_checks(monkeypatch, "https://slow.invalid")
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert failures(findings) == ["DNS"]
    assert "no answer" in findings["DNS"].found
