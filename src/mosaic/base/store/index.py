"""Queries over the index. One writing connection, guarded by a lock; readers have others and never wait for it."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mosaic.base.store.index_schema import (
    IndexedEvent,
    RunProgress,
    connect_index,
    connect_reader,
    move_aside,
    open_index,
)
from mosaic.contracts.events import Deleted, Steps
from mosaic.contracts.experiment_member import ExperimentMember
from mosaic.contracts.names import LENGTH_TAG, RETURN_TAG
from mosaic.contracts.states import RunRecord, Stage, id_time_ms
from mosaic.contracts.views import MetricsCursor, MetricSeries

BULK_KINDS = ("metrics", "episodes", Steps.KIND)
"""Events that carry points: they are many and large, and readers get their points from the index."""
MAX_RECENT_EVENTS = 4000
MIN_SUFFIX_LENGTH = 4
MAX_REPEATED_AFTER = 2000
"""A request is repeated within a minute or so; not more runs than this are submitted meanwhile."""
_CHUNK = 5000
_NO_RUN = 0
"""The run of an event whose run was deleted."""

NO_METRICS = MetricsCursor()
"""Before the first point of any run."""


_IS_OLDER = "(submitted_ms, run_id) < (coalesce((SELECT submitted_ms FROM run WHERE run_id = ?), ?), ?)"
_NEWEST_FIRST = "ORDER BY submitted_ms DESC, run_id DESC"
_PROGRESS_COLUMNS = ", ".join(RunProgress._fields)


class Index:
    def __init__(self, path: Path, problem: str | None = None) -> None:
        """`problem`: what is wrong with the file, which is then moved aside."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._db, self.recreate_reason = open_index(path, problem)
        self._opened_inode = self._inode()
        self._writer_thread: int | None = None
        """The thread whose transaction is open."""
        self._idle_readers: list[sqlite3.Connection] = []
        self._keys: dict[str, int] = {}
        self._tags: dict[str, int] = dict(self._db.execute("SELECT name, id FROM tag"))
        self._recent_events: OrderedDict[int, str] = OrderedDict()
        """By cursor: encoded once for all watchers."""

    def close(self) -> None:
        while self._idle_readers:
            self._idle_readers.pop().close()
        with self._lock:
            self._db.close()

    def restore_if_gone(self) -> bool:
        """Write the index again where its file was deleted or replaced; return whether it was.

        The open connection still reads the deleted file. What is in its place is moved aside.
        """
        with self._lock:
            if self._inode() == self._opened_inode or self._db.in_transaction:
                return False
            copy = self.path.with_name(f"{self.path.name}.copy")
            copy.unlink(missing_ok=True)
            self._db.execute("VACUUM INTO ?", (str(copy),))
            self._db.close()
            move_aside(self.path)
            copy.rename(self.path)
            self._db = connect_index(self.path)
            self._opened_inode = self._inode()
            self._idle_readers = []  # those of the deleted file
            return True

    def _inode(self) -> int | None:
        try:
            return self.path.stat().st_ino
        except FileNotFoundError:
            return None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits all of the block or nothing; nested ones are part of the outermost."""
        with self._lock:
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            self._writer_thread = threading.get_ident()
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                self._keys.clear()
                self._recent_events.clear()  # their cursors will be used for other events
                self._tags = dict(self._db.execute("SELECT name, id FROM tag"))
                raise
            else:
                self._db.execute("COMMIT")
            finally:
                self._writer_thread = None

    def _is_writing(self) -> bool:
        """Whether the calling thread has a transaction open."""
        return self._writer_thread == threading.get_ident()

    def _rows(self, sql: str, args: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """Read what has been committed, without waiting for a transaction; inside of one, also what it has written."""
        if not self._is_writing():
            with suppress(sqlite3.DatabaseError), self._reader() as db:
                return db.execute(sql, args).fetchall()
        with self._lock:  # also where the file was deleted or overwritten, until it is restored
            return self._db.execute(sql, args).fetchall()

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        idle = self._idle_readers
        try:
            db = idle.pop()
        except IndexError:
            db = connect_reader(self.path)
        try:
            yield db
        except BaseException:
            db.close()  # it may still be within a statement
            raise
        idle.append(db)

    # --- runs

    def save(self, record: RunRecord, mtime: int) -> None:
        columns = {
            "run_id": record.run_id,
            "record": record.model_dump_json(),
            "record_mtime": mtime,
            "stage": record.stage,
            "outcome": record.outcome,
            "algo": record.algo,
            "env_id": record.env_id,
            "run_group": record.group,
            "is_archived": record.is_archived,
            "last_slot": record.attempts[-1].slot if record.attempts else 0,
            "submitted_ms": record.age_key[0],
            "total_timesteps": record.total_timesteps,
        }
        updates = ", ".join(f"{name}=excluded.{name}" for name in columns if name != "total_timesteps")
        with self.transaction():
            self._db.execute(
                f"INSERT INTO run ({', '.join(columns)}, generation) VALUES ({'?,' * len(columns)}?) "
                # A worker may have reported the total that the record lacks: it is not overwritten.
                f"ON CONFLICT (run_id) DO UPDATE SET {updates}, "
                "total_timesteps=coalesce(excluded.total_timesteps, total_timesteps)",
                (*columns.values(), time.time_ns()),
            )

    def delete_run(self, run_id: str) -> None:
        """Deletes all of a run except an event of the daemon, by which watchers learn that it is gone."""
        with self.transaction():
            key = self._key(run_id)
            for table in ("source", "event", "point", "episode"):
                self._db.execute(f"DELETE FROM {table} WHERE run=?", (key,))
            self._db.execute("DELETE FROM run WHERE id=?", (key,))
            self._keys.pop(run_id, None)
            self._insert_daemon_event(
                _NO_RUN, Deleted.KIND, {"run_id": run_id, "message": "It was moved to the trash."}
            )

    def _key(self, run_id: str) -> int:
        key = self._keys.get(run_id)
        if key is None:
            key = int(self._rows("SELECT id FROM run WHERE run_id=?", (run_id,))[0][0])
            if self._is_writing():  # else the run may have been deleted meanwhile
                self._keys[run_id] = key
        return key

    def modification_times(self) -> dict[str, int]:
        """By run: the modification time of the record.json that the index knows."""
        return dict(self._rows("SELECT run_id, record_mtime FROM run"))

    def active_records(self) -> list[RunRecord]:
        rows = self._rows("SELECT record FROM run WHERE stage != ? ORDER BY run_id", (Stage.FINISHED,))
        return [RunRecord.read(text) for (text,) in rows]

    def get_record(self, run_id: str) -> RunRecord | None:
        rows = self._rows("SELECT record FROM run WHERE run_id=?", (run_id,))
        return RunRecord.read(rows[0][0]) if rows else None

    def highest_slot(self) -> int:
        return int(self._rows("SELECT coalesce(max(last_slot), 0) FROM run")[0][0])

    def find_run_ids(self, reference: str, limit: int) -> list[str]:
        """Return the run with this id, else those whose id starts or ends with it, in any case, or that have this name.

        Ends shorter than MIN_SUFFIX_LENGTH are not searched: they would match too many runs.
        """
        for exact in (reference, reference.upper()):
            if self._rows("SELECT 1 FROM run WHERE run_id=?", (exact,)):
                return [exact]
        wanted, length = reference.upper(), len(reference.upper())
        rows = self._rows(
            "SELECT run_id FROM run WHERE substr(upper(run_id), 1, ?) = ? OR ? AND substr(upper(run_id), ?) = ?"
            " OR json_extract(record, '$.run_name') = ? ORDER BY submitted_ms, run_id LIMIT ?",
            (length, wanted, length >= MIN_SUFFIX_LENGTH, -length, wanted, reference, limit),
        )
        found = [run_id for (run_id,) in rows]
        return [run_id for run_id in found if run_id.upper() == wanted] or found

    def find_experiment_run(self, group: str | None, member: ExperimentMember) -> str | None:
        """Return the run of a group that has this key and attempt."""
        rows = self._rows(
            "SELECT run_id FROM run WHERE run_group IS ? AND json_extract(record, '$.experiment.key') = ? "
            "AND json_extract(record, '$.experiment.attempt') = ? ORDER BY run_id LIMIT 1",
            (group, member.key, member.attempt),
        )
        return rows[0][0] if rows else None

    def find_submitted_run(self, key: str) -> str | None:
        """Return the run that a request with this key has created, if it is among the newest ones."""
        rows = self._rows(
            f"SELECT run_id FROM (SELECT run_id, record FROM run {_NEWEST_FIRST} LIMIT ?) "
            "WHERE json_extract(record, '$.submission_key') = ?",
            (MAX_REPEATED_AFTER, key),
        )
        return rows[0][0] if rows else None

    def list_run_ids(self, include_archived: bool = False) -> list[str]:
        """Newest first."""
        condition = "" if include_archived else "WHERE NOT is_archived"
        return [run_id for (run_id,) in self._rows(f"SELECT run_id FROM run {condition} {_NEWEST_FIRST}")]

    def newest_run_id(self) -> str | None:
        rows = self._rows(f"SELECT run_id FROM run {_NEWEST_FIRST} LIMIT 1")
        return rows[0][0] if rows else None

    def count_by_status(self) -> dict[str, int]:
        rows = self._rows("SELECT coalesce(outcome, stage), count(*) FROM run GROUP BY stage, outcome")
        return dict(rows)

    def list_runs(
        self,
        status: Sequence[str] = (),
        algo: str = "",
        env_id: str = "",
        group: str = "",
        tags: Sequence[str] = (),
        include_archived: bool = False,
        before: str = "",
        limit: int = 0,
    ) -> Iterator[tuple[RunRecord, RunProgress]]:
        """Return records with their progress, newest first; `before`: only those older than this run.

        Attempts, the longest part of a record, are left out.
        """
        marks = ",".join("?" * len(status))
        conditions = {
            f"(stage IN ({marks}) OR outcome IN ({marks}))": [*status, *status] if status else None,
            "algo = ?": [algo] if algo else None,
            "env_id = ?": [env_id] if env_id else None,
            "run_group = ?": [group] if group else None,
            _IS_OLDER: [before, id_time_ms(before) or 0, before] if before else None,
            "NOT is_archived": None if include_archived else [],
        }
        chosen = {sql: args for sql, args in conditions.items() if args is not None}
        has_tag = "EXISTS (SELECT 1 FROM json_each(run.record, '$.tags') WHERE value = ?)"
        where = " AND ".join([*chosen, *(has_tag for _ in tags)]) or "1"
        args = [*(arg for some in chosen.values() for arg in some), *tags, limit or -1]
        columns = f"json_remove(record, '$.attempts'), {_PROGRESS_COLUMNS}"
        sql = f"SELECT {columns} FROM run WHERE {where} {_NEWEST_FIRST} LIMIT ?"
        return map(_run_from_row, self._rows(sql, args))

    def get_run(self, run_id: str) -> tuple[RunRecord, RunProgress] | None:
        rows = self._rows(f"SELECT record, {_PROGRESS_COLUMNS} FROM run WHERE run_id=?", (run_id,))
        return _run_from_row(rows[0]) if rows else None

    def get_progress(self, run_id: str) -> RunProgress:
        return _progress_from_row(self._rows(f"SELECT {_PROGRESS_COLUMNS} FROM run WHERE run_id=?", (run_id,))[0])

    def update_progress(self, run_id: str, **columns: Any) -> None:
        """Sets columns of the run's row, such as global_step or hardware."""
        names = ", ".join(f"{name}=?" for name in columns)
        with self.transaction():
            self._db.execute(f"UPDATE run SET {names} WHERE id=?", (*columns.values(), self._key(run_id)))

    # --- files and events

    def get_offset(self, run_id: str, source: str) -> int:
        rows = self._rows("SELECT offset FROM source WHERE run=? AND name=?", (self._key(run_id), source))
        return int(rows[0][0]) if rows else 0

    def set_offset(self, run_id: str, source: str, offset: int, malformed_count: int) -> None:
        with self.transaction():
            self._db.execute(
                "INSERT INTO source (run, name, offset, garbage) VALUES (?,?,?,?) ON CONFLICT (run, name) "
                "DO UPDATE SET offset=excluded.offset, garbage=garbage+excluded.garbage",
                (self._key(run_id), source, offset, malformed_count),
            )

    def reset_offsets(self, run_id: str) -> None:
        """Read a run's files from their beginning again: events that are known are skipped."""
        with self.transaction():
            self._db.execute("DELETE FROM source WHERE run=?", (self._key(run_id),))

    def add_event(self, run_id: str, source: str, body: Mapping[str, Any], begin: int, length: int) -> bool:
        """Returns False when it is known already. `begin` and `length` locate its line in the file."""
        kind = body["kind"]
        with self.transaction():
            done = self._db.execute(
                "INSERT OR IGNORE INTO event (run, source, seq, at, kind, begin, length) VALUES (?,?,?,?,?,?,?)",
                (self._key(run_id), source, body["seq"], body.get("at", 0.0), kind, begin, length),
            )
            if done.rowcount > 0 and kind not in BULK_KINDS:
                self._recent_events[done.lastrowid or 0] = encode_event(run_id, source, body)
                if len(self._recent_events) > MAX_RECENT_EVENTS:
                    self._recent_events.popitem(last=False)
            return done.rowcount > 0

    def add_daemon_event(self, run_id: str, kind: str, **fields: Any) -> None:
        """Adds an event that the daemon itself reports."""
        with self.transaction():
            self._insert_daemon_event(self._key(run_id), kind, fields)

    def _insert_daemon_event(self, key: int, kind: str, fields: Mapping[str, Any]) -> None:
        self._db.execute(
            "INSERT INTO event (run, source, seq, at, kind, body) SELECT ?, 'daemon', "
            "coalesce(max(seq), 0) + 1, ?, ?, ? FROM event WHERE run=? AND source='daemon'",
            (key, time.time(), kind, json.dumps(fields), key),
        )

    def last_cursor(self) -> int:
        return int(self._rows("SELECT coalesce(max(id), 0) FROM event")[0][0])

    def events_after(self, cursor: int, run_id: str, kinds: Sequence[str], limit: int) -> list[IndexedEvent]:
        of_run = "AND event.run = (SELECT id FROM run WHERE run_id = ?)" if run_id else ""
        of_kind = f"AND kind IN ({','.join('?' * len(kinds))})" if kinds else ""
        sql = (
            "SELECT event.id, coalesce(run_id, json_extract(body, '$.run_id')), source, seq, at, kind, begin, length, "
            f"body FROM event LEFT JOIN run ON run.id=event.run WHERE event.id > ? {of_run} {of_kind} "
            "ORDER BY event.id LIMIT ?"
        )
        rows = self._rows(sql, (cursor, *([run_id] if run_id else []), *kinds, limit))
        return [IndexedEvent._make((*row, self._recent_events.get(row[0]))) for row in rows]

    # --- points and episodes

    def add_points(self, run_id: str, series: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        with self.transaction():
            key = self._key(run_id)
            number = self._reserve_numbers(key, sum(len(points) for points in series.values()))
            for name, points in series.items():
                tag = self._tags.get(name)
                if tag is None:
                    tag = int(self._db.execute("INSERT INTO tag (name) VALUES (?)", (name,)).lastrowid or 0)
                    self._tags[name] = tag
                self._db.executemany(
                    "INSERT INTO point (run, tag, n, step, at, value) VALUES (?,?,?,?,?,?)",
                    [(key, tag, n, *point) for n, point in enumerate(points, number)],
                )
                number += len(points)

    def add_episodes(self, run_id: str, rows: Sequence[Sequence[Any]], cut: int = 0) -> None:
        """Rows of number, env, step, at, return, length. A number that is known already is replaced.

        `cut`: how many of them a script has ended by a reset.
        """
        if not rows:
            return
        with self.transaction():
            key = self._key(run_id)
            highest = self._rows("SELECT max(number) FROM episode WHERE run=?", (key,))[0][0]
            # Episodes take the place of points that were logged under their tags.
            is_replacing = highest is None and self._has_points(key, (RETURN_TAG, LENGTH_TAG))
            added = len({row[0] for row in rows})
            if highest is not None and min(row[0] for row in rows) <= highest:
                known = self._db.executemany(
                    "DELETE FROM episode WHERE run=? AND number=?", [(key, row[0]) for row in rows]
                )
                is_replacing = known.rowcount > 0
                added -= known.rowcount
            first = self._reserve_numbers(key, len(rows))
            self._db.executemany(
                "INSERT OR REPLACE INTO episode (run, n, number, env, step, at, episodic_return, length) "
                "VALUES (?,?,?,?,?,?,?,?)",
                [(key, n, *row) for n, row in enumerate(rows, first)],
            )
            if is_replacing:
                self._start_generation(key)
            self._update_episode_totals(key, added, cut)

    def revoke_episodes(self, run_id: str, numbers: Sequence[int], cut: int) -> None:
        """Remove episodes that are not training; `cut`: how many of them a script has ended by a reset."""
        with self.transaction():
            key = self._key(run_id)
            deleted = self._db.executemany("DELETE FROM episode WHERE run=? AND number=?", [(key, n) for n in numbers])
            self._start_generation(key)
            self._update_episode_totals(key, -max(0, deleted.rowcount), -cut)

    def _reserve_numbers(self, key: int, count: int) -> int:
        """Takes `count` point numbers of the run and returns the first of them."""
        self._db.execute("UPDATE run SET last_point = last_point + ? WHERE id=?", (count, key))
        return int(self._rows("SELECT last_point FROM run WHERE id=?", (key,))[0][0]) - count + 1

    def _has_points(self, key: int, tags: Iterable[str]) -> bool:
        known = (self._tags[tag] for tag in tags if tag in self._tags)
        return any(self._rows("SELECT 1 FROM point WHERE run=? AND tag=? LIMIT 1", (key, tag)) for tag in known)

    def _start_generation(self, key: int) -> None:
        """Makes readers read the run's points again from the beginning."""
        self._db.execute("UPDATE run SET generation = max(generation + 1, ?) WHERE id=?", (time.time_ns(), key))

    def _update_episode_totals(self, key: int, added: int, added_cut: int = 0) -> None:
        """`added`: how many more episodes there are. They are not counted again: that would read all of the run's."""
        self._db.execute(
            "UPDATE run SET episodes = episodes + :added, cut_episodes = cut_episodes + :cut, "
            "mean_return = (SELECT avg(episodic_return) FROM (SELECT episodic_return FROM episode WHERE run = :key "
            "ORDER BY number DESC LIMIT 100)) WHERE id = :key",
            {"key": key, "added": added, "cut": added_cut},
        )

    def delete_above_step(self, run_id: str, step: int) -> None:
        """Removes what an earlier attempt logged above `step`, from which a further attempt resumes."""
        with self.transaction():
            key = self._key(run_id)
            self._db.execute("DELETE FROM point WHERE run=? AND step>?", (key, step))
            deleted = self._db.execute("DELETE FROM episode WHERE run=? AND step>?", (key, step)).rowcount
            self._start_generation(key)
            self._update_episode_totals(key, -deleted)

    @contextmanager
    def read_metrics(
        self, run_id: str, tags: Sequence[str] = (), last_only: bool = False, after: MetricsCursor = NO_METRICS
    ) -> Iterator[tuple[MetricsCursor, Iterator[MetricSeries]]]:
        """Yields where the run's points end now, and the points after `after` by tag, in parts.

        Points come in the order of their arrival; episodes are the points of two tags. When `after` is of another
        generation, what was read up to it no longer counts: all points are returned.
        """
        key = self._key(run_id)
        with self._reader() as db:
            db.execute("BEGIN")  # one snapshot for the cursor and all parts
            row = db.execute("SELECT generation, last_point FROM run WHERE id=?", (key,)).fetchone()
            now = MetricsCursor(*row) if row else NO_METRICS  # it may just have been deleted
            begin = after.last_point if after.generation == now.generation else 0
            yield now, self._read_series(db, key, tags, last_only, begin)
            db.execute("COMMIT")

    def _read_series(
        self, db: sqlite3.Connection, key: int, tags: Sequence[str], last_only: bool, after: int
    ) -> Iterator[MetricSeries]:
        columns = {RETURN_TAG: "episodic_return", LENGTH_TAG: "length"}
        order = "DESC LIMIT 1" if last_only else "ASC"
        has_episodes = db.execute("SELECT 1 FROM episode WHERE run=? LIMIT 1", (key,)).fetchone()
        if has_episodes:
            for name, column in columns.items():
                if not tags or name in tags:
                    sql = f"SELECT step, at, {column} FROM episode WHERE run=? AND n>? ORDER BY n {order}"
                    yield from _series(name, db.execute(sql, (key, after)))
        logged = db.execute(
            "SELECT name, id FROM tag WHERE EXISTS (SELECT 1 FROM point WHERE run=? AND tag=tag.id AND n>?) "
            "ORDER BY name",
            (key, after),
        ).fetchall()
        for name, tag in logged:
            if (not tags or name in tags) and not (has_episodes and name in columns):
                sql = f"SELECT step, at, value FROM point WHERE run=? AND tag=? AND n>? ORDER BY n {order}"
                yield from _series(name, db.execute(sql, (key, tag, after)))

    def episodes(self, run_id: str) -> Iterator[list[dict[str, Any]]]:
        names = ("number", "env", "step", "at", "return", "length")
        with self._reader() as db:
            rows = db.execute(
                "SELECT number, env, step, at, episodic_return, length FROM episode WHERE run=? ORDER BY number",
                (self._key(run_id),),
            )
            while chunk := rows.fetchmany(_CHUNK):
                yield [dict(zip(names, row, strict=True)) for row in chunk]


def encode_event(run_id: str, source: str, body: Mapping[str, Any]) -> str:
    """The event as watchers get it."""
    return json.dumps({"run_id": run_id, "source": source, **body}, ensure_ascii=False)


def _run_from_row(row: Sequence[Any]) -> tuple[RunRecord, RunProgress]:
    return RunRecord.read(row[0]), _progress_from_row(row[1:])


def _progress_from_row(row: Sequence[Any]) -> RunProgress:
    progress = RunProgress._make(row)
    return progress._replace(hardware=json.loads(row[RunProgress._fields.index("hardware")] or "null"))


def _series(tag: str, rows: sqlite3.Cursor) -> Iterator[MetricSeries]:
    while chunk := rows.fetchmany(_CHUNK):
        steps, at, values = zip(*chunk, strict=True)
        yield MetricSeries(tag, steps, at, [float("nan") if value is None else value for value in values])
