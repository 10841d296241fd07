"""F53: another user of the machine prepared the workspace, or a part of it: nothing of it is read or written."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import LiveDaemon, running_daemon

from mosaic.base.processes import own_identity
from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import TRUST_VARIABLE, Workspace
from mosaic.trainer.client.connect import read_daemon_address

NOBODY = 65534
only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")


def plant(workspace: Workspace, port: int) -> None:
    """A workspace as another user would forge it: a daemon.json with a token of theirs, for a port of theirs."""
    workspace.create_private()
    content = {"address": f"127.0.0.1:{port}", "token": "theirs", "process": own_identity(), "started_at": 0.0}
    workspace.daemon_file.write_text(json.dumps({**content, "version": "0.1.0"}))


def give_away(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@only_root
def test_no_secret_is_sent_to_a_planted_daemon(tmp_path: Path) -> None:
    """F53: neither by a command, which exits with 2, nor by a daemon that is started in it."""
    workspace = Workspace(tmp_path / "shared" / "var")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        plant(workspace, listener.getsockname()[1])
        for path in (workspace.root, *workspace.root.rglob("*")):
            give_away(path)
        for arguments in (("run", "--detach", "--", "true"), ("runs",), ("daemon", "run")):
            done = mosaic(workspace, *arguments)
            assert done.code == 2, done.err
            assert f"The workspace {workspace.root} belongs to nobody; name your own: --var DIR" in done.err
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert list(workspace.logs.iterdir()) == []


def make_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def make_foreign(path: Path) -> None:
    if path.suffix:
        path.write_text("{}", encoding="utf-8")
    else:
        path.mkdir()
    give_away(path)


@only_root
@pytest.mark.parametrize("name", ["trainer", "trainer/runs", "logs", "trainer/daemon.json", "logs/cli.log"])
@pytest.mark.parametrize("change", [make_link, make_foreign])
def test_a_part_of_a_workspace_is_planted(tmp_path: Path, name: str, change: Callable[[Path], None]) -> None:
    """F53: in a folder of the user's own, which was open for a while."""
    workspace = Workspace(tmp_path / "var")
    path = workspace.root / name
    path.parent.mkdir(parents=True)
    change(path)
    refused = pytest.raises(BadInput, match=r"belongs to nobody|is a symbolic link")
    with refused:
        workspace.create_private()
    with refused:
        read_daemon_address(workspace)


@only_root
def test_a_link_to_a_workspace_belongs_to_the_user_as_its_target_does(tmp_path: Path, plugins: Path) -> None:
    """F53: the user's own link is followed."""
    target, link = Workspace(tmp_path / "target"), tmp_path / "link"
    target.create_private()
    link.symlink_to(target.root)
    with running_daemon(Workspace(link), plugins) as (_, trainer):
        assert trainer.runs() == []
    give_away(link)
    with pytest.raises(BadInput, match="belongs to nobody"):
        Workspace.resolve(link)


def test_what_the_umask_opened_is_closed_and_a_folder_for_all_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F53: a project folder keeps its modes, so its user is told what to do; a sticky bit is enough."""
    workspace = Workspace(tmp_path / "var")
    for folder in (workspace.root, workspace.trainer, workspace.runs):
        folder.mkdir()
        folder.chmod(0o775)
    Workspace.resolve(workspace.root)
    assert [path.stat().st_mode & 0o022 for path in (workspace.root, workspace.trainer, workspace.runs)] == [0, 0, 0]
    (workspace.root / "project.py").touch()
    for mode, is_refused in ((0o775, False), (0o1777, False), (0o777, True)):
        workspace.root.chmod(mode)
        if is_refused:
            with pytest.raises(BadInput, match="chmod go-w"):
                Workspace.resolve(workspace.root)
            monkeypatch.setenv(TRUST_VARIABLE, f"/elsewhere:{workspace.root}")
        assert Workspace.resolve(workspace.root).root.stat().st_mode & 0o7777 == mode


@only_root
def test_a_workspace_whose_owner_a_file_system_maps_can_be_named(
    tmp_path: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F53: as on NFS, where what root writes belongs to nobody."""
    workspace = Workspace(tmp_path / "var")
    workspace.create_private()
    give_away(workspace.root)
    monkeypatch.setenv(TRUST_VARIABLE, str(workspace.root))
    daemon = LiveDaemon(workspace, plugins)
    daemon.start().close()
    daemon.end()
