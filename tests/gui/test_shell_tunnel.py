"""The window with a trainer that is reached through a tunnel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from tests.helpers.daemons import ended, scripted
from tests.helpers.gui import close, pump
from tests.helpers.tunnel import Tunnel

from mosaic.client import TrainerClient, read_daemon_address
from mosaic.contracts.folder import Workspace
from mosaic.gui.app import Application


@pytest.fixture
def tunnel(trainer: TrainerClient) -> Iterator[Tunnel]:
    made = Tunnel(trainer.status().address)
    made.open()
    yield made
    made.drop()


@pytest.fixture
def far(
    qapp: QApplication, workspace: Workspace, tunnel: Tunnel, tmp_path: Path, settings_path: Path
) -> Iterator[Application]:
    """A window that knows the trainer's token and the tunnel's end, and nothing of its workspace."""
    there = read_daemon_address(workspace)
    assert there is not None
    program = Application(qapp, Workspace(tmp_path / "elsewhere"), settings_path, (tunnel.address, there.token))
    program.start()
    yield program
    close(program)


def test_a_run_is_followed_through_an_interrupted_tunnel(
    trainer: TrainerClient, tunnel: Tunnel, far: Application, tmp_path: Path
) -> None:
    first = trainer.submit(scripted(steps=100_000, dt=0.01)).run_id
    pump(lambda: far.workbench.runs.get_or_placeholder(first).stage == "running", "the run")
    far.workbench.select(first)
    tunnel.drop()
    pump(far.window.banner.isVisible, "the banner")
    second = trainer.submit(scripted()).run_id
    ended(trainer, second)
    trainer.cancel(first)
    ended(trainer, first)
    assert far.workbench.runs.ids() == [first]
    tunnel.open()
    pump(lambda: far.workbench.runs.ids() == [second, first], "what happened meanwhile", 60)
    pump(lambda: not far.window.banner.isVisible(), "the banner to go")
    pump(lambda: far.workbench.runs.get_or_placeholder(first).outcome == "cancelled", "the run's end")
    assert far.workbench.selection == first
    assert read_daemon_address(Workspace(tmp_path / "elsewhere")) is None, "a trainer of this machine's was started"
