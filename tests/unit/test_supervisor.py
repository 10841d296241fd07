"""The daemon's loop."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path

import pytest

from mosaic.base.processes import own_identity
from mosaic.base.store import Index
from mosaic.contracts.folder import Workspace
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.contracts.states import RunRecord
from mosaic.trainer import supervisor
from mosaic.trainer.executors import StartRequest
from mosaic.trainer.executors.local import LocalExecutor
from mosaic.trainer.gpus import MpsServers
from mosaic.trainer.records import Records
from mosaic.trainer.scheduler import Slots


def test_reading_the_files_of_ended_runs_leaves_time_for_active_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F31: after an index of thousands of runs was rebuilt, a submitted run still starts at once."""
    index = Index(tmp_path / "index.sqlite")
    backlog = [f"R{number}" for number in range(1000)]
    loop = supervisor.Supervisor(Records(Workspace(tmp_path), index), {}, backlog)
    read: list[str] = []

    def follow_next(run_id: str) -> bool:
        read.append(run_id)
        return True

    monkeypatch.setattr(loop, "_follow_next", follow_next)
    monkeypatch.setattr(supervisor, "BACKLOG_S", 0.0)
    loop.ingest_backlog()
    assert len(read) < len(backlog)
    index.close()


def test_a_keeper_that_could_not_be_recorded_is_not_started_a_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F9: the disk becomes full between the start of the keeper and the record of it."""
    workspace, index = Workspace(tmp_path), Index(tmp_path / "index.sqlite")
    records = Records(workspace, index)
    folder = workspace.run("01RUN")
    folder.logs.mkdir(parents=True)
    workspace.configs.mkdir()
    folder.config.write_text(json.dumps({"metadata": {"worker": {"id": "cleanrl", "config": {}}}, "artifacts": {}}))
    records.put(RunRecord(run_id="01RUN", worker="cleanrl", submitted_at=1.0, queued_at=1.0))
    keepers: list[ProcessIdentity] = []

    def fail(record: RunRecord) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def start(request: StartRequest) -> ProcessIdentity:
        keepers.append(own_identity())
        full_disk.setattr(records, "put", fail)
        return keepers[-1]

    executor = LocalExecutor("", "", 0o077, Slots(1, 1, 0), MpsServers(tmp_path))
    monkeypatch.setattr(executor, "start", start)
    loop = supervisor.Supervisor(records, {executor.name: executor}, [])
    with monkeypatch.context() as full_disk, pytest.raises(OSError, match="No space left"):
        loop.start_runs()
    monkeypatch.setattr(executor, "_began", -math.inf)  # it no longer waits for keepers of an earlier daemon
    loop.apply_executor_changes()
    loop.start_runs()
    assert [record.attempts[-1].keeper for record in records.active.values()] == keepers
    assert len(keepers) == 1
    index.close()
