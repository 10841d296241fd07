"""The window with a trainer that is reached through a tunnel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtWidgets import QApplication
from tests.helpers.daemons import ended, scripted
from tests.helpers.gui import close, pump
from tests.helpers.tunnel import Tunnel

from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.features.runs.window_videos import VideoPlayer
from mosaic.trainer.client.connect import read_daemon_address
from mosaic.trainer.client.remote_trainer import RemoteTrainer
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application
from mosaic.worker.recorders import EpisodeVideo


@pytest.fixture
def tunnel(trainer: TrainerClient) -> Iterator[Tunnel]:
    made = Tunnel(trainer.get_status().address)
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
    program = Application(
        qapp, Workspace(tmp_path / "elsewhere"), settings_path, RemoteTrainer(tunnel.address, there.token)
    )
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
    trainer.cancel_run(first)
    ended(trainer, first)
    assert far.workbench.runs.ids() == [first]
    tunnel.open()
    pump(lambda: far.workbench.runs.ids() == [second, first], "what happened meanwhile", 60)
    pump(lambda: not far.window.banner.isVisible(), "the banner to go")
    pump(lambda: far.workbench.runs.get_or_placeholder(first).outcome == "cancelled", "the run's end")
    assert far.workbench.selection == first
    assert read_daemon_address(Workspace(tmp_path / "elsewhere")) is None, "a trainer of this machine's was started"


def test_a_video_of_a_remote_run_is_copied_and_played(
    trainer: TrainerClient, far: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    view = ended(trainer, trainer.submit(scripted()).run_id)
    recorder = EpisodeVideo(RunFolder(view.run_dir).videos / "episode-0.mp4", fps=20)
    for frame in range(10):
        recorder.add_frame(np.full((64, 96, 3), frame * 5, np.uint8))
    recorder.finish("e0", 12.5, 10)
    pump(lambda: view.run_id in far.workbench.runs.ids(), "the run")
    far.workbench.select(view.run_id, "videos")
    player = pump(lambda: far.window.findChild(VideoPlayer, "videos.player"), "the tab")
    pump(lambda: player._at_s > 0.1, "the video to play")
    copy = tmp_path / "cache" / "mosaic" / "files" / view.run_id / "videos" / "episode-0.mp4"
    assert player._reader.path == copy
    assert copy.is_file()
