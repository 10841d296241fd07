"""The index: what it takes in, and that a crash repeats work and changes nothing."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from ulid import ULID

from mosaic.base.journal import Journal
from mosaic.base.store import Index, find_damage
from mosaic.base.store.index_schema import MAX_CHECKED_BYTES
from mosaic.base.store.ingest import JOURNAL, ingest
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.states import RunRecord
from mosaic.contracts.views import MetricsCursor
from mosaic.trainer.records import Records


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
    with index.read_metrics(run_id) as (_, parts):
        for series in parts:
            found.setdefault(series.tag, []).extend(zip(series.steps, series.values, strict=True))
    return found


class Reader:
    """Reads a run's points from where it stopped."""

    def __init__(self, index: Index, run_id: str) -> None:
        self._index = index
        self._run_id = run_id
        self._cursor = MetricsCursor(0, 0)

    def read(self) -> tuple[bool, dict[str, list[int]]]:
        """Whether what was read before no longer counts, and the steps of the new points by tag."""
        before = self._cursor
        with self._index.read_metrics(self._run_id, after=before) as (self._cursor, parts):
            steps: dict[str, list[int]] = {}
            for series in parts:
                steps.setdefault(series.tag, []).extend(series.steps)
        return self._cursor.generation != before.generation, steps


def write(folder: RunFolder, attempt: int, resumed_from: int | None, steps: range, first_episode: int) -> None:
    journal = Journal(folder.journal)
    journal.append("hello", worker="w", version="1", pid=1, attempt=attempt, resumed_from=resumed_from)
    journal.append("metrics", series={"loss": [[step, 1.0, step * 0.5] for step in steps]})
    journal.append("episodes", rows=[[first_episode + i, 0, step, 1.0, float(step), 3] for i, step in enumerate(steps)])
    journal.close()


def test_a_further_attempt_replaces_points_after_its_checkpoint(index: Index, folder: RunFolder) -> None:
    write(folder, 1, None, range(1, 8), 1)
    ingest(index, folder, JOURNAL, folder.journal)
    write(folder, 2, 4, range(5, 10), 5)
    ingest(index, folder, JOURNAL, folder.journal)
    found = points(index, folder.run_id)
    assert [step for step, _ in found["loss"]] == list(range(1, 10))
    assert [step for step, _ in found["charts/episodic_return"]] == list(range(1, 10))
    assert index.get_progress(folder.run_id).episodes == 9
    assert index.get_progress(folder.run_id).mean_return == 5.0


def test_a_reader_gets_each_point_once(index: Index, folder: RunFolder) -> None:
    reader = Reader(index, folder.run_id)
    write(folder, 1, None, range(1, 4), 1)
    ingest(index, folder, JOURNAL, folder.journal)
    tags = ("loss", "charts/episodic_return", "charts/episodic_length")
    assert reader.read() == (True, {key: [1, 2, 3] for key in tags})
    assert reader.read() == (False, {})
    write(folder, 1, None, range(4, 6), 4)
    ingest(index, folder, JOURNAL, folder.journal)
    assert reader.read() == (False, {key: [4, 5] for key in tags})


def test_a_reader_reloads_when_a_resume_drops_points(index: Index, folder: RunFolder) -> None:
    reader = Reader(index, folder.run_id)
    write(folder, 1, None, range(1, 8), 1)
    ingest(index, folder, JOURNAL, folder.journal)
    reader.read()
    write(folder, 2, 4, range(5, 7), 5)
    ingest(index, folder, JOURNAL, folder.journal)
    is_reload, steps = reader.read()
    assert is_reload
    assert steps["loss"] == steps["charts/episodic_return"] == [1, 2, 3, 4, 5, 6]
    assert reader.read() == (False, {})


def test_a_reader_of_an_index_that_was_rebuilt_reloads(tmp_path: Path, index: Index, folder: RunFolder) -> None:
    reader = Reader(index, folder.run_id)
    write(folder, 1, None, range(1, 4), 1)
    ingest(index, folder, JOURNAL, folder.journal)
    reader.read()
    rebuilt = Index(tmp_path / "rebuilt.sqlite")
    rebuilt.save(RunRecord(run_id=folder.run_id, worker="w", submitted_at=1.0, queued_at=1.0), 1)
    ingest(rebuilt, folder, JOURNAL, folder.journal)
    reader._index = rebuilt
    is_reload, steps = reader.read()
    assert is_reload
    assert steps["loss"] == [1, 2, 3]
    rebuilt.close()
    rebuilt.close()


