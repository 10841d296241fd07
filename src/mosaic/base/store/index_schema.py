"""Tables and rows of the index; a damaged or outdated file is moved aside."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mosaic.base.files import file_size

VERSION = 7
MAX_CHECKED_BYTES = 32 << 20
"""A larger index is checked for damage after the daemon has started: that takes about 6 seconds per GB."""

TABLES = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    record TEXT NOT NULL,               -- the record as JSON
    record_mtime INTEGER NOT NULL,      -- of record.json when it was read or written, in ns
    stage TEXT NOT NULL, outcome TEXT, algo TEXT, env_id TEXT, run_group TEXT, is_archived INTEGER NOT NULL,
    last_slot INTEGER NOT NULL,         -- of its last attempt; 0 where it has none
    submitted_ms INTEGER NOT NULL,      -- runs are ordered by it, and then by id
    global_step INTEGER, sps REAL, total_timesteps INTEGER, fraction REAL,
    mean_return REAL, episodes INTEGER NOT NULL DEFAULT 0, cut_episodes INTEGER NOT NULL DEFAULT 0,
    hardware TEXT, checkpoint_step INTEGER,
    last_point INTEGER NOT NULL DEFAULT 0,  -- number of the newest point or episode; never used twice
    generation INTEGER NOT NULL         -- changes when points that may have been read no longer count
);
CREATE INDEX run_by_status ON run (stage, outcome);
CREATE INDEX run_by_slot ON run (last_slot);
CREATE INDEX run_by_time ON run (submitted_ms, run_id);
CREATE TABLE source (                   -- how far each file of a run has been read
    run INTEGER NOT NULL, name TEXT NOT NULL, offset INTEGER NOT NULL, garbage INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, name)
) WITHOUT ROWID;
CREATE TABLE event (                    -- where each event's line is; those of the daemon have no file
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER NOT NULL, source TEXT NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL,
    begin INTEGER, length INTEGER, body TEXT,
    UNIQUE (run, source, seq)
);
CREATE TABLE tag (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE point (                    -- n counts the points and episodes of a run in order of arrival
    run INTEGER NOT NULL, tag INTEGER NOT NULL, n INTEGER NOT NULL, step INTEGER NOT NULL, at REAL NOT NULL, value REAL,
    PRIMARY KEY (run, tag, n)
) WITHOUT ROWID;
CREATE TABLE episode (
    run INTEGER NOT NULL, n INTEGER NOT NULL, number INTEGER NOT NULL, env INTEGER NOT NULL, step INTEGER NOT NULL,
    at REAL NOT NULL, episodic_return REAL, length INTEGER NOT NULL,  -- a return that is not finite is null
    PRIMARY KEY (run, n), UNIQUE (run, number)
) WITHOUT ROWID;
"""


class RunProgress(NamedTuple):
    """A run's progress, by column of its row."""

    global_step: int | None
    sps: float | None
    total_timesteps: int | None
    fraction: float | None
    mean_return: float | None
    episodes: int
    cut_episodes: int
    hardware: dict[str, Any] | None
    checkpoint_step: int | None


class IndexedEvent(NamedTuple):
    cursor: int
    run_id: str
    source: str
    seq: int
    at: float
    kind: str
    begin: int | None
    length: int | None
    body: str | None
    """Of the daemon's own events."""
    json_text: str | None
    """The event as watchers get it, where it is recent; else its line must be read from the run's file."""


def open_index(path: Path, problem: str | None = None) -> tuple[sqlite3.Connection, str | None]:
    """Opens the index; also returns why it had to be created again. A bad file is renamed, never overwritten.

    `problem` is what is known to be wrong with the file. A large one is not checked here: `find_damage` does that.
    """
    connection: sqlite3.Connection | None = None
    try:
        connection = connect_index(path)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            _create(connection)
            return connection, None
        if version != VERSION:
            problem = f"of another version ({version}, expected {VERSION})"
        elif problem is None and _schema(connection) != _expected_schema():
            problem = "damaged"
        elif problem is None and file_size(path) < MAX_CHECKED_BYTES:
            problem = _check_pages(connection)
        if problem is None:
            return connection, None
    except sqlite3.DatabaseError as error:
        problem = f"damaged ({error})"
    if connection is not None:
        connection.close()
    aside = move_aside(path)
    connection = connect_index(path)
    _create(connection)
    return connection, f"The index was {problem}; the old file is kept at {aside}."


def move_aside(path: Path) -> Path:
    """Rename the files of an index, and return the new path."""
    aside = path.with_name(f"{path.name}.bad-{time.time_ns()}")
    for suffix in ("", "-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.rename(aside.with_name(aside.name + suffix))
    return aside


def _schema(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Its tables and their columns: a table that was dropped is not damage to SQLite."""
    return set(connection.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"))


@cache
def _expected_schema() -> set[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _create(connection)
        return _schema(connection)


def find_damage(path: Path) -> str | None:
    """Return what is wrong with an index that is large and in use; reading all of it may take a while."""
    if file_size(path) < MAX_CHECKED_BYTES:
        return None  # `open_index` has checked it
    try:
        with closing(connect_reader(path)) as connection:
            return _check_pages(connection)
    except sqlite3.DatabaseError as error:
        return f"damaged ({error})"


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the error comes from a damaged file, not from a full disk and the like."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _check_pages(connection: sqlite3.Connection) -> str | None:
    return None if connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok" else "damaged"


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that one thread at a time may use: a reply's parts are read by different threads."""
    place = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(place, uri=True, check_same_thread=False, isolation_level=None)


def connect_index(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _create(connection: sqlite3.Connection) -> None:
    connection.executescript(f"BEGIN; {TABLES} PRAGMA user_version={VERSION}; COMMIT;")
