"""F13: an index that is damaged or deleted is rebuilt or restored, and the user is told."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for

from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient


def damage_header(index: Path) -> None:
    index.write_bytes(b"not a database" * 1000)


def drop_table(index: Path) -> None:
    with closing(sqlite3.connect(index)) as connection:
        connection.execute("DROP TABLE point")
        connection.commit()


def delete(index: Path) -> None:
    for path in index.parent.glob("index.sqlite*"):
        path.unlink()


@pytest.mark.may_log("index_rebuilt")
@pytest.mark.parametrize(("spoil", "is_kept"), [(damage_header, True), (drop_table, True), (delete, False)])
def test_the_command_that_starts_the_daemon_prints_that_the_index_was_rebuilt(
    daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace, spoil: object, is_kept: bool
) -> None:
    """F13: also where a table is missing, which SQLite does not call damage."""
    run_id = ended(trainer, trainer.submit(scripted(steps=3)).run_id).run_id
    daemon.stop()
    assert callable(spoil)
    spoil(workspace.index)
    result = mosaic(workspace, "runs", "--json")
    assert result.code == 0
    assert "It was rebuilt from 1 run folder." in result.err
    assert ("the old file is kept at " in result.err) is is_kept
    assert bool(list(workspace.trainer.glob("index.sqlite.bad-*"))) is is_kept
    assert "rebuilt from 1 run folder" in mosaic(workspace, "daemon", "status").out
    assert "rebuilt" not in mosaic(workspace, "runs").err, "reported once"
    with connect(workspace, may_start=False) as again:
        assert sum(len(series.values) for series in again.metrics(run_id)) > 0
        again.stop_daemon()


@pytest.mark.may_log("index_restored")
def test_an_index_that_is_deleted_under_a_live_daemon_is_written_again(
    trainer: TrainerClient, workspace: Workspace
) -> None:
    """F13: nothing is lost, and an active run continues to be recorded."""
    done = ended(trainer, trainer.submit(scripted(steps=3)).run_id)
    active = trainer.submit(scripted(steps=100_000, dt=0.01)).run_id
    wait_for(lambda: trainer.get_run(active).global_step, "its first steps")
    delete(workspace.index)
    wait_for(workspace.index.exists, "the index to be written again")
    assert sum(len(series.values) for series in trainer.metrics(done.run_id)) > 0
    step = trainer.get_run(active).global_step or 0
    wait_for(lambda: (trainer.get_run(active).global_step or 0) > step, "further steps")
    trainer.cancel_run(active)
    assert ended(trainer, active).outcome == "cancelled"
    assert {view.run_id for view in trainer.runs()} == {done.run_id, active}
