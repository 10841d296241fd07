"""Reading the files of runs into the index."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mosaic.base.journal import Journal
from mosaic.base.store import Index
from mosaic.base.store.ingest import ingest
from mosaic.contracts.folder import Workspace
from mosaic.contracts.states import RunRecord
from mosaic.trainer import intake
from mosaic.trainer.records import Records


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    """With one run, R1, and its empty folder."""
    index = Index(tmp_path / "index.sqlite")
    index.save(RunRecord(run_id="R1", worker="w", submitted_at=1.0, queued_at=1.0), 1)
    records = Records(Workspace(tmp_path), index)
    records.folder("R1").path.mkdir(parents=True)
    yield records
    index.close()


def test_an_incomplete_line_is_read_again_only_when_it_has_grown(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F44: megabytes without a newline are not read at every tick."""
    folder = records.folder("R1")
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
    with open(folder.journal, "a", encoding="utf-8") as file:
        file.write('bal_step": 7}\n')
    assert [reader.read_next("R1") for _ in range(3)] == [True, False, False]
    assert (reads, records.index.get_progress("R1").global_step) == (2, 7)


def test_the_step_of_a_run_is_the_highest_of_its_processes(records: Records) -> None:
    folder = records.folder("R1")
    reader = intake.Intake(records)
    with closing(Journal(folder.journal)) as main, closing(Journal(folder.path / "journal.77.jsonl")) as further:
        for journal, kind, step in ((main, "progress", 3), (further, "progress", 9), (further, "finished", 8)):
            journal.append(kind, outcome="succeeded", global_step=step)
            while reader.read_next("R1"):
                pass
        main.append("finished", outcome="succeeded", global_step=4)
        while reader.read_next("R1"):
            pass
    assert records.index.get_progress("R1").global_step == 9


def test_a_long_journal_delays_the_exit_of_its_worker_but_not_its_start(records: Records) -> None:
    """F44: a worker that writes faster than is read is known at once; its end comes after its last line."""
    folder = records.folder("R1")
    journal, keeper = Journal(folder.journal), Journal(folder.keeper)
    for step in range(2000):
        journal.append("progress", global_step=step)
    process = {"pid": 1, "start": "1", "boot_id": "b"}
    keeper.append("worker_started", process=process)
    seen: list[str] = []
    reader = intake.Intake(records, lambda _, source, lines: seen.extend(type(line.event).KIND for line in lines))
    assert reader.read_next("R1")
    assert "worker_started" in seen
    keeper.append("exited", code=0, signal=None, cause=None, duration_s=1.0, peak_rss_mb=1.0, limit=None, last_words="")
    while reader.read_next("R1"):
        pass
    assert seen[-1] == "exited"
    assert seen.count("progress") == 2000
    journal.close()
    keeper.close()


def test_a_file_that_cannot_be_opened_for_a_moment_is_read_again(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F9: too many open files are not the fault of the run, which is not quarantined."""
    folder = records.folder("R1")
    folder.journal.write_text('{"seq": 1, "at": 1.0, "kind": "progress", "global_step": 7}\n')
    reader = intake.Intake(records)

    def fail(*_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(intake, "ingest", fail)
        with pytest.raises(OSError, match="Too many open files"):
            reader.read_next("R1")
    assert reader.read_next("R1")
    assert records.index.get_progress("R1").global_step == 7
