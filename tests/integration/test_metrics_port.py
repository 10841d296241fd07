"""`--metrics-port` of a real daemon."""

from __future__ import annotations

import socket
import ssl
import urllib.request
from pathlib import Path

import grpc
import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import ended, running_daemon, scripted, wait_for
from tests.helpers.free_ports import free_ports

from mosaic.base.certificates import CERTIFICATE_NAME
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.daemon_channel import ProofRefused, identify


def test_a_daemon_serves_metrics_on_request(workspace: Workspace, plugins: Path) -> None:
    with running_daemon(workspace, plugins, "--max-runs", "2", "--metrics-port", "0") as (_, trainer):
        runs = [trainer.submit(scripted(steps=1_000_000, dt=0.02)).run_id for _ in range(3)]
        address = trainer.get_status().metrics_address
        assert address is not None
        assert address.startswith("127.0.0.1:")

        def read() -> str:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
                text: str = reply.read().decode()
                return text

        wait_for(lambda: 'mosaic_runs{status="running"} 2.0' in read(), "both runs")
        wait_for(lambda: f'mosaic_run_steps_per_second{{run="{runs[0]}"}} 1.0' in read(), "the speed")
        text = read()
        assert "mosaic_queue_length 1.0" in text
        assert 'mosaic_slots_used{kind="runs"} 2.0' in text
        assert str(workspace.root) not in text
        assert "scripted" not in text
        assert f"http://{address}/metrics" in mosaic(workspace, "daemon", "status").out


@pytest.mark.may_log("call_refused")
def test_other_machines_read_metrics_by_tls_and_with_a_token_of_their_own(workspace: Workspace, plugins: Path) -> None:
    """As Prometheus does: the certificate is pinned, and the token allows nothing else."""
    (port,) = free_ports(1)
    with running_daemon(workspace, plugins, "--metrics-listen", f"127.0.0.1:{port}") as (_, trainer):
        failing = trainer.submit(scripted(exit=3)).run_id
        assert ended(trainer, failing).outcome == "failed"
        assert trainer.get_status().metrics_address == f"https://127.0.0.1:{port}"
        assert f"https://127.0.0.1:{port}/metrics" in mosaic(workspace, "daemon", "status").out
        assert oct(workspace.metrics_token.stat().st_mode & 0o777) == "0o600"
        assert "PRIVATE" not in workspace.certificate.read_text()
        tokens = [path.read_text().strip() for path in (workspace.metrics_token, workspace.remote_token)]
        assert tokens[0] != tokens[1]
        pinned = ssl.create_default_context(cafile=str(workspace.certificate))

        def read(**headers: str) -> tuple[int, str]:
            with (
                socket.create_connection(("127.0.0.1", port), 10) as plain,
                pinned.wrap_socket(plain, server_hostname=CERTIFICATE_NAME) as secured,
            ):
                lines = [f"{name}: {value}" for name, value in {"Host": "lab.example", **headers}.items()]
                secured.sendall("\r\n".join(["GET /metrics HTTP/1.0", *lines, "", ""]).encode())
                reply = b"".join(iter(lambda: secured.recv(65536), b"")).decode()
                return int(reply.split()[1]), reply

        for headers in ({}, {"Authorization": "Bearer 0"}, {"Authorization": f"Bearer {tokens[1]}"}):
            assert read(**headers)[0] == 401
        with socket.create_connection(("127.0.0.1", port), 10):  # who says nothing keeps nobody waiting for long
            code, text = read(Authorization=f"Bearer {tokens[0]}")
        assert code == 200
        assert 'mosaic_runs_unsuccessful_total{cause="exit_code",outcome="failed"} 1.0' in text
        assert "mosaic_disk_free_bytes" in text
        address = trainer.get_status().address
        with grpc.insecure_channel(address) as channel, pytest.raises(ProofRefused):
            identify(channel, tokens[0])
    both = mosaic(workspace, "daemon", "run", "--metrics-port", "0", "--metrics-listen", "127.0.0.1")
    assert (both.code, "exclude each other" in both.err) == (2, True)


def test_a_daemon_serves_no_metrics_unless_asked_and_says_why_it_cannot(workspace: Workspace) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        failed = mosaic(workspace, "daemon", "run", "--metrics-port", port)
        assert failed.code == 1
        assert f"127.0.0.1:{port}" in failed.err
        failed = mosaic(workspace, "daemon", "start", "--metrics-port", port)
        assert failed.code != 0
        assert f"127.0.0.1:{port}" in failed.err
    started = mosaic(workspace, "daemon", "start", "--json")
    assert started.json["metrics_address"] is None
    assert mosaic(workspace, "daemon", "stop").code == 0
