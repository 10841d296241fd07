"""What clients ask and request of runs that exist: checks, then the change under the lock, never waiting.

`read_settings` resolves every setting of a run, with its default, and collects what the run was started with.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any

from mosaic.base.algorithm_schema import Algorithm, load_algorithms, open_script_folder, supported_options
from mosaic.base.formatting import capitalize_first, describe_status
from mosaic.base.processes import is_gone
from mosaic.base.run_payloads import FORM_STATE_PREFIX, flatten_settings
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.commands import PAUSE, STOP
from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed
from mosaic.contracts.events import (
    Event,
    Hyperparameters,
    MachineDescribed,
    PackagesListed,
    SourceDescribed,
    WorkerStarted,
    decode_event,
)
from mosaic.contracts.model import parse_contract
from mosaic.contracts.options import CONFIG_PATH, OPTIONS, Option, RunKind, value_at
from mosaic.contracts.payload import Metadata, Schedule
from mosaic.contracts.run_settings import MachineInfo, RunSettings, SettingValue, SourceCommit
from mosaic.contracts.setting_field import validate_label
from mosaic.contracts.states import RunRecord, Stage
from mosaic.contracts.trainer_pb2_handlers import Handlers
from mosaic.contracts.views import RunView
from mosaic.trainer import run_import
from mosaic.trainer.lifecycle import StopRequested, advance
from mosaic.trainer.records import Records
from mosaic.trainer.services import Services
from mosaic.trainer.trash import move_to_trash

SETTINGS_KINDS = tuple(
    kind.KIND for kind in (WorkerStarted, Hyperparameters, PackagesListed, MachineDescribed, SourceDescribed)
)
"""The events that `describe_settings` reads."""
WORKER_PATH = "metadata.worker.id"
_HIDDEN_PREFIXES = (FORM_STATE_PREFIX, "metadata.worker.imports.", "metadata.experiment.", "resources.gpus.mandatory")
_WITHOUT_DEFAULT = ("algo", "kind", "policy_path")
_GROUPS = {"algo": "What runs", "kind": "What runs", "policy_path": "What runs", WORKER_PATH: "What runs"}
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
    return [records.to_view(record, progress, positions, is_listed=True) for record, progress in rows]


def get_run(services: Services, request: pb.RunRequest) -> RunView:
    return services.records.view(services.records.resolve(request.run))


def get_config(services: Services, request: pb.RunRequest) -> pb.JsonReply:
    payload = services.records.read_payload(services.records.resolve(request.run)).without_experiment()
    return pb.JsonReply(json=payload.model_dump_json(exclude_unset=True))


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


# --- settings


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


def describe_settings(
    payload: Mapping[str, Any], algorithm: Algorithm | None, options: Iterable[Option], events: Iterable[Event]
) -> RunSettings:
    """`payload`: as it was accepted. `events`: those of SETTINGS_KINDS, oldest first; of each, the newest counts."""
    reported: dict[str, Any] = {}
    python, packages, machine = None, {}, None
    sources: dict[str, SourceCommit] = {}
    for event in events:
        if isinstance(event, Hyperparameters):
            reported = event.values
        elif isinstance(event, WorkerStarted):  # a further attempt
            sources = {}
        elif isinstance(event, PackagesListed):
            python, packages = event.python, event.packages
        elif isinstance(event, MachineDescribed):
            machine = MachineInfo.model_validate(dict(event))
        elif isinstance(event, SourceDescribed):
            sources[event.folder] = SourceCommit.model_validate(dict(event))
    return RunSettings(
        settings=tuple(resolve_settings(payload, algorithm, options, reported)),
        python=python,
        packages=packages,
        machine=machine,
        sources=tuple(sources.values()),
    )


def resolve_settings(
    payload: Mapping[str, Any], algorithm: Algorithm | None, options: Iterable[Option], reported: Mapping[str, Any]
) -> list[SettingValue]:
    """List what was set, what the worker has reported of the rest, and the defaults of what neither states."""
    is_training = payload.get("kind", RunKind.TRAIN) == RunKind.TRAIN
    given = {name: value for name, value in flatten_settings(payload).items() if not name.startswith(_HIDDEN_PREFIXES)}
    known = {**reported, **given} if is_training else given
    settings: dict[str, SettingValue] = {}

    def add(name: str, group: str, default: Any = None, has_default: bool = True) -> None:
        value, default = _as_json(known.get(name, default)), _as_json(default)
        if isinstance(default, list) and value == str(tuple(default)):  # as earlier versions reported it
            value = default
        settings[name] = SettingValue(
            name=name, group=group, value=value, default=default, has_default=has_default, is_given=name in given
        )

    for name in (WORKER_PATH, *_WITHOUT_DEFAULT):
        if name in given:
            add(name, _GROUPS[name], has_default=False)
    stated = {field.name: field for field in algorithm.fields} if algorithm is not None and is_training else {}
    supported = {option.name: option for option in options}
    for name in ("env_id", "total_timesteps", "seed"):
        if name in stated or name in known:
            field = stated.get(name)
            add(name, "What runs", field.default if field else None, has_default=field is not None)
    for name, field in stated.items():
        if name not in settings:
            add(name, supported[name].group if name in supported else capitalize_first(field.group), field.default)
    for name in known:
        if name not in settings and name not in OPTIONS:
            add(name, "Settings", has_default=False)
    for name, option in supported.items():
        if name not in settings and not option.is_core and name not in _WITHOUT_DEFAULT:
            is_for_evaluation = option.path.startswith("evaluation.")
            if is_for_evaluation != is_training or name in given:
                add(name, option.group or ("Evaluation" if is_for_evaluation else "Other"), option.default)
    return list(settings.values())


def find_algorithm(payload: Mapping[str, Any]) -> Algorithm | None:
    """Return the algorithm of a payload, or the user's script that is one; None for other programs."""
    config = value_at(dict(payload), CONFIG_PATH) or {}
    name, worker_id = str(config.get("algo", "")), value_at(dict(payload), WORKER_PATH)
    for algorithm in load_algorithms().values():
        if (algorithm.name, algorithm.worker.id) == (name, worker_id) and "cleanrl" not in config:
            return algorithm
    if isinstance(config.get("cleanrl"), str):
        try:
            return open_script_folder(config["cleanrl"]).load(name)
        except (MosaicError, OSError):  # the folder has been moved or deleted since
            return None
    return None


def worker_options(payload: Mapping[str, Any]) -> tuple[Option, ...]:
    worker_id = str(value_at(dict(payload), WORKER_PATH))
    try:
        return supported_options(worker_id)
    except MosaicError:  # the worker has been uninstalled since
        return ()


def _as_json(value: Any) -> Any:
    """The same as it would be after a journey as JSON, so that a tuple equals a list."""
    return json.loads(json.dumps(value, default=str))


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
