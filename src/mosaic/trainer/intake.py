"""Reads the files of runs into the index, so that one bad run never stops another."""

from __future__ import annotations

import errno
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from mosaic.base.files import is_disk_full_error
from mosaic.base.store.ingest import KEEPER, IngestedEvent, event_sources, ingest
from mosaic.contracts.events import Event, Exited
from mosaic.contracts.folder import RunFolder
from mosaic.trainer.records import Records

log = structlog.get_logger("mosaic.trainer.intake")

YIELD_S = 0.002
"""Time between two parts of a long journal, in which others can write to the index."""

_EXITED = b'"kind":"exited"'
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Too many open files, or no memory."""

OnEvents = Callable[[RunFolder, str, list[IngestedEvent]], None]
"""Called with the folder, the file's name in the index and its new events, in the transaction that stores them."""


class Intake:
    def __init__(self, records: Records, on_events: OnEvents = lambda *_: None) -> None:
        self._records = records
        self._on_events = on_events
        self._quarantined: set[tuple[str, str]] = set()
        """Runs and the files of theirs that are no longer read, because that failed."""
        self._incomplete_sizes: dict[tuple[str, str], int] = {}
        """By run and file: its size when it ended with an incomplete line, which is not read again before it grows."""

    def read_next(self, run_id: str) -> bool:
        """Ingest the next events of a run's files, a bounded number of them; returns whether there may be more.

        The exit in the keeper's file comes after the journals, which end with the final report. What precedes it does
        not wait: a worker that writes faster than is read would hide its own process.
        """
        folder = self._records.folder(run_id)
        has_more = self._read_journals(folder)
        if has_more and self._has_exited(folder):
            return True
        return self._read_file(folder, KEEPER, folder.keeper) or has_more

    def _has_exited(self, folder: RunFolder) -> bool:
        """Return whether the unread part of the keeper's file has the exit; nothing writes to the journals then."""
        try:
            with open(folder.keeper, "rb") as file:
                file.seek(self._records.index.get_offset(folder.run_id, KEEPER))
                return _EXITED in file.read()
        except OSError:
            return False

    def _is_end(self, run_id: str, event: Event) -> bool:
        """Return whether it is the end that the keeper reported, after which nothing is written to the journals."""
        record = self._records.active.get(run_id)
        return isinstance(event, Exited) and (
            record is None or not record.attempts or record.attempts[-1].is_ended_by(event.end_key)
        )

    def read_all(self, run_id: str, deadline: float) -> bool:
        """Ingest a run's files to their end, or until the deadline; returns whether the end was reached."""
        while time.monotonic() < deadline:
            if not self.read_next(run_id):
                return True
        return False

    def _read_journals(self, folder: RunFolder) -> bool:
        sources = event_sources(folder).items()
        have_more = [self._read_file(folder, source, path) for source, path in sources if source != KEEPER]
        return any(have_more)

    def _read_file(self, folder: RunFolder, source: str, path: Path) -> bool:
        run_id = folder.run_id
        if (run_id, source) in self._quarantined:
            return False
        try:
            size = path.stat().st_size  # at every tick, so without a transaction
            if size in (self._incomplete_sizes.get((run_id, source)), self._records.index.get_offset(run_id, source)):
                return False
            with self._records.index.transaction():
                batch = ingest(self._records.index, folder, source, path)
                if source == KEEPER and any(self._is_end(run_id, line.event) for line in batch.events):
                    while self._read_journals(folder):  # what the worker wrote between the two reads
                        pass
                self._on_events(folder, source, batch.events)
        except (sqlite3.OperationalError, sqlite3.InternalError):
            raise  # such as a full disk: not the run's fault
        except FileNotFoundError:
            return False  # the folder is being deleted: the supervisor restores it, then the file is read again
        except Exception as error:
            if is_disk_full_error(error) or (isinstance(error, OSError) and error.errno in _SHORTAGES):
                raise  # not the run's fault, either: it is read again at the next tick
            log.exception("run_quarantined", run_id=run_id, source=source)
            self._quarantined.add((run_id, source))
            self._records.report_problem(run_id, f"{path.name} cannot be read ({type(error).__name__}: {error})"[:300])
            return False
        if not batch.has_more:
            self._incomplete_sizes[run_id, source] = size
        return batch.has_more
