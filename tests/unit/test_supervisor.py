"""The daemon's loop."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mosaic.contracts.folder import Workspace
from mosaic.store import Index
from mosaic.trainer import supervisor
from mosaic.trainer.records import Records
from mosaic.trainer.scheduler import Slots


def test_reading_the_files_of_ended_runs_leaves_time_for_active_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F31: after an index of thousands of runs was rebuilt, a submitted run still starts at once."""
    index = Index(tmp_path / "index.sqlite")
    executor = cast(Any, SimpleNamespace(reap=None))
    backlog = [f"R{number}" for number in range(1000)]
    loop = supervisor.Supervisor(Records(Workspace(tmp_path), index), executor, Slots(1, 1, 0), backlog)
    read: list[str] = []

    def follow_next(run_id: str) -> bool:
        read.append(run_id)
        return True

    monkeypatch.setattr(loop, "_follow_next", follow_next)
    monkeypatch.setattr(supervisor, "BACKLOG_S", 0.0)
    loop.ingest_backlog()
    assert len(read) < len(backlog)
    index.close()
