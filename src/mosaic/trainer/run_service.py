"""What clients request of runs that exist: checks first, then the change under the lock, never waiting under it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from mosaic.common.files import write_json
from mosaic.common.processes import is_gone
from mosaic.contracts.commands import PAUSE, RESUME, STOP
from mosaic.contracts.errors import BadInput, CheckpointDamaged, NotAllowed
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.model import parse_contract
from mosaic.contracts.payload import Imports, Metadata, Schedule
from mosaic.contracts.setting_field import validate_label
from mosaic.contracts.states import Outcome, ResumeObstacle, RunRecord, Stage
from mosaic.contracts.views import RunView
from mosaic.trainer.admission import (
    check_steps,
    refuse_import_folders,
    require_trust,
)
from mosaic.trainer.checkers import Checkers
from mosaic.trainer.lifecycle import Requeued, StopRequested, advance
from mosaic.trainer.records import Records
from mosaic.trainer.submissions import Caller, Submissions
from mosaic.trainer.trash import move_to_trash
from mosaic.workers import get_worker


class RunService:
    def __init__(
        self, records: Records, checkers: Checkers, submissions: Submissions, wake: Callable[[], None]
    ) -> None:
        self._records = records
        self._checkers = checkers
        self._submissions = submissions
        self._wake = wake

    def cancel(self, reference: str) -> RunView:
        with self._records.lock:
            record = self._resolve_record(reference, lambda record: record.is_active)
            if record.stage is Stage.FINISHED:
                raise NotAllowed(f"Run {record.run_id} has already ended: {record.outcome}.")
            if record.stage is Stage.STOPPING and record.checkpoint_wait is not None:
                self._request_stop(record)  # its keeper does not wait for the checkpoint any longer
            elif record.stage is not Stage.STOPPING:
                if record.holds_slot:
                    self._request_stop(record)
                self._records.put(advance(record, StopRequested(at=time.time())))
        self._wake()
        return self._records.view(record.run_id)

    def pause(self, reference: str) -> RunView:
        with self._records.lock:
            record = self._resolve_record(reference, lambda record: record.stage is Stage.RUNNING)
            if record.stage is Stage.PAUSED:
                raise NotAllowed(f"Run {record.run_id} is already paused. Resume it: mosaic resume {record.run_id}")
            if record.stage is not Stage.RUNNING:
                raise NotAllowed(f"Run {record.run_id} is {record.status}; only a running one can be paused.")
            self._send_command(record, PAUSE, by_signal="pause" not in record.capabilities)
        self._wake()
        return self._records.view(record.run_id)

    def resume(self, reference: str, total_timesteps: int | None, caller: Caller) -> RunView:
        """Unpauses a paused run; continues a finished one from its last good checkpoint, in the same folder."""
        is_extended = total_timesteps is not None
        record = self._resolve_record(reference, lambda record: not self._find_resume_obstacle(record, is_extended))
        check_steps(total_timesteps)
        if record.is_active:
            with self._records.lock:
                record = self._resolve_record(record.run_id)
                if record.stage is not Stage.PAUSED:
                    raise NotAllowed(f"Run {record.run_id} is already {record.status}.")
                if total_timesteps is not None:
                    raise NotAllowed("The steps of a paused run cannot be changed; extend it when it has ended.")
                self._send_command(record, RESUME, by_signal="pause" not in record.capabilities)
        else:
            self._submissions.require_space()
            self._requeue_from_checkpoint(record, total_timesteps, caller)
        self._wake()
        return self._records.view(record.run_id)

    def _find_resume_obstacle(self, record: RunRecord, is_extended: bool) -> ResumeObstacle | None:
        """By what is in the folder, as the worker will look there."""
        return record.find_resume_obstacle(_has_checkpoint(self._records.folder(record.run_id)), is_extended)

    def _requeue_from_checkpoint(self, record: RunRecord, total_timesteps: int | None, caller: Caller) -> None:
        obstacle = self._find_resume_obstacle(record, total_timesteps is not None)
        if obstacle is ResumeObstacle.ATTACHED:
            raise NotAllowed(
                f"Run {record.run_id} was produced by a program that called mosaic.start_run. Run that program again."
            )
        folder = self._records.folder(record.run_id)
        reached = self._records.index.get_progress(record.run_id).global_step or 0
        if obstacle is ResumeObstacle.NO_CHECKPOINT:
            raise NotAllowed(
                f"Run {record.run_id} has no checkpoint to resume from. "
                f"Submit it again: mosaic resubmit {record.run_id}"
            )
        if obstacle is ResumeObstacle.SUCCEEDED:
            raise NotAllowed(
                f"Run {record.run_id} has succeeded after {reached:,} steps. "
                f"Extend it: mosaic resume {record.run_id} --total-timesteps {max(2 * reached, 1)}"
            )
        if total_timesteps is not None and total_timesteps <= reached and record.outcome is Outcome.SUCCEEDED:
            raise BadInput(f"total_timesteps: {total_timesteps:,} is not more than the {reached:,} steps it has done.")
        payload = self._records.read_payload(record.run_id)
        if total_timesteps is not None:
            payload = payload.with_worker(config={**payload.metadata.worker.config, "total_timesteps": total_timesteps})
        if not caller.is_trusted:
            require_trust(payload)
        imports = payload.metadata.worker.imports
        if payload.modules and not (imports and imports.folders):
            given = {"modules": list(payload.modules), "folders": caller.import_folders}
            payload = payload.with_worker(imports=parse_contract(Imports, given, "The folders of modules were"))
        refuse_import_folders(payload, self._records.workspace.trainer)
        self._submissions.verdict(payload, self._submissions.get_executor(record.executor))
        self._require_intact_checkpoint(record)
        with self._records.lock:
            record = self._resolve_record(record.run_id)
            if record.is_active:
                raise NotAllowed(f"Run {record.run_id} is already {record.status}.")
            if payload != self._records.read_payload(record.run_id):
                data = payload.to_json()
                write_json(folder.config, data)
                write_json(self._records.workspace.payload_copy(record.run_id), data)
            self._records.payloads[record.run_id] = payload
            requeued = Requeued(at=self._records.queue_time(record.queued_at), total_timesteps=total_timesteps)
            self._records.put(advance(record, requeued))

    def _require_intact_checkpoint(self, record: RunRecord) -> None:
        """Refuses where all checkpoints are damaged: the run would start from its beginning and lose its curve."""
        if not get_worker(record.worker).can_load_policies:
            return  # only its worker knows
        question = {"ask": "checkpoint", "path": str(self._records.folder(record.run_id).path)}
        try:
            self._checkers.ask(record.worker, question)
        except CheckpointDamaged:
            raise CheckpointDamaged(
                f"No checkpoint of run {record.run_id} is intact, so it cannot be resumed; nothing was changed. "
                f"Train it again from the beginning: mosaic resubmit {record.run_id}"
            ) from None

    def _request_stop(self, record: RunRecord) -> None:
        """Write a stop to the inbox; where the keeper cannot read that, terminate it, so that it stops the worker."""
        attempt, folder = record.attempts[-1], self._records.folder(record.run_id).path
        try:
            self._send_command(record, STOP)
            if not record.is_local or attempt.folder in ("", os.path.realpath(folder)):
                return
            raise FileNotFoundError(attempt.folder)  # it was moved without its keeper
        except OSError:
            if not record.is_local:
                raise
            keeper = attempt.keeper
            if keeper is None or is_gone(keeper):
                return  # its end is about to be noticed
            os.kill(keeper["pid"], signal.SIGTERM)

    def _send_command(self, record: RunRecord, command: str, **fields: Any) -> None:
        self._records.send_command(record.run_id, command, **fields)

    # --- notes, archive, trash

    def annotate(
        self,
        reference: str,
        add: list[str],
        remove: list[str],
        notes: str | None,
        is_archived: bool | None,
        priority: int | None = None,
        run_name: str | None = None,
    ) -> RunView:
        """`run_name` replaces the name, which is the record's alone: the config stays as it was submitted."""
        with self._records.lock:
            record = self._resolve_record(reference)
            tags = tuple(dict.fromkeys([*(tag for tag in record.tags if tag not in remove), *add]))
            choice = {"id": record.worker, "config": {}}
            what = "The tag was" if add else "The note was"
            checked = parse_contract(Metadata, {"worker": choice, "tags": tags, "notes": notes}, what)
            if is_archived and record.is_active:
                raise NotAllowed(f"Run {record.run_id} is {record.status}; archive it when it has ended.")
            if priority is not None:
                parse_contract(Schedule, {"priority": priority}, "The priority was")
            if priority is not None and record.stage is not Stage.QUEUED:
                raise NotAllowed(f"Run {record.run_id} is {record.status}; a priority is for runs that wait.")
            changes = {
                "priority": record.priority if priority is None else priority,
                "tags": checked.tags,
                "notes": record.notes if notes is None else (checked.notes or None),
                "is_archived": record.is_archived if is_archived is None else is_archived,
                "run_name": record.run_name if run_name is None else _check_run_name(run_name),
            }
            self._records.put(record.model_copy(update=changes))
        return self._records.view(record.run_id)

    def delete(self, reference: str) -> RunView:
        """Moves it to the trash; `mosaic restore` takes it out of it."""
        return move_to_trash(self._records, reference)

    def _resolve_record(self, reference: str, fits: Callable[[RunRecord], bool] | None = None) -> RunRecord:
        return self._records.get(self._records.resolve(reference, fits))


def _check_run_name(text: str) -> str | None:
    """Return the name as it is stored; None where it is removed."""
    if not text.strip():
        return None
    try:
        return validate_label(text)
    except ValueError as error:
        raise BadInput(f"The name {text[:200]!r} was refused: {error}.") from None


def _has_checkpoint(folder: RunFolder) -> bool:
    return folder.checkpoints.is_dir() and any(path.name.isdigit() for path in folder.checkpoints.iterdir())
