"""F38: a workspace is copied while one of its runs is active."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.helpers.daemons import running_daemon, scripted, wait_for

from mosaic.contracts.errors import ReadOnlyWorkspace
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.connect import read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient


def test_a_copy_leaves_the_processes_of_the_original_alone(
    trainer: TrainerClient, workspace: Workspace, plugins: Path, tmp_path: Path
) -> None:
    """F38: the copy has a daemon of its own, names the original, and cancelling there has no effect on it."""
    run_id = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
    wait_for(lambda: (trainer.get_run(run_id).global_step or 0) >= 3, "its first steps")
    copy = Workspace(tmp_path / "copy")
    shutil.copytree(workspace.root, copy.root, symlinks=True)
    assert read_daemon_address(copy) is None
    with running_daemon(copy, plugins) as (_, other):
        wait_for(lambda: other.get_run(run_id).outcome, "the copied run to end")
        view = other.get_run(run_id)
        assert (view.outcome, view.pid) == ("lost", None)
        assert str(workspace.run(run_id).path) in (view.reason or "")
        with pytest.raises(ReadOnlyWorkspace):
            other.delete_run(run_id)
        other.trust_workspace(True)
        other.delete_run(run_id)
    reached = trainer.get_run(run_id).global_step or 0
    wait_for(lambda: (trainer.get_run(run_id).global_step or 0) > reached + 5, "further steps of the original")
    trainer.cancel_run(run_id)
