"""Adopts runs whose worker was started by hand: their folder has a config and a journal, but no record."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import structlog

from mosaic.base.files import file_size
from mosaic.base.journal import Follower
from mosaic.base.processes import start_time
from mosaic.contracts.events import Event, Finished, Hello, decode_event
from mosaic.contracts.folder import RunFolder, is_run_id
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import HistoryEntry, Outcome, RunRecord, Stage
from mosaic.trainer.records import Records, summary_fields

log = structlog.get_logger("mosaic.trainer.adoption")

CHECK_S = 1.0
_TAIL_BYTES = 1 << 16
_OUTCOMES = {
    "succeeded": (Outcome.SUCCEEDED, "It completed all its steps."),
    "stopped": (Outcome.CANCELLED, "It was stopped from outside."),
    "rejected": (Outcome.REJECTED, "The worker refused its config."),
}


class Adoption:
    """Watches the folder of the runs for those that the daemon did not create."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._modified_ns = 0
        self._next_check_at = 0.0
        self._known = set(records.index.modification_times())
        """Runs with a record; their folders are not looked at again."""
        self._candidates: list[RunFolder] = []
        """Folders without a record, until their run has ended."""

    def adopt_ended_runs(self) -> list[str]:
        """Add the runs that have ended since the last call to the index; return their ids."""
        if time.monotonic() < self._next_check_at:
            return []
        self._next_check_at = time.monotonic() + CHECK_S
        runs = self._records.workspace.runs
        try:
            modified_ns = runs.stat().st_mtime_ns
        except FileNotFoundError:
            return []  # the workspace is being deleted or moved
        if modified_ns != self._modified_ns:
            self._modified_ns = modified_ns
            names = {name for name in os.listdir(runs) if is_run_id(name)}
            self._known &= names
            self._candidates = [self._records.folder(name) for name in sorted(names - self._known)]
        adopted = [folder.run_id for folder in self._candidates if not folder.record.exists() and self._adopt(folder)]
        self._known.update(folder.run_id for folder in self._candidates if folder.record.exists())
        self._candidates = [folder for folder in self._candidates if folder.run_id not in self._known]
        return adopted

    def _adopt(self, folder: RunFolder) -> bool:
        """Add a run to the index unless it is still active or not one at all."""
        if not folder.config.is_file():
            return False
        try:
            record = build_record(folder)
        except (OSError, ValueError):
            return False
        if record is None:
            return False
        with self._records.lock:
            if self._records.index.get_record(folder.run_id) is not None:
                return False  # its folder was deleted and is being restored
            self._records.put(record)
        log.info("run_adopted", run_id=folder.run_id, outcome=record.outcome)
        return True


def build_record(folder: RunFolder) -> RunRecord | None:
    """Return the record of a run that its worker alone has described; None while that worker is alive.

    Raises OSError or ValueError if its config cannot be read.
    """
    hello = next(_events(folder, 0), None)
    if not isinstance(hello, Hello):
        return None
    last = [hello, *_events(folder, max(0, file_size(folder.journal) - _TAIL_BYTES))][-1]
    if not isinstance(last, Finished) and start_time(hello.pid):
        return None
    payload = Payload.read(folder.config)
    outcome, reason = Outcome.LOST, "Its worker was started by hand and ended without a report."
    if isinstance(last, Finished):
        outcome, reason = _OUTCOMES.get(last.outcome, (Outcome.FAILED, "The worker reported a failure."))
        reason = last.reason or reason
    message = f"Started by hand. {outcome.value.capitalize()}: {reason}"
    return RunRecord(
        run_id=folder.run_id,
        worker=payload.metadata.worker.id,
        run_name=payload.run_name,
        group=payload.metadata.group,
        tags=payload.metadata.tags,
        notes=payload.metadata.notes,
        stage=Stage.FINISHED,
        outcome=outcome,
        reason=reason,
        capabilities=hello.capabilities,
        submitted_at=hello.at,
        queued_at=hello.at,
        started_at=hello.at,
        finished_at=last.at,
        history=(HistoryEntry(at=last.at, stage=Stage.FINISHED, message=message),),
        **summary_fields(payload, {}),
    )


def _events(folder: RunFolder, offset: int) -> Iterator[Event]:
    return (decode_event(line.body) for line in Follower(folder.journal, offset).read(_TAIL_BYTES))
