"""What clients ask and request of runs that exist: checks, then the change under the lock, never waiting."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

from mosaic.common.processes import is_gone
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.commands import PAUSE, STOP
from mosaic.contracts.errors import BadInput, NotAllowed
from mosaic.contracts.events import decode_event
from mosaic.contracts.model import parse_contract
from mosaic.contracts.payload import Metadata, Schedule
from mosaic.contracts.run_settings import RunSettings
from mosaic.contracts.setting_field import validate_label
from mosaic.contracts.states import RunRecord, Stage
from mosaic.contracts.views import RunView
from mosaic.formatting import describe_status
from mosaic.trainer import run_import
from mosaic.trainer.lifecycle import StopRequested, advance
from mosaic.trainer.records import Records
from mosaic.trainer.run_settings import SETTINGS_KINDS, describe_settings, find_algorithm, worker_options
from mosaic.trainer.services import Services
from mosaic.trainer.trash import move_to_trash

if TYPE_CHECKING:
    from mosaic.contracts.trainer_pb2_verbs import Handlers

MAX_SETTINGS_EVENTS = 1000


def list_runs(services: Services, request: pb.ListRequest) -> list[RunView]:
    records = services.records
    rows = records.index.list_runs(
        list(request.status),
        request.algo,
        request.env_id,
        request.group,
        list(request.tag),
        request.include_archived,
        before=request.before,
        limit=request.limit,
    )
    positions = records.queue_positions()
    views = (records.to_view(record, progress, positions) for record, progress in rows)
    return [view.model_copy(update={"history": (), "attempts": ()}) for view in views]


def get_run(services: Services, request: pb.RunRequest) -> RunView:
    return services.records.view(services.records.resolve(request.run))


def get_config(services: Services, request: pb.RunRequest) -> pb.JsonReply:
    payload = services.records.read_payload(services.records.resolve(request.run)).without_experiment()
    return pb.JsonReply(json=payload.model_dump_json(exclude_unset=True))


def read_settings(services: Services, request: pb.RunRequest) -> RunSettings:
    records = services.records
    run_id = records.resolve(request.run)
    payload, problem = {}, None
    try:
        payload = records.read_payload(run_id).model_dump(mode="json", exclude_unset=True)
    except NotAllowed as error:
        problem = str(error)
    indexed = records.index.events_after(0, run_id, SETTINGS_KINDS, MAX_SETTINGS_EVENTS)
    events = [decode_event(json.loads(text)) for text in services.feed.encode_events(indexed)]
    settings = describe_settings(payload, find_algorithm(payload), worker_options(payload), events)
    return settings.model_copy(update={"problem": problem})


# --- stopping and pausing


def cancel_run(services: Services, request: pb.RunRequest) -> RunView:
    records = services.records
    with records.lock:
        record = records.find(request.run, lambda record: record.is_active)
        if record.stage is Stage.FINISHED:
            raise NotAllowed(f"Run {record.run_id} has already ended: {record.outcome}.")
        if record.stage is Stage.STOPPING and record.checkpoint_wait is not None:
            _request_stop(records, record)  # its keeper does not wait for the checkpoint any longer
        elif record.stage is not Stage.STOPPING:
            if record.holds_slot:
                _request_stop(records, record)
            records.put(advance(record, StopRequested(at=time.time())))
    services.wake()
    return records.view(record.run_id)


def _request_stop(records: Records, record: RunRecord) -> None:
    """Write a stop to the inbox; where the keeper cannot read that, terminate it, so that it stops the worker."""
    attempt, folder = record.attempts[-1], records.folder(record.run_id).path
    try:
        records.send_command(record.run_id, STOP)
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


def pause_run(services: Services, request: pb.RunRequest) -> RunView:
    records = services.records
    with records.lock:
        record = records.find(request.run, lambda record: record.stage is Stage.RUNNING)
        if record.stage is Stage.PAUSED:
            raise NotAllowed(f"Run {record.run_id} is already paused. Resume it: mosaic resume {record.run_id}")
        if record.stage is not Stage.RUNNING:
            raise NotAllowed(f"Only a running run can be paused; {record.run_id} {describe_status(record.status)}.")
        records.send_command(record.run_id, PAUSE, by_signal="pause" not in record.capabilities)
    services.wake()
    return records.view(record.run_id)


# --- notes, archive, trash


def annotate_run(services: Services, request: pb.AnnotateRequest) -> RunView:
    """A name that is given replaces the record's alone: the config stays as it was submitted."""
    records = services.records
    with records.lock:
        record = records.find(request.run)
        tags = (*(tag for tag in record.tags if tag not in request.remove_tags), *request.add_tags)
        notes = request.notes if request.HasField("notes") else None
        stated = {"worker": {"id": record.worker, "config": {}}, "tags": tuple(dict.fromkeys(tags)), "notes": notes}
        checked = parse_contract(Metadata, stated, "The tag was" if request.add_tags else "The note was")
        changes: dict[str, object] = {"tags": checked.tags}
        if notes is not None:
            changes["notes"] = checked.notes or None
        if request.HasField("is_archived"):
            if request.is_archived and record.is_active:
                raise NotAllowed(f"Run {record.run_id} is {record.status}; archive it when it has ended.")
            changes["is_archived"] = request.is_archived
        if request.HasField("priority"):
            parse_contract(Schedule, {"priority": request.priority}, "The priority was")
            if record.stage is not Stage.QUEUED:
                raise NotAllowed(f"A priority is for runs that wait; {record.run_id} {describe_status(record.status)}.")
            changes["priority"] = request.priority
        if request.HasField("run_name"):
            changes["run_name"] = _check_run_name(request.run_name)
        records.put(record.model_copy(update=changes))
    return records.view(record.run_id)


def _check_run_name(text: str) -> str | None:
    """Return the name as it is stored; None where it is removed."""
    if not text.strip():
        return None
    try:
        return validate_label(text)
    except ValueError as error:
        raise BadInput(f"The name {text[:200]!r} was refused: {error}.") from None


def delete_run(services: Services, request: pb.RunRequest) -> RunView:
    return move_to_trash(services.records, request.run)


def import_run(services: Services, request: pb.ImportRequest) -> RunView:
    return run_import.import_run(services.records, request.path)


HANDLERS: Handlers = {
    "AnnotateRun": annotate_run,
    "CancelRun": cancel_run,
    "DeleteRun": delete_run,
    "GetConfig": get_config,
    "GetRun": get_run,
    "ImportRun": import_run,
    "ListRuns": list_runs,
    "PauseRun": pause_run,
    "ReadSettings": read_settings,
}
