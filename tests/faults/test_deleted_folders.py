"""F42: a run whose folder or record is deleted or emptied while it is active."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for

from mosaic.base.files import write_text
from mosaic.base.processes import is_alive
from mosaic.base.store import Index
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.states import RunRecord, Stage
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.trainer.records import Records

pytestmark = pytest.mark.may_log("record_restored", "record_unreadable")


def empty(folder: RunFolder) -> None:
    for path in folder.path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def truncate(folder: RunFolder) -> None:
    for path in folder.path.rglob("*"):
        if path.is_file():
            os.truncate(path, 0)


DAMAGES = {
    "deleted": lambda folder: shutil.rmtree(folder.path, ignore_errors=True),
    "emptied": empty,
    "truncated": truncate,
}


def start_run(trainer: TrainerClient, workspace: Workspace) -> RunFolder:
    run_id = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
    wait_for(lambda: (trainer.get_run(run_id).global_step or 0) >= 3, "its first steps")
    return workspace.run(run_id)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_whose_folder_is_gone_is_listed_and_can_be_cancelled(
    trainer: TrainerClient, workspace: Workspace, damage: str
) -> None:
    """F42: it continues, reports what follows, and ends as it was asked to."""
    folder = start_run(trainer, workspace)
    attempt = trainer.get_run(folder.run_id).attempts[-1]
    DAMAGES[damage](folder)
    reached = trainer.get_run(folder.run_id).global_step or 0
    wait_for(lambda: trainer.get_run(folder.run_id).problem, "the problem to be shown")
    wait_for(lambda: (trainer.get_run(folder.run_id).global_step or 0) > reached + 5, "further steps")
    assert [view.run_id for view in trainer.runs()] == [folder.run_id]
    trainer.cancel_run(folder.run_id)
    view = ended(trainer, folder.run_id)
    assert (view.outcome, view.reason) == ("cancelled", "Cancelled on request.")
    for process in (attempt.keeper, attempt.worker):
        wait_for(lambda: process is not None and not is_alive(process), "its processes to end")  # noqa: B023
    assert folder.config.stat().st_size


def test_a_stop_reaches_a_run_whose_folder_was_just_deleted(trainer: TrainerClient, workspace: Workspace) -> None:
    """F42: without an inbox the keeper is signaled."""
    folder = start_run(trainer, workspace)
    shutil.rmtree(folder.path, ignore_errors=True)
    trainer.cancel_run(folder.run_id)
    assert ended(trainer, folder.run_id).outcome == "cancelled"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_new_daemon_restores_an_active_run_from_the_index(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace, damage: str
) -> None:
    """F42: it is listed with its process, which can be cancelled."""
    folder = start_run(trainer, workspace)
    pid = trainer.get_run(folder.run_id).pid
    trainer.close()
    daemon.kill()
    DAMAGES[damage](folder)
    trainer = daemon.start()
    view = trainer.get_run(folder.run_id)
    assert (view.stage, view.pid) == ("running", pid)
    assert view.problem
    trainer.cancel_run(folder.run_id)
    assert ended(trainer, folder.run_id).outcome == "cancelled"
    trainer.close()


def test_a_script_that_deletes_its_own_folder_ends(trainer: TrainerClient, tmp_path: Path) -> None:
    """F42: its slot is free again, and its end is known."""
    code = "import os, shutil; shutil.rmtree(os.environ['MOSAIC_RUN_DIR'], ignore_errors=True)"
    config = {"argv": [sys.executable, "-c", code], "cwd": str(tmp_path)}
    payload = {"metadata": {"worker": {"id": "script", "config": config}}, "artifacts": {}}
    view = ended(trainer, trainer.submit(payload, environment=dict(os.environ)).run_id)
    assert (view.outcome, view.reason) == ("succeeded", "It ended without an error.")


def test_a_queued_run_whose_folder_is_deleted_still_starts(trainer: TrainerClient, workspace: Workspace) -> None:
    """F42: the daemon has everything that it needs."""
    trainer.set_cap(1)
    first = start_run(trainer, workspace)
    waiting = trainer.submit(scripted(steps=3)).run_id
    shutil.rmtree(workspace.run(waiting).path)
    trainer.cancel_run(first.run_id)
    assert ended(trainer, waiting).outcome == "succeeded"
    assert trainer.get_run(waiting).global_step == 3


def test_a_record_is_written_while_its_folder_is_being_deleted(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F42: whether the folder disappears before or after the file is written."""
    deletions = iter([shutil.rmtree, shutil.rmtree])

    def write_and_delete(path: Path, text: str, *, is_durable: bool) -> None:
        write_text(path, text, is_durable=is_durable)
        next(deletions, lambda folder: None)(path.parent)

    workspace.runs.mkdir(parents=True)
    with closing(Index(workspace.index)) as index:
        records = Records(workspace, index)
        record = RunRecord(run_id=records.new_id(), worker="w", stage=Stage.QUEUED, submitted_at=1.0, queued_at=1.0)
        workspace.run(record.run_id).path.mkdir()
        records.put(record)
        monkeypatch.setattr("mosaic.trainer.records.write_text", write_and_delete)
        records.put(record)
        stored = records.read(workspace.run(record.run_id))
        assert stored is not None
        assert "deleted" in (stored.problem or "")
