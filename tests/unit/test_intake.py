"""Reading the files of runs into the index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mosaic.contracts.folder import Workspace
from mosaic.contracts.states import RunRecord
from mosaic.store import Index
from mosaic.store.ingest import ingest
from mosaic.trainer import intake
from mosaic.trainer.records import Records


def test_an_incomplete_line_is_read_again_only_when_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F44: megabytes without a newline are not read at every tick."""
    index = Index(tmp_path / "index.sqlite")
    index.save(RunRecord(run_id="R1", worker="w", submitted_at=1.0, queued_at=1.0), 1)
    records = Records(Workspace(tmp_path), index)
    folder = records.folder("R1")
    folder.path.mkdir(parents=True)
    reads = 0

    def count(*args: Any) -> Any:
        nonlocal reads
        reads += 1
        return ingest(*args)

    monkeypatch.setattr(intake, "ingest", count)
    reader = intake.Intake(records)
    folder.journal.write_text('{"seq": 1, "at": 1.0, "kind": "progress", "glo')
    assert [reader.read_next("R1") for _ in range(3)] == [False] * 3
    assert reads == 1
    with open(folder.journal, "a") as file:
        file.write('bal_step": 7}\n')
    assert [reader.read_next("R1") for _ in range(3)] == [True, False, False]
    assert (reads, index.get_progress("R1").global_step) == (2, 7)
    index.close()