def test_a_reader_reloads_when_episodes_are_replaced(index: Index, folder: RunFolder) -> None:
    reader = Reader(index, folder.run_id)
    index.add_points(folder.run_id, {"charts/episodic_return": [(1, 1.0, 1.0)]})
    assert reader.read() == (True, {"charts/episodic_return": [1]})
    index.add_episodes(folder.run_id, [(1, 0, 10, 1.0, 2.0, 3), (2, 0, 20, 1.0, 2.0, 3)])
    assert reader.read() == (True, {"charts/episodic_return": [10, 20], "charts/episodic_length": [10, 20]})
    index.add_episodes(folder.run_id, [(2, 0, 21, 1.0, 2.0, 3), (3, 0, 30, 1.0, 2.0, 3)])
    assert reader.read()[1]["charts/episodic_return"] == [10, 21, 30]
    assert index.get_progress(folder.run_id).episodes == 3


def test_totals_of_episodes_follow_additions_replacements_and_resumes(index: Index, folder: RunFolder) -> None:
    def totals() -> tuple[int, float | None]:
        progress = index.get_progress(folder.run_id)
        return progress.episodes, progress.mean_return

    def add(*numbers: int, value: float = 1.0) -> None:
        index.add_episodes(folder.run_id, [(number, 0, number, 1.0, value, 3) for number in numbers])

    assert totals() == (0, None)
    add(1, 2)
    add(2, 3, 3, value=4.0)  # one is known, one is given twice
    assert totals() == (3, 3.0)
    add(*range(4, 200), value=None)  # type: ignore[arg-type]
    assert totals() == (199, None)
    index.delete_above_step(folder.run_id, 2)
    assert totals() == (2, 2.5)
    index.delete_above_step(folder.run_id, -1)
    assert totals() == (0, None)
    add(1, 2)
    index.delete_run(folder.run_id)
    index.save(RunRecord(run_id=folder.run_id, worker="w", submitted_at=1.0, queued_at=1.0), 1)
    assert totals() == (0, None)


def test_episodes_that_were_evaluation_are_removed_and_the_step_is_corrected(index: Index, folder: RunFolder) -> None:
    journal = Journal(folder.journal)
    rows = [(number, 0, 10 * number, 1.0, float(number), 10) for number in (1, 2, 3)]
    journal.append("episodes", rows=rows, cut=[2, 3])
    journal.append("progress", global_step=30)
    journal.append("episodes_revoked", numbers=[1, 2], cut=1, global_step=10)
    journal.append("progress", global_step=12)
    journal.close()
    while ingest(index, folder, JOURNAL, folder.journal).has_more:
        pass
    progress = index.get_progress(folder.run_id)
    assert (progress.episodes, progress.cut_episodes, progress.mean_return) == (1, 1, 3.0)
    assert progress.global_step == 12


def test_adding_an_episode_does_not_read_those_before_it(index: Index, folder: RunFolder) -> None:
    def count_instructions(number: int) -> int:
        """Return how many hundreds of SQLite's instructions it takes to add one episode."""
        calls: list[None] = []
        index._db.set_progress_handler(lambda: calls.append(None), 100)
        index.add_episodes(folder.run_id, [(number, 0, number, 1.0, 1.0, 3)])
        index._db.set_progress_handler(None, 0)
        return len(calls)

    index.add_episodes(folder.run_id, [(number, 0, number, 1.0, 1.0, 3) for number in range(1, 201)])
    of_few = count_instructions(201)
    index.add_episodes(folder.run_id, [(number, 0, number, 1.0, 1.0, 3) for number in range(202, 20_001)])
    assert count_instructions(20_001) <= of_few + 1


def test_recent_events_are_encoded_once_and_points_are_left_in_the_file(index: Index, folder: RunFolder) -> None:
    write(folder, 1, None, range(1, 4), 1)
    ingest(index, folder, JOURNAL, folder.journal)
    hello, metrics, episodes = index.events_after(0, "", (), 10)
    assert json.loads(hello.json_text or "")["run_id"] == folder.run_id
    assert json.loads(hello.json_text or "")["worker"] == "w"
    assert metrics.json_text is episodes.json_text is None


def test_ingest_twice_from_the_same_offset_changes_nothing(index: Index, folder: RunFolder) -> None:
    write(folder, 1, None, range(1, 4), 1)
    ingest(index, folder, JOURNAL, folder.journal)
    before = points(index, folder.run_id), index.last_cursor()
    index.set_offset(folder.run_id, JOURNAL, 0, 0)
    ingest(index, folder, JOURNAL, folder.journal)
    assert (points(index, folder.run_id), index.last_cursor()) == before


