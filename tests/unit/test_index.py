"""The index: what it takes in, and that a crash repeats work and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from mosaic.contracts.folder import RunFolder
from mosaic.contracts.states import RunRecord
from mosaic.journal import Journal
from mosaic.store import Index
from mosaic.store.ingest import JOURNAL, ingest


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "01RUN")
    folder.path.mkdir()
    return folder


@pytest.fixture
def index(tmp_path: Path, folder: RunFolder) -> Iterator[Index]:
    made = Index(tmp_path / "index.sqlite")
    made.save(RunRecord(run_id=folder.run_id, worker="w", submitted_at=1.0, queued_at=1.0), 1)
    yield made
    made.close()


def points(index: Index, run_id: str) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for series in index.metrics(run_id, (), False):
        found.setdefault(series.tag, []).extend(zip(series.steps, series.values, strict=True))
    return found


def write(folder: RunFolder, attempt: int, resumed_from: int | None, steps: range, first_episode: int) -> None:
    journal = Journal(folder.journal)
    journal.append("hello", worker="w", version="1", pid=1, attempt=attempt, resumed_from=resumed_from)
    journal.append("metrics", series={"loss": [[step, 1.0, step * 0.5] for step in steps]})
    journal.append("episodes", rows=[[first_episode + i, 0, step, 1.0, float(step), 3] for i, step in enumerate(steps)])
    journal.close()


def test_a_further_attempt_replaces_what_lay_above_its_checkpoint(index: Index, folder: RunFolder) -> None:
    write(folder, 1, None, range(1, 8), 1)
    ingest(index, folder, JOURNAL, folder.journal)
    write(folder, 2, 4, range(5, 10), 5)
    ingest(index, folder, JOURNAL, folder.journal)
    found = points(index, folder.run_id)
    assert [step for step, _ in found["loss"]] == list(range(1, 10))
    assert [step for step, _ in found["charts/episodic_return"]] == list(range(1, 10))
    assert index.get_progress(folder.run_id).episodes == 9
    assert index.get_progress(folder.run_id).mean_return == 5.0


def test_ingest_twice_from_the_same_offset_changes_nothing(index: Index, folder: RunFolder) -> None:
    write(folder, 1, None, range(1, 4), 1)
    ingest(index, folder, JOURNAL, folder.journal)
    before = points(index, folder.run_id), index.last_cursor()
    index.set_offset(folder.run_id, JOURNAL, 0, 0)
    ingest(index, folder, JOURNAL, folder.journal)
    assert (points(index, folder.run_id), index.last_cursor()) == before


def test_a_failure_in_the_middle_takes_nothing_in(
    index: Index, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def power_cut(*_: object) -> None:
        raise RuntimeError("power cut")

    write(folder, 1, None, range(1, 4), 1)
    monkeypatch.setattr(index, "add_episodes", power_cut)
    with pytest.raises(RuntimeError):
        ingest(index, folder, JOURNAL, folder.journal)
    assert index.get_offset(folder.run_id, JOURNAL) == 0
    assert points(index, folder.run_id) == {}
    monkeypatch.undo()
    ingest(index, folder, JOURNAL, folder.journal)
    assert len(points(index, folder.run_id)["loss"]) == 3


def test_a_value_that_is_not_finite_comes_back_as_nan(index: Index, folder: RunFolder) -> None:
    journal = Journal(folder.journal)
    journal.append("metrics", series={"loss": [[1, 1.0, None]]})
    journal.close()
    ingest(index, folder, JOURNAL, folder.journal)
    assert math.isnan(points(index, folder.run_id)["loss"][0][1])


def test_a_line_that_lacks_its_facts_is_told_of_and_the_rest_taken_in(index: Index, folder: RunFolder) -> None:
    journal = Journal(folder.journal)
    journal.append("metrics", series={"loss": "nonsense"})
    journal.append("metrics")
    journal.append("episodes", rows=[[1]])
    journal.append("metrics", series={"loss": [[1, 1.0, 2.0]]})
    journal.close()
    ingest(index, folder, JOURNAL, folder.journal)
    assert points(index, folder.run_id)["loss"] == [(1, 2.0)]
    kinds = [event.kind for event in index.events_after(0, "", (), 100)]
    assert kinds.count("event_malformed") == 3


@pytest.mark.parametrize("damage", ["header", "pages", "version", "text"])
def test_a_bad_file_is_put_aside_and_begun_anew(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "index.sqlite"
    index = Index(path)
    for number in range(200):
        index.save(RunRecord(run_id=f"R{number}", worker="w", submitted_at=1.0, queued_at=1.0, notes="x" * 500), 1)
    if damage == "version":
        index._db.execute("PRAGMA user_version=99")
    index.close()
    data = bytearray(path.read_bytes())
    if damage == "header":
        data[:64] = b"\xff" * 64
    elif damage == "pages":
        data[4096:40960] = b"\xaa" * 36864
    elif damage == "text":
        data = bytearray(b"this is no database")
    path.write_bytes(data)
    again = Index(path)
    assert again.recreate_reason is not None
    assert again.modification_times() == {}
    again.close()
    kept = [file for file in tmp_path.iterdir() if ".bad-" in file.name and not file.name.endswith(("-wal", "-shm"))]
    assert [file.read_bytes() for file in kept] == [bytes(data)]
