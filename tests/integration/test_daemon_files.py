"""Files of a run read through the daemon, as a client on another machine has to."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.daemons import ended, running_daemon, scripted
from tests.helpers.recordings import record_episodes

from mosaic.contracts.errors import BadInput, NotAllowed, UnknownName
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.views import RunView
from mosaic.features.replay.api import fetch_recording, replay_episodes
from mosaic.trainer.client.connect import read_daemon_address
from mosaic.trainer.client.file_transfer import CACHE_DAYS, pack_run
from mosaic.trainer.client.remote_trainer import RemoteTrainer, connect_remote
from mosaic.trainer.client.trainer_client import TrainerClient


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "a user's var")


@pytest.fixture
def trainer(workspace: Workspace, tmp_path: Path) -> Iterator[TrainerClient]:
    with running_daemon(workspace, tmp_path / "plugins") as (_, local):
        yield local


@pytest.fixture
def remote(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TrainerClient]:
    """Connected over TCP; the paths that the daemon reports lead nowhere on this side."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address = read_daemon_address(workspace)
    assert address is not None
    with connect_remote(RemoteTrainer(address.address, address.token)) as client:
        get = client.get_run
        monkeypatch.setattr(client, "get_run", lambda run: get(run).model_copy(update={"run_dir": "/nowhere"}))
        yield client


@pytest.fixture
def view(trainer: TrainerClient) -> RunView:
    """A run with a checkpoint of several chunks, a link to it, a link out of the folder and one that dangles."""
    view = ended(trainer, trainer.submit(scripted(steps=3)).run_id)
    folder = RunFolder(view.run_dir)
    folder.checkpoint(512).mkdir(parents=True)
    (folder.checkpoint(512) / "weights").write_bytes(os.urandom(3 << 20))
    (folder.checkpoint(512) / "[a].json").write_text("{}")
    folder.last_checkpoint.symlink_to("512")
    folder.videos.mkdir()
    (folder.videos / "secret").symlink_to("/etc/passwd")
    (folder.videos / "up").symlink_to("../../..")
    (folder.videos / "gone").symlink_to("0.mp4")
    return view


def test_files_are_listed_by_names_inside_the_folder(remote: TrainerClient, view: RunView) -> None:
    names = [file.name for file in remote.files(view.run_id)]
    assert {"config.json", "journal.jsonl", "record.json"} < set(names)
    files = {file.name: file for file in remote.files(view.run_id, "checkpoints/*")}
    assert list(files) == ["checkpoints/last", "checkpoints/512/[a].json", "checkpoints/512/weights"]
    assert files["checkpoints/last"].link_target == "512"
    assert (files["checkpoints/512/weights"].size_bytes, files["checkpoints/512/weights"].link_target) == (3 << 20, "")
    assert abs(files["checkpoints/512/weights"].modified_at - time.time()) < 3600
    assert [file.name for file in remote.files(view.run_id, "videos/*")] == ["videos/gone"]


def test_a_file_is_read_in_parts_and_from_an_offset(remote: TrainerClient, view: RunView) -> None:
    content = (RunFolder(view.run_dir).checkpoint(512) / "weights").read_bytes()
    parts = list(remote.read_file(view.run_id, "checkpoints/512/weights"))
    assert (b"".join(parts), len(parts)) == (content, 3)
    assert b"".join(remote.read_file(view.run_id, "checkpoints/last/weights", offset=100)) == content[100:]
    assert b"".join(remote.read_file(view.run_id, "checkpoints/512/weights", offset=9 << 20)) == b""


@pytest.mark.parametrize(
    "name", ["../../daemon.json", "/etc/passwd", "videos/secret", "videos/up/daemon.json", "videos/../../../x", "a\0b"]
)
def test_nothing_outside_of_the_folder_is_read(remote: TrainerClient, view: RunView, name: str) -> None:
    """F26: neither by a path nor by a link that a run has created."""
    with pytest.raises(BadInput, match="expected a relative path inside it"):
        list(remote.read_file(view.run_id, name))


