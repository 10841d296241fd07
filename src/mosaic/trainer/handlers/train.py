"""Checks and submits payloads, and resumes runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mosaic.common.files import write_json
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.commands import RESUME
from mosaic.contracts.errors import BadInput, CheckpointDamaged, NotAllowed
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.model import parse_contract
from mosaic.contracts.payload import Imports
from mosaic.contracts.states import Outcome, ResumeObstacle, RunRecord, Stage
from mosaic.contracts.views import RunView, Verdict
from mosaic.trainer.admission import check_steps, refuse_import_folders, require_trust
from mosaic.trainer.lifecycle import Requeued, advance
from mosaic.trainer.records import Records
from mosaic.trainer.services import Services
from mosaic.workers import get_worker

if TYPE_CHECKING:
    from mosaic.contracts.trainer_pb2_verbs import Handlers


def submit_run(services: Services, request: pb.PayloadRequest) -> RunView:
    return services.submissions.submit(request)


def check_run(services: Services, request: pb.PayloadRequest) -> Verdict:
    return services.submissions.check(request)


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
        services.submissions.require_space()
        _requeue_from_checkpoint(services, record, total_timesteps, request)
    services.wake()
    return records.view(record.run_id)


def _find_obstacle(records: Records, record: RunRecord, is_extended: bool) -> ResumeObstacle | None:
    """By what is in the folder, as the worker will look there."""
    return record.find_resume_obstacle(_has_checkpoint(records.folder(record.run_id)), is_extended)


def _has_checkpoint(folder: RunFolder) -> bool:
    return folder.checkpoints.is_dir() and any(path.name.isdigit() for path in folder.checkpoints.iterdir())


def _requeue_from_checkpoint(
    services: Services, record: RunRecord, total_timesteps: int | None, request: pb.ResumeRequest
) -> None:
    records, submissions = services.records, services.submissions
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
    submissions.verdict(payload, submissions.get_executor(record.executor))
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


HANDLERS: Handlers = {"CheckRun": check_run, "ResumeRun": resume_run, "SubmitRun": submit_run}
