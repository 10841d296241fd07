"""F50: a workspace is moved while its runs are active."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.daemons import LiveDaemon, ended, running_daemon, scripted, wait_for

from mosaic.base.checkpoint_files import is_intact, list_steps
from mosaic.base.journal import read_all
from mosaic.base.processes import is_alive
from mosaic.contracts.errors import ReadOnlyWorkspace
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

pytestmark = pytest.mark.may_log("workspace_gone")
TRAINING: dict[str, Any] = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "seed": 1,
    "total_timesteps": 10_000_000,
    "algo_params": {"checkpoint_every": 1024},
}


def submit_training(trainer: TrainerClient, workspace: Workspace) -> RunFolder:
    """Start a training; return when it has saved a checkpoint."""
    payload = {"metadata": {"worker": {"id": "cleanrl", "config": TRAINING}}, "artifacts": {}}
    folder = workspace.run(trainer.submit(payload).run_id)
    wait_for(lambda: list_steps(folder), "its first checkpoint", 200)
    return folder


def move(workspace: Workspace, target: Path) -> Workspace:
    os.rename(workspace.root, target)
    return Workspace(target)


def wait_for_exit(daemon: LiveDaemon) -> None:
    wait_for(lambda: daemon.process is not None and daemon.process.poll() is not None, "the daemon to end", 200)


@pytest.mark.parametrize("is_daemon_killed", [False, True], ids=["daemon alive", "daemon killed"])
def test_a_training_follows_its_workspace(
    workspace: Workspace, plugins: Path, tmp_path: Path, is_daemon_killed: bool
) -> None:
    """F50: the next daemon has the same process; journal and checkpoints are in the new place only; it can be ended."""
    daemon = LiveDaemon(workspace, plugins)
    trainer = daemon.start()
    folder = submit_training(trainer, workspace)
    attempt = trainer.get_run(folder.run_id).attempts[-1]
    trainer.close()
    if is_daemon_killed:
        daemon.kill()
    moved = move(workspace, tmp_path / "moved")
    wait_for_exit(daemon)
    assert attempt.worker is not None
    assert is_alive(attempt.worker)
    here = moved.run(folder.run_id)
    known = set(list_steps(here))
    wait_for(lambda: set(list_steps(here)) - known, "a checkpoint in the new place", 200)
    with running_daemon(moved, plugins) as (_, other):
        wait_for(lambda: "was moved from" in other.get_run(folder.run_id).history[-1].message, "the run to be adopted")
        view = other.get_run(folder.run_id)
        assert (view.stage, view.pid, view.problem) == ("running", attempt.worker["pid"], None)
        reached = view.global_step or 0
        wait_for(lambda: (other.get_run(folder.run_id).global_step or 0) > reached, "further steps")
        other.cancel_run(folder.run_id)
        view = ended(other, folder.run_id)
        assert (view.outcome, view.reason) == ("cancelled", "Cancelled on request.")
    assert not is_alive(attempt.worker)
    assert all(is_intact(here.checkpoint(step)) for step in list_steps(here))
    events = read_all(here.journal)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert read_all(here.keeper)[-1]["kind"] == "exited"
    assert "/proc/" not in here.journal.read_text() + here.analytics.read_text()
    assert not workspace.root.exists()


def test_a_run_that_ends_without_a_daemon_has_its_end_in_the_new_place(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace, plugins: Path, tmp_path: Path
) -> None:
    """F50: also a script, whose own paths stay what they were."""
    code = "import os, time\nwhile not os.path.exists('end'):\n    time.sleep(0.02)\nraise SystemExit(3)"
    config = {"argv": [sys.executable, "-c", code], "cwd": str(tmp_path)}
    payload = {"metadata": {"worker": {"id": "script", "config": config}}, "artifacts": {}}
    run_id = trainer.submit(payload, environment=dict(os.environ)).run_id
    wait_for(lambda: trainer.get_run(run_id).pid, "its process")
    keeper = trainer.get_run(run_id).attempts[-1].keeper
    trainer.close()
    daemon.kill()
    moved = move(workspace, tmp_path / "moved")
    (tmp_path / "end").touch()
    wait_for(lambda: keeper is not None and not is_alive(keeper), "its keeper to end")
    with running_daemon(moved, plugins) as (_, other):
        view = ended(other, run_id)
        assert view.outcome == "failed"
        assert "Ended with exit code 3" in (view.reason or "")
    os.rename(moved.root, workspace.root)  # the fixture ends its daemon there


def test_processes_that_cannot_follow_are_named_and_can_be_ended(
    workspace: Workspace, plugins: Path, tmp_path: Path
) -> None:
    """F50: moved to another file system, where mv copies and deletes."""
    daemon = LiveDaemon(workspace, plugins)
    trainer = daemon.start()
    run_id = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
    wait_for(lambda: (trainer.get_run(run_id).global_step or 0) >= 3, "its first steps")
    attempt = trainer.get_run(run_id).attempts[-1]
    trainer.close()
    daemon.kill()
    moved = Workspace(tmp_path / "moved")
    shutil.copytree(workspace.root, moved.root, symlinks=True)
    shutil.rmtree(workspace.root)
    assert attempt.keeper is not None
    assert attempt.worker is not None
    with running_daemon(moved, plugins) as (_, other):
        wait_for(lambda: "cannot follow" in other.get_run(run_id).history[-1].message, "the warning")
        view = other.get_run(run_id)
        assert view.stage == "running"
        assert str(workspace.run(run_id).path) in view.history[-1].message
        assert str(attempt.keeper["pid"]) in view.history[-1].message
        with pytest.raises(ReadOnlyWorkspace):
            other.cancel_run(run_id)  # on another file system it is a copy, which its reader has not trusted yet
        other.trust_workspace(True)
        other.cancel_run(run_id)
        assert ended(other, run_id, 200).outcome == "lost"
    assert not is_alive(attempt.worker)
    assert not is_alive(attempt.keeper)
    assert not workspace.root.exists()


def test_paths_of_a_held_folder_follow_it_and_are_stated_as_they_are(tmp_path: Path) -> None:
    """F50: what is written into files is relative, or the path where the folder is."""
    path = tmp_path / "runs" / "R"
    path.mkdir(parents=True)
    held, plain = RunFolder.hold(path), RunFolder(path)
    assert (held.run_id, held.origin) == ("R", path)
    for one in (path / "videos" / "a.mp4", path, path.parent / "OTHER" / "m", Path("/elsewhere")):
        assert held.to_portable(one) == plain.to_portable(one)
    assert held.to_portable(held.videos / "a.mp4") == "videos/a.mp4"
    assert held.from_portable("videos/a.mp4") == str(held.videos / "a.mp4")
    assert held.from_portable("../OTHER/m") == str(path.parent / "OTHER" / "m")
    target = tmp_path / "elsewhere"
    path.rename(target)
    held.inbox.touch()
    assert (target / "inbox.jsonl").exists()
    assert held.to_readable(f"See {held.inbox}.") == f"See {target / 'inbox.jsonl'}."
    shutil.rmtree(target)
    assert not held.reopen_if_deleted()
    path.mkdir()
    assert held.reopen_if_deleted()
    held.inbox.touch()
    assert plain.inbox.exists()