@pytest.mark.parametrize("name", ["", "videos", "videos/gone", "videos/none.mp4"])
def test_what_is_not_a_file_is_refused(remote: TrainerClient, view: RunView, name: str) -> None:
    with pytest.raises(UnknownName, match="has no file"):
        list(remote.read_file(view.run_id, name))


def test_a_local_file_is_opened_in_place(trainer: TrainerClient, view: RunView) -> None:
    assert trainer.open_file(view.run_id, "checkpoints/512") == RunFolder(view.run_dir).checkpoint(512)
    with pytest.raises(UnknownName, match="has no file 'checkpoints/513'"):
        trainer.open_file(view.run_id, "checkpoints/513")


def test_a_remote_folder_is_copied_once_and_again_when_it_has_changed(
    remote: TrainerClient, view: RunView, tmp_path: Path
) -> None:
    original = RunFolder(view.run_dir).checkpoint(512)
    sizes: list[int] = []
    copy = remote.open_file(view.run_id, "checkpoints/last", sizes.append)
    assert copy == tmp_path / "cache" / "mosaic" / "files" / view.run_id / "checkpoints" / "512"
    assert (copy / "weights").read_bytes() == (original / "weights").read_bytes()
    assert sorted(path.name for path in copy.iterdir()) == ["[a].json", "weights"]
    assert sum(sizes) == (3 << 20) + 2
    sizes.clear()
    assert remote.open_file(view.run_id, "checkpoints/512", sizes.append) == copy
    assert sizes == []
    (original / "[a].json").write_text("[1]")
    assert remote.open_file(view.run_id, "checkpoints/512/[a].json", sizes.append).read_text() == "[1]"
    assert sizes == [3]


def test_a_remote_recording_is_replayed_from_a_copy(remote: TrainerClient, view: RunView, tmp_path: Path) -> None:
    with pytest.raises(NotAllowed, match="recorded no episodes"):
        fetch_recording(remote, view.run_id)
    record_episodes(RunFolder(view.run_dir).recording, "FrozenLake-v1", (1,))
    copy = fetch_recording(remote, view.run_id)
    assert copy == tmp_path / "cache" / "mosaic" / "files" / view.run_id / "recording.bin"
    assert [report.is_identical for report in replay_episodes(copy)] == [True]


def test_copies_that_were_not_used_for_long_are_deleted(remote: TrainerClient, view: RunView, tmp_path: Path) -> None:
    unused = tmp_path / "cache" / "mosaic" / "files" / "01OTHER"
    unused.mkdir(parents=True)
    long_ago = time.time() - (CACHE_DAYS + 1) * 86_400
    os.utime(unused, (long_ago, long_ago))
    remote.open_file(view.run_id, "record.json")
    assert not unused.exists()


def test_a_zip_of_a_remote_run_can_be_imported(
    remote: TrainerClient, trainer: TrainerClient, view: RunView, tmp_path: Path
) -> None:
    (RunFolder(view.run_dir).videos / "gone").unlink()
    weights = (RunFolder(view.run_dir).checkpoint(512) / "weights").read_bytes()
    sizes: list[int] = []
    files = remote.files(view.run_id)
    with open(tmp_path / "run.zip", "wb") as file:
        pack_run(remote, view.run_id, files, file, sizes.append)
    assert sum(sizes) == sum(entry.size_bytes for entry in files if not entry.link_target)
    with zipfile.ZipFile(tmp_path / "run.zip") as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [f"{view.run_id}/{entry.name}" for entry in files]
        link = archive.getinfo(f"{view.run_id}/checkpoints/last")
        assert (link.external_attr >> 16) & 0o170000 == 0o120000
        assert archive.read(link) == b"512"
    trainer.delete_run(view.run_id)
    imported = RunFolder(trainer.import_run(str(tmp_path / "run.zip")).run_dir)
    assert (imported.last_checkpoint / "weights").read_bytes() == weights
