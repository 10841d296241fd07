"""`--metrics-port` of a real daemon."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

from tests.helpers.commands import mosaic
from tests.helpers.daemons import running_daemon, scripted, wait_for

from mosaic.contracts.folder import Workspace


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
