"""F14: a journal that ends in the middle of a line, or has lines that are not JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mosaic.base.journal import Journal
from mosaic.base.store import Index
from mosaic.base.store.ingest import JOURNAL, ingest
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.states import RunRecord


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    opened = Index(tmp_path / "index.sqlite")
    yield opened
    opened.close()


def add_run(index: Index, folder: Path) -> RunFolder:
    folder.mkdir()
    index.save(RunRecord(run_id=folder.name, worker="w", submitted_at=1.0, queued_at=1.0), 1)
    return RunFolder(folder)


def read_steps(index: Index, folder: RunFolder) -> list[int]:
    while ingest(index, folder, JOURNAL, folder.journal).has_more:
        pass
    with index.read_metrics(folder.run_id) as (_, parts):
        return [step for series in parts for step in series.steps]


def test_a_line_that_is_cut_at_any_byte_is_read_when_it_is_complete(index: Index, tmp_path: Path) -> None:
    """F14: what comes before it is in the index, and nothing is read twice."""
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for step in range(1, 4):
        journal.append("metrics", series={"loss": [[step, 1.0, 0.5]]})
    journal.close()
    data = path.read_bytes()
    last_line = data.rindex(b"\n", 0, -1) + 1
    for cut in range(last_line, len(data)):
        folder = add_run(index, tmp_path / f"R{cut}")
        folder.journal.write_bytes(data[:cut])
        assert read_steps(index, folder) == [1, 2]
        with open(folder.journal, "ab") as file:
            file.write(data[cut:])
        assert read_steps(index, folder) == [1, 2, 3]


def test_a_writer_that_continues_after_a_cut_line_loses_nothing_else(index: Index, tmp_path: Path) -> None:
    """F14: the line is completed as garbage, which is counted, or as a line, where only the newline was missing."""
    for cut in range(1, 60):
        folder = add_run(index, tmp_path / f"R{cut}")
        journal = Journal(folder.journal)
        for step in (1, 2):
            journal.append("metrics", series={"loss": [[step, 1.0, 0.5]]})
        journal.close()
        folder.journal.write_bytes(folder.journal.read_bytes()[:-cut])
        resumed = Journal(folder.journal)
        resumed.append("metrics", series={"loss": [[3, 1.0, 0.5]]})
        resumed.close()
        assert read_steps(index, folder) == ([1, 2, 3] if cut == 1 else [1, 3])
