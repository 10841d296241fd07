"""F46: another user of the machine reads nothing of a workspace, whatever the umask is."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.daemons import ended, environment, scripted, wait_for
from tests.helpers.worker_runs import small

from mosaic.base.fastlane import lane_indices, lanes_folder
from mosaic.base.fastlane.lane_files import lanes_root
from mosaic.base.processes import identify, is_alive
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.trainer.client.connect import connect

NOBODY = 65534


@pytest.fixture
def _open_umask() -> Iterator[None]:
    previous = os.umask(0)
    yield
    os.umask(previous)


def readable_by_others(root: Path) -> list[str]:
    paths = [root, *root.rglob("*")]
    return [f"{path.lstat().st_mode:o} {path}" for path in paths if _is_open(path)]


def _is_open(path: Path) -> bool:
    mode = path.lstat().st_mode
    return not stat.S_ISLNK(mode) and mode & 0o077 != 0


@pytest.mark.usefixtures("_open_umask")
def test_files_are_private_and_those_of_a_script_elsewhere_are_not(
    workspace: Workspace, plugins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F46: runs of two workers and of a script, with umask 0."""
    for name, value in environment(plugins).items():
        monkeypatch.setenv(name, value)
    outside = tmp_path / "model"
    code = f"open({str(outside)!r}, 'w')"
    script = {"argv": [sys.executable, "-c", code], "cwd": str(tmp_path)}
    with connect(workspace) as trainer:
        runs = [
            trainer.submit(scripted(steps=3)),
            trainer.submit({"metadata": {"worker": {"id": "cleanrl", "config": small()}}, "artifacts": {}}),
            trainer.submit(
                {"metadata": {"worker": {"id": "script", "config": script}}, "artifacts": {}},
                environment=dict(os.environ),
            ),
        ]
        folders = [RunFolder(ended(trainer, run.run_id).run_dir) for run in runs]
    assert any(folder.checkpoints.exists() for folder in folders)
    assert readable_by_others(workspace.root) == []
    assert outside.stat().st_mode & 0o777 == 0o666


def test_the_folders_of_an_earlier_version_become_private(tmp_path: Path) -> None:
    """F46: but not a folder that holds other things."""
    workspace = Workspace(tmp_path / "var")
    for folder in (workspace.root, workspace.trainer, workspace.logs):
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
    (workspace.root / "a project").touch()
    workspace.create_private()
    modes = [folder.stat().st_mode & 0o777 for folder in (workspace.root, workspace.trainer, workspace.logs)]
    assert modes == [0o755, 0o700, 0o700]
    (workspace.root / "a project").unlink()
    workspace.create_private()
    assert workspace.root.stat().st_mode & 0o777 == 0o700


def run_as_nobody(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that everyone may enter, unlike pytest's own."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("_open_umask")
def test_another_user_neither_reads_nor_writes_anything_of_an_active_run(
    reachable: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F46: files, frames in shared memory, and the environments of its processes."""
    for name, value in environment(plugins).items():
        monkeypatch.setenv(name, value)
    workspace = Workspace(reachable / "var")
    (reachable / "open").write_text("")
    config = small(total_timesteps=100_000_000)
    with connect(workspace) as trainer:
        run_id = trainer.submit({"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}).run_id
        folder = workspace.run(run_id)
        wait_for(lambda: lane_indices(lanes_folder(folder.path)), "its lanes")
        attempt = trainer.get_run(run_id).attempts[-1]
        daemon = identify(trainer.get_status().pid)
        access = ("(", "-readable", "-o", "-writable", ")")
        assert run_as_nobody("find", str(reachable / "open"), *access).stdout, "The user sees what is open to all."
        for place in (str(workspace.root), lanes_root()):
            assert run_as_nobody("find", place, *access).stdout == ""
        for path in (workspace.daemon_file, workspace.index, folder.config, folder.journal, folder.inbox):
            assert path.exists()
            assert run_as_nobody("cat", str(path)).stdout == ""
        for process in (daemon, attempt.keeper, attempt.worker):
            assert process is not None
            assert run_as_nobody("cat", f"/proc/{process['pid']}/environ").stdout == ""
        trainer.stop_daemon(cancel_runs=True)
    wait_for(lambda: not is_alive(daemon), "the end of the daemon")
