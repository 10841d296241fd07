"""The window with a trainer on another machine, by TLS."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QLabel
from tests.helpers.daemons import LiveDaemon, ended, running_daemon, scripted
from tests.helpers.gui import close, find, pump
from tests.helpers.lossy_relay import lossy_relay

from mosaic.base.run_payloads import build_train_payload
from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import RunView
from mosaic.trainer.client.remote_trainer import RemoteTrainer, fetch_trainer_certificate
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application
from mosaic.window.form import RunsSubmission, ask_with_trust

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
    """R10.3: the window with a trainer on another host."""
    run_id = trainer.submit(scripted(steps=100_000, dt=0.01)).run_id
    pump(lambda: far.workbench.runs.get_or_placeholder(run_id).stage == "running", "the run")
    assert far.window.windowTitle() == f"MOSAIC – gpu: {workspace.root}"
    far.window.show_page("trainer")
    heading = find(far.window, "trainer.machine", QLabel)
    pump(lambda: heading.text() == "The machine of gpu", "whose resources these are")
    daemon.stop()
    pump(far.window.banner.isVisible, "the banner")
    with daemon.start() as again:
        pump(lambda: not far.window.banner.isVisible(), "the banner to go", 60)
        again.cancel_run(run_id)
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


def test_a_submission_whose_answer_is_lost_is_repeated_by_the_window_and_creates_each_run_once(
    qapp: QApplication, workspace: Workspace, trainer: TrainerClient, address: str, tmp_path: Path, settings_path: Path
) -> None:
    token = workspace.remote_token.read_text().strip()
    with lossy_relay(address) as relay:
        remote = RemoteTrainer(relay.address, token, fetch_trainer_certificate(address), "gpu")
        program = Application(qapp, Workspace(tmp_path / "elsewhere"), settings_path, remote)
        program.start()
        pump(lambda: program.workbench.status is not None, "the connection")
        views: list[RunView] = []
        problems: list[Exception] = []
        relay.loses_answers = True
        config = {"env_id": "CartPole-v1", "total_timesteps": 512, "num_steps": 64}
        submission = RunsSubmission([build_train_payload("cleanrl", "ppo", config, {})] * 2)
        ask_with_trust(program.workbench, submission, views.extend, program.window, problems.append, is_repeatable=True)
        pump(lambda: trainer.runs() or problems, "the first request to arrive")
        relay.cut()
        pump(lambda: views or problems, "the answer")
        close(program)
    assert not problems, problems
    assert [view.run_id for view in views] == [view.run_id for view in trainer.runs()[::-1]]
    assert len(views) == 2