def test_a_failure_in_the_middle_rolls_back(index: Index, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_incomplete_line_is_reported_and_the_others_are_ingested(index: Index, folder: RunFolder) -> None:
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


@pytest.mark.parametrize("damage", ["header", "pages", "table", "version", "text"])
def test_a_damaged_index_is_moved_aside_and_recreated(tmp_path: Path, damage: str) -> None:
    """F13: nothing of the bad file is overwritten."""
    path = tmp_path / "index.sqlite"
    index = Index(path)
    for number in range(200):
        index.save(RunRecord(run_id=f"R{number}", worker="w", submitted_at=1.0, queued_at=1.0, notes="x" * 500), 1)
    if damage == "table":
        index._db.execute("DROP TABLE point")
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


def test_readers_do_not_wait_for_a_transaction_and_the_writer_sees_its_own(index: Index, folder: RunFolder) -> None:
    """F44: a journal that is being read delays no other call."""
    with ThreadPoolExecutor(1) as other, index.transaction():
        index.update_progress(folder.run_id, global_step=7)
        assert index.get_progress(folder.run_id).global_step == 7
        assert other.submit(index.get_progress, folder.run_id).result(timeout=30).global_step is None
    assert index.get_progress(folder.run_id).global_step == 7


def test_a_large_index_is_opened_unchecked_and_its_damage_is_found_later(tmp_path: Path) -> None:
    """F13: a daemon must not start late because its index is large."""
    path = tmp_path / "index.sqlite"
    Index(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO event (run, source, seq, at, kind, body) VALUES (0, 'daemon', 1, 0, 'x', zeroblob(?))",
            (MAX_CHECKED_BYTES,),
        )
    assert find_damage(path) is None
    with open(path, "r+b") as file:
        file.seek(MAX_CHECKED_BYTES // 2)
        file.write(b"\xaa" * 8192)
    opened = Index(path)
    assert opened.recreate_reason is None
    problem = find_damage(path)
    assert problem == "damaged"
    opened.close()
    again = Index(path, problem)
    assert "The index was damaged" in (again.recreate_reason or "")
    again.close()


def test_runs_are_ordered_by_the_time_of_their_submission_whatever_their_ids_are(index: Index) -> None:
    """F58: an id of the daemon has its time, those of others have none."""
    issued, later = str(ULID.from_timestamp(1_000_000.0)), str(ULID.from_timestamp(3_000_000.0))
    beyond = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
    for run_id, submitted_at in ((later, 5.0), ("test1", 2_000_000.0), (issued, 9e9), (beyond, 2.0), ("zz", 1e11)):
        index.save(RunRecord(run_id=run_id, worker="w", submitted_at=submitted_at, queued_at=1.0), 1)
    expected = [later, "test1", issued, beyond, "01RUN", "zz"]
    assert index.list_run_ids() == expected
    assert index.newest_run_id() == later
    for at, run_id in enumerate(expected):
        older = [record.run_id for record, _ in index.list_runs(before=run_id, limit=2)]
        assert older == expected[at + 1 : at + 3]
    index.delete_run(issued)
    assert [record.run_id for record, _ in index.list_runs(before=issued)] == expected[3:], "of a deleted run, too"


def test_a_new_id_follows_those_of_the_daemon_and_no_others(index: Index, tmp_path: Path) -> None:
    """F58: an id by hand may be the highest that there is, after which none could follow."""
    ahead = str(ULID.from_timestamp(time.time() + 3600.0))
    for run_id in (ahead, "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "zzzz"):
        index.save(RunRecord(run_id=run_id, worker="w", submitted_at=1.0, queued_at=1.0), 1)
    assert ahead < Records(Workspace(tmp_path), index).new_id() < "1"


def test_a_run_is_found_by_its_id_in_any_case_and_by_the_exact_one_first(index: Index) -> None:
    """F58."""
    for run_id in ("test1", "Test2", "TEST2", "test12"):
        index.save(RunRecord(run_id=run_id, worker="w", submitted_at=1.0, queued_at=1.0), 1)
    finds = {"test1": ["test1"], "TEST1": ["test1"], "Test2": ["Test2"], "TEST2": ["TEST2"], "test2": ["TEST2"]}
    assert {reference: index.find_run_ids(reference, 9) for reference in finds} == finds
    assert sorted(index.find_run_ids("tes", 9)) == ["TEST2", "Test2", "test1", "test12"]
    assert index.find_run_ids("st12", 9) == ["test12"]


def test_a_record_that_an_earlier_version_stored_does_not_hide_the_others(index: Index) -> None:
    index.save(RunRecord(run_id="R2", worker="w", submitted_at=1.0, queued_at=1.0), 1)
    with closing(sqlite3.connect(index.path)) as db:
        db.execute("UPDATE run SET record = json_set(record, '$.priority', 1e30) WHERE run_id = 'R2'")
        db.commit()
    problems = {record.run_id: record.problem for record, _ in index.list_runs()}
    assert problems.keys() == {"01RUN", "R2"}
    assert problems["01RUN"] is None
    assert "priority: " in (problems["R2"] or "")
    found = index.get_record("R2")
    assert found is not None
    assert found.priority == 0
    assert [record.run_id for record in index.active_records()] == ["01RUN", "R2"]
