"""The window with a trainer on another machine, by TLS."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from tests.helpers.daemons import LiveDaemon, ended, running_daemon, scripted
from tests.helpers.gui import close, pump

from mosaic.client import RemoteTrainer, TrainerClient
from mosaic.client.remote_trainer import fetch_trainer_certificate
from mosaic.contracts.folder import Workspace
from mosaic.gui.app import Application

pytest.importorskip("cryptography", reason="makes the certificate: pip install 'mosaic-rl[remote]'")


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def live(workspace: Workspace, plugins: Path, address: str) -> Iterator[tuple[LiveDaemon, TrainerClient]]:
    with running_daemon(workspace, plugins, "--listen", address) as both:
        yield both


@pytest.fixture
def far(
    qapp: QApplication,
    workspace: Workspace,
    trainer: TrainerClient,
    address: str,
    tmp_path: Path,
    settings_path: Path,
) -> Iterator[Application]:
    token = workspace.remote_token.read_text().strip()
    remote = RemoteTrainer(address, token, fetch_trainer_certificate(address), "gpu")
    program = Application(qapp, Workspace(tmp_path / "elsewhere"), settings_path, remote)
    program.start()
    yield program
    close(program)


def test_the_window_follows_a_trainer_behind_tls_and_finds_it_again(
    trainer: TrainerClient, daemon: LiveDaemon, far: Application, workspace: Workspace
) -> None:
    run_id = trainer.submit(scripted(steps=100_000, dt=0.01)).run_id
    pump(lambda: far.workbench.runs.get_or_placeholder(run_id).stage == "running", "the run")
    assert far.window.windowTitle() == f"MOSAIC – gpu: {workspace.root}"
    daemon.stop()
    pump(far.window.banner.isVisible, "the banner")
    with daemon.start() as again:
        pump(lambda: not far.window.banner.isVisible(), "the banner to go", 60)
        again.cancel(run_id)
        ended(again, run_id)
    pump(lambda: far.workbench.runs.get_or_placeholder(run_id).outcome == "cancelled", "the run's end")


@pytest.mark.may_log("call_refused")
def test_the_banner_says_that_the_certificate_has_changed(
    daemon: LiveDaemon, far: Application, workspace: Workspace
) -> None:
    pump(lambda: far.workbench.status is not None, "the connection")
    daemon.stop()
    workspace.tls_identity.unlink()
    daemon.start().close()
    problems: list[str] = []
    far.bridge.connection_lost.connect(problems.append)
    pump(lambda: any("has changed. Nothing was sent to it." in problem for problem in problems), "the reason", 60)
    assert far.window.banner.isVisible()
