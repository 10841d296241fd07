"""Checks what clients submit, and creates runs of it; a refused submission leaves nothing."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.base.caller_environment import HUB_PREFIX, TRACKING_PREFIX, validate_submitter
from mosaic.base.files import describe_full_disk, write_json, write_text
from mosaic.base.limited_json import decode_limited
from mosaic.base.secret_store import redact_secrets, store_secrets
from mosaic.base.worker_registry import get_worker, name_worker
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.commands import RESUME
from mosaic.contracts.errors import (
    BadInput,
    CheckpointDamaged,
    ConfigRefused,
    DiskFull,
    MosaicError,
    NotAllowed,
    refuse_key,
)
from mosaic.contracts.extras import TranslatedPayload, translate_extras
from mosaic.contracts.imports import named_modules
from mosaic.contracts.model import parse_contract
from mosaic.contracts.options import LOCAL_EXECUTOR, value_at
from mosaic.contracts.payload import GpuRequest, Imports, Payload
from mosaic.contracts.states import HistoryEntry, Outcome, ResumeObstacle, RunRecord, Stage
from mosaic.contracts.trainer_pb2_handlers import Handlers
from mosaic.contracts.views import RunView, Verdict, VerdictSummary
from mosaic.features.tracking.sidecar.sidecar_spec import require_packages, unused_option_warnings
from mosaic.trainer.admission import (
    check_steps,
    choose_executor,
    mark_imported,
    parse_payload,
    pin_env_version,
    refuse_import_folders,
    refuse_programs,
    require_trust,
    restore_written_paths,
)
from mosaic.trainer.executors import Executor
from mosaic.trainer.gpus import DEFAULT_RUNS_PER_GPU, DEVICES_VARIABLE, has_mps
from mosaic.trainer.lifecycle import Requeued, advance
from mosaic.trainer.records import Records, summary_fields
from mosaic.trainer.scheduler import Slots
from mosaic.trainer.services import Services

SUBMISSION_KEY = re.compile(r"[0-9a-f]{32}")


def check_run(services: Services, request: pb.PayloadRequest) -> Verdict:
    """The verdict on a payload: its contract's first, then the worker's own."""
    payload, verdict = _check_submission(services, redact_secrets(decode_limited(request.payload_json)), request)
    # The worker itself answers with one thread.
    threads = _with_cpus(services, payload, verdict.summary.cpus).resources.cpus or 1
    return verdict.model_copy(update={"summary": verdict.summary.model_copy(update={"threads": threads})})


def _check_submission(services: Services, data: Any, request: pb.PayloadRequest) -> tuple[Payload, Verdict]:
    translated = translate_extras(name_worker(data))
    payload = _parse_submission(services, translated, request)
    payload.refuse_unused_evaluation(translated.written_paths)
    refuse_programs(payload, bool(request.environment))
    refuse_import_folders(payload, services.records.workspace.trainer)
    _check_variables({**request.environment, **request.tracking})
    require_trust(payload)
    if not request.environment:  # a program of the caller's tracks itself, in its own Python
        require_packages(payload)
    try:
        verdict = _verdict(services, payload, _executor(services, payload))
        slots = _executor(services, payload).capacity()
        warnings = (*verdict.summary.warnings, *gpu_warnings(payload, slots, request.environment))
        warnings += tuple(unused_option_warnings(payload, request.tracking))
        summary = verdict.summary.model_copy(update={"warnings": warnings})
        return payload, verdict.model_copy(update={"summary": summary})
    except ConfigRefused as error:
        raise restore_written_paths(error, translated) from None


def _check_variables(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise BadInput(
                f"The environment variable {name!r} cannot be passed to a program: expected a name without '=' and "
                "no NUL character."
            )


def _parse_submission(services: Services, translated: TranslatedPayload, request: pb.PayloadRequest) -> Payload:
    """The payload, marked as imported where its policy and its environment are those of an imported run."""
    payload = parse_payload(translated)
    check_steps(payload.metadata.worker.config.get("total_timesteps"))
    trained = _evaluated_run(services, payload)
    is_imported = payload.metadata.is_imported or (
        trained is not None
        and trained.is_imported
        and (
            trained.env_id == payload.metadata.worker.config.get("env_id", trained.env_id)
            or payload.modules != named_modules(payload.metadata.worker.config)
        )
    )
    if trained is not None and not trained.is_imported:
        payload = _with_imports_of(services, trained, payload)
    return mark_imported(payload, is_imported and not request.is_trusted)


def _with_imports_of(services: Services, trained: RunRecord, payload: Payload) -> Payload:
    """The payload with what the run imports whose policy it evaluates: the checkpoint names the same modules."""
    try:
        theirs = services.records.read_payload(trained.run_id).metadata.worker.imports
    except (OSError, MosaicError):
        return payload
    if theirs is None:
        return payload
    return payload.with_worker(imports=theirs.merge(payload.metadata.worker.imports or Imports()))


def _evaluated_run(services: Services, payload: Payload) -> RunRecord | None:
    """The run of this workspace whose policy is evaluated."""
    runs, path = services.records.workspace.runs, Path(payload.evaluation.policy_path or "")
    if not path.is_relative_to(runs) or path == runs:
        return None
    return services.records.index.get_record(path.relative_to(runs).parts[0])


def _executor(services: Services, payload: Payload) -> Executor:
    return _get_executor(services, choose_executor(payload, services.default_executor))


def _get_executor(services: Services, name: str) -> Executor:
    if name not in services.executors:
        raise refuse_key("resources.executor", f"{name!r} is unknown here. Known: {', '.join(services.executors)}.")
    return services.executors[name]


def _verdict(services: Services, payload: Payload, executor: Executor) -> Verdict:
    """The executor's verdict, then the worker's own; raises where one of them refuses."""
    executor.check(payload)
    if executor.name == LOCAL_EXECUTOR:
        check_gpu_request(payload.resources.gpus, executor.capacity().gpus)
    elif payload.resources.gpus.device is not None:
        message = f"{executor.name.capitalize()} chooses the GPU of a run. Leave it out: --gpus 1"
        raise refuse_key("resources.gpus.device", message)
    return services.checkers.check(payload.metadata.worker.id, payload)


def submit_run(services: Services, request: pb.PayloadRequest) -> RunView:
    """Creates the run, if all checks accept it. That of an experiment is returned if it exists already.

    So is the run of a request that is repeated because its answer was lost.
    """
    if request.submission_key and not SUBMISSION_KEY.fullmatch(request.submission_key):
        key = request.submission_key[:80]
        raise BadInput(f"submission_key: {key!r} is not valid; expected 32 hexadecimal digits, or nothing.")
    try:
        if request.submitted_by:
            validate_submitter(request.submitted_by)
    except ValueError as error:
        raise BadInput(f"submitted_by: {request.submitted_by[:80]!r} is not valid; {error}, or nothing.") from None
    if repeated := _find_submitted(services, request):
        return services.records.view(repeated)
    _require_space(services)
    data = decode_limited(request.payload_json)
    redacted = redact_secrets(data)
    payload, verdict = _check_submission(services, redacted, request)
    stored = store_secrets(data)  # not earlier: a refused payload must leave nothing
    if stored != redacted:  # a reference got another name, because another secret had that one
        payload = _parse_submission(services, translate_extras(name_worker(stored)), request)
    payload = pin_env_version(payload, verdict.summary.environment.id)
    with services.creation_lock:  # so that a run submitted twice at the same time is created once
        found, member = _find_submitted(services, request), payload.metadata.experiment
        if found is None and member is not None:
            found = services.records.index.find_experiment_run(payload.metadata.group, member)
        return services.records.view(found) if found else _create_run(services, payload, verdict.summary, request)


def _find_submitted(services: Services, request: pb.PayloadRequest) -> str | None:
    return services.records.index.find_submitted_run(request.submission_key) if request.submission_key else None


def _create_run(services: Services, payload: Payload, summary: VerdictSummary, request: pb.PayloadRequest) -> RunView:
    with services.records.lock:
        run_id = services.records.new_id()
    try:
        record = _create_run_folder(services, run_id, payload, summary, request)
        with services.records.lock:
            services.records.put(record)
    except BaseException:
        services.records.environments.drop(run_id)
        services.records.tracking.drop(run_id)
        shutil.rmtree(services.records.folder(run_id).path, ignore_errors=True)  # it was never acknowledged
        raise
    services.wake()
    return services.records.view(run_id)


def _require_space(services: Services) -> None:
    full_disk = describe_full_disk(services.records.workspace.root)
    if full_disk:
        raise DiskFull(full_disk)


def _create_run_folder(
    services: Services, run_id: str, payload: Payload, summary: VerdictSummary, request: pb.PayloadRequest
) -> RunRecord:
    """Creates the folder of an accepted run under another name and renames it, so that it is never incomplete."""
    workspace = services.records.workspace
    with services.records.lock:
        queued_at = services.records.queue_time()
    now = time.time()
    payload = _with_cpus(services, payload, summary.cpus)
    executor = _executor(services, payload)
    slots = executor.capacity()
    warnings = summary.warnings
    if request.environment:
        # Without what would load libraries of the caller's choice into the keeper's tree.
        variables = {name: value for name, value in request.environment.items() if not name.startswith("LD_")}
        warnings += services.records.environments.put(run_id, variables)
    prefixes = (TRACKING_PREFIX, HUB_PREFIX)
    if variables := {name: value for name, value in request.tracking.items() if name.startswith(prefixes)}:
        warnings += services.records.tracking.put(run_id, variables)
    record = RunRecord(
        run_id=run_id,
        worker=payload.metadata.worker.id,
        run_name=payload.run_name,
        group=payload.metadata.group,
        experiment=payload.metadata.experiment,
        submission_key=request.submission_key or None,
        submitted_by=request.submitted_by or None,
        tags=payload.metadata.tags,
        notes=payload.metadata.notes,
        is_imported=payload.metadata.is_imported,
        warnings=warnings,
        executor=executor.name,
        priority=payload.schedule.priority,
        cpus=payload.resources.cpus or 1,
        gpus=count_gpus(payload, summary, slots),
        gpu=payload.resources.gpus.device if slots.gpus and slots.are_gpus_numbered else None,
        runs_per_gpu=default_runs_per_gpu(payload) if slots.are_gpus_numbered else 1,
        submitted_at=now,
        queued_at=queued_at,
        history=(HistoryEntry(at=now, stage=Stage.QUEUED, message="Accepted; waiting for a slot."),),
        # What the config leaves to the worker's defaults is taken from the worker's own verdict.
        **(summary_fields(payload, summary.settings) | ({"seed": summary.seed} if payload.is_evaluation else {})),
    )
    making = workspace.runs / f".making-{run_id}"
    (making / "logs").mkdir(parents=True)
    workspace.configs.mkdir(parents=True, exist_ok=True)
    data = payload.to_json()
    folder = workspace.run(run_id)
    write_json(making / "config.json", payload.with_policy_path(folder.to_portable).to_json())
    write_text(making / "record.json", record.model_dump_json(indent=2) + "\n")
    (making / "inbox.jsonl").touch()
    for is_evaluation in {False, payload.is_evaluation}:
        write_json(workspace.payload_copy(run_id, is_evaluation), data)
    making.rename(folder.path)
    services.records.payloads[run_id] = payload
    return record


def _with_cpus(services: Services, payload: Payload, suggested_cpus: int | None) -> Payload:
    """Sets the threads that the worker recommends where the payload names none; they become part of the config."""
    if payload.resources.cpus is not None or suggested_cpus is None or suggested_cpus < 2:
        return payload
    resources = payload.resources.model_copy(
        update={"cpus": min(suggested_cpus, _executor(services, payload).capacity().cpus)}
    )
    return payload.model_copy(update={"resources": resources})


# --- resuming


def resume_run(services: Services, request: pb.ResumeRequest) -> RunView:
    """Unpauses a paused run; continues a finished one from its last good checkpoint, in the same folder."""
    records = services.records
    total_timesteps = request.total_timesteps if request.HasField("total_timesteps") else None
    is_extended = total_timesteps is not None
    record = records.find(request.run, lambda record: not _find_obstacle(records, record, is_extended))
    check_steps(total_timesteps)
    if record.is_active:
        with records.lock:
            record = records.find(record.run_id)
            if record.stage is not Stage.PAUSED:
                raise NotAllowed(f"Run {record.run_id} is already {record.status}.")
            if is_extended:
                raise NotAllowed("The steps of a paused run cannot be changed; extend it when it has ended.")
            records.send_command(record.run_id, RESUME, by_signal="pause" not in record.capabilities)
    else:
        _require_space(services)
        _requeue_from_checkpoint(services, record, total_timesteps, request)
    services.wake()
    return records.view(record.run_id)


def _find_obstacle(records: Records, record: RunRecord, is_extended: bool) -> ResumeObstacle | None:
    """By what is in the folder, as the worker will look there."""
    checkpoints = records.folder(record.run_id).checkpoints
    has_checkpoint = checkpoints.is_dir() and any(path.name.isdigit() for path in checkpoints.iterdir())
    return record.find_resume_obstacle(has_checkpoint, is_extended)


def _requeue_from_checkpoint(
    services: Services, record: RunRecord, total_timesteps: int | None, request: pb.ResumeRequest
) -> None:
    records = services.records
    obstacle = _find_obstacle(records, record, total_timesteps is not None)
    if obstacle is ResumeObstacle.ATTACHED:
        raise NotAllowed(
            f"Run {record.run_id} was produced by a program that called mosaic.start_run. Run that program again."
        )
    reached = records.index.get_progress(record.run_id).global_step or 0
    if obstacle is ResumeObstacle.NO_CHECKPOINT:
        raise NotAllowed(
            f"Run {record.run_id} has no checkpoint to resume from. Submit it again: mosaic resubmit {record.run_id}"
        )
    if obstacle is ResumeObstacle.SUCCEEDED:
        raise NotAllowed(
            f"Run {record.run_id} has succeeded after {reached:,} steps. "
            f"Extend it: mosaic resume {record.run_id} --total-timesteps {max(2 * reached, 1)}"
        )
    if total_timesteps is not None and total_timesteps <= reached and record.outcome is Outcome.SUCCEEDED:
        raise BadInput(f"total_timesteps: {total_timesteps:,} is not more than the {reached:,} steps it has done.")
    payload = records.read_payload(record.run_id)
    if total_timesteps is not None:
        payload = payload.with_worker(config={**payload.metadata.worker.config, "total_timesteps": total_timesteps})
    if not request.is_trusted:
        require_trust(payload)
    imports = payload.metadata.worker.imports
    if payload.modules and not (imports and imports.folders):
        given = {"modules": list(payload.modules), "folders": tuple(request.import_folders)}
        payload = payload.with_worker(imports=parse_contract(Imports, given, "The folders of modules were"))
    refuse_import_folders(payload, records.workspace.trainer)
    _verdict(services, payload, _get_executor(services, record.executor))
    _require_intact_checkpoint(services, record)
    with records.lock:
        record = records.find(record.run_id)
        if record.is_active:
            raise NotAllowed(f"Run {record.run_id} is already {record.status}.")
        if payload != records.read_payload(record.run_id):
            data = payload.to_json()
            write_json(records.folder(record.run_id).config, data)
            write_json(records.workspace.payload_copy(record.run_id), data)
        records.payloads[record.run_id] = payload
        requeued = Requeued(at=records.queue_time(record.queued_at), total_timesteps=total_timesteps)
        records.put(advance(record, requeued))


def _require_intact_checkpoint(services: Services, record: RunRecord) -> None:
    """Refuses where all checkpoints are damaged: the run would start from its beginning and lose its curve."""
    if not get_worker(record.worker).can_inspect_policies:
        return  # only its worker knows
    question = {"ask": "checkpoint", "path": str(services.records.folder(record.run_id).path)}
    try:
        services.checkers.ask(record.worker, question)
    except CheckpointDamaged:
        raise CheckpointDamaged(
            f"No checkpoint of run {record.run_id} is intact, so it cannot be resumed; nothing was changed. "
            f"Train it again from the beginning: mosaic resubmit {record.run_id}"
        ) from None


# --- GPUs


def check_gpu_request(request: GpuRequest, count: int) -> None:
    """Refuse what a machine with this many GPUs can never give."""
    here = f"this machine has {count or 'none'}"
    if request.device is not None and (request.requested or 1) > 1:
        raise refuse_key("resources.gpus.device", "one GPU is named, but several are requested. Leave out one of both.")
    if request.device is not None and request.requested == 0:
        raise refuse_key("resources.gpus.device", "a GPU is named, but none is requested. Leave out one of both.")
    if not request.mandatory:
        return
    if request.device is not None and request.device >= count:
        known = f"Known: {', '.join(map(str, range(count)))}." if count else "Leave it out to run on the CPU."
        raise refuse_key("resources.gpus.device", f"there is no GPU {request.device}; {here}. {known}")
    if (request.requested or 0) > count:
        raise refuse_key(
            "resources.gpus.requested",
            f"{request.requested:g} requested, but {here}. Ask for {f'at most {count}' if count else '0'}.",
        )


def count_gpus(payload: Payload, summary: VerdictSummary, slots: Slots) -> float:
    """Return how many GPUs a run holds: those it asks for, else those that its worker says it gains from.

    On this machine no more than there are. A cluster may grow: there, what was asked for is waited for.
    """
    request = payload.resources.gpus
    if request.requested is not None and request.mandatory and not slots.are_gpus_numbered:
        return request.requested
    default = 1 if request.device is not None else summary.gpus or 0
    return min(default if request.requested is None else request.requested, slots.gpus)


def default_runs_per_gpu(payload: Payload) -> int:
    """Return how many runs of its group may share its GPU: by default several of a worker's own algorithms."""
    requested = payload.resources.gpus.runs_per_gpu
    if requested is not None:
        return requested
    is_shareable = payload.metadata.group is not None and not get_worker(payload.metadata.worker.id).has_own_command
    return DEFAULT_RUNS_PER_GPU if is_shareable and has_mps() else 1


def gpu_warnings(payload: Payload, slots: Slots, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning where a run computes on the CPU, and its submitter may think otherwise."""
    request, worker = payload.resources.gpus, payload.metadata.worker
    if slots.are_gpus_numbered and not slots.gpus and value_at(worker.config, "algo_params.cuda") is True:
        return ("cuda: this machine has no GPU, so the run is computed on the CPU.",)
    is_program = get_worker(worker.id).has_own_command and worker.config.get("attached") is not True
    is_silent = request.requested is request.device is None and DEVICES_VARIABLE not in environment
    if not (slots.gpus and is_program and is_silent):
        return ()
    return ("The program sees no GPU, as none was requested. To give it one: --gpus 1",)


HANDLERS: Handlers = {"CheckRun": check_run, "ResumeRun": resume_run, "SubmitRun": submit_run}
