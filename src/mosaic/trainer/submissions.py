"""Checks what clients submit, and creates runs of it; a refused submission leaves nothing."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mosaic.common.disk_space import describe_full_disk
from mosaic.common.files import write_json, write_text
from mosaic.common.limited_json import decode_limited
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, ConfigRefused, DiskFull, MosaicError, refuse_key
from mosaic.contracts.extras import TranslatedPayload, translate_extras
from mosaic.contracts.imports import named_modules
from mosaic.contracts.options import LOCAL_EXECUTOR
from mosaic.contracts.payload import Imports, Metadata, Payload
from mosaic.contracts.states import HistoryEntry, RunRecord, Stage
from mosaic.contracts.submitter import validate_submitter
from mosaic.contracts.views import RunView, Verdict, VerdictSummary
from mosaic.secrets import redact_secrets, store_secrets
from mosaic.sidecar.sidecar_spec import require_packages, unused_option_warnings
from mosaic.submission.caller_environment import HUB_PREFIX, TRACKING_PREFIX
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
from mosaic.trainer.checkers import Checkers
from mosaic.trainer.executors import Executor
from mosaic.trainer.gpu_requests import (
    check_gpu_request,
    count_gpus,
    default_runs_per_gpu,
    gpu_warnings,
)
from mosaic.trainer.records import Records, summary_fields
from mosaic.workers import name_worker

SUBMISSION_KEY = re.compile(r"[0-9a-f]{32}")


class Submissions:
    def __init__(
        self,
        records: Records,
        checkers: Checkers,
        executors: Mapping[str, Executor],
        wake: Callable[[], None],
        default_executor: str = LOCAL_EXECUTOR,
    ) -> None:
        self._records = records
        self._checkers = checkers
        self._executors = executors
        self._wake = wake
        self._default_executor = default_executor
        self._creation_lock = threading.Lock()

    def check(self, request: pb.PayloadRequest) -> Verdict:
        """The verdict on a payload: its contract's first, then the worker's own."""
        payload, verdict = self._check_submission(redact_secrets(decode_limited(request.payload_json)), request)
        # The worker itself answers with one thread.
        threads = self._with_cpus(payload, verdict.summary.cpus).resources.cpus or 1
        return verdict.model_copy(update={"summary": verdict.summary.model_copy(update={"threads": threads})})

    def _check_submission(self, data: Any, request: pb.PayloadRequest) -> tuple[Payload, Verdict]:
        translated = translate_extras(name_worker(data))
        payload = self._parse_submission(translated, request)
        payload.refuse_unused_evaluation(translated.written_paths)
        refuse_programs(payload, bool(request.environment))
        refuse_import_folders(payload, self._records.workspace.trainer)
        _check_variables({**request.environment, **request.tracking})
        require_trust(payload)
        if not request.environment:  # a program of the caller's tracks itself, in its own Python
            require_packages(payload)
        try:
            verdict = self.verdict(payload, self._executor(payload))
            slots = self._executor(payload).capacity()
            warnings = (*verdict.summary.warnings, *gpu_warnings(payload, slots, request.environment))
            warnings += tuple(unused_option_warnings(payload, request.tracking))
            summary = verdict.summary.model_copy(update={"warnings": warnings})
            return payload, verdict.model_copy(update={"summary": summary})
        except ConfigRefused as error:
            raise restore_written_paths(error, translated) from None

    def _parse_submission(self, translated: TranslatedPayload, request: pb.PayloadRequest) -> Payload:
        """The payload, marked as imported where its policy and its environment are those of an imported run."""
        payload = parse_payload(translated)
        check_steps(payload.metadata.worker.config.get("total_timesteps"))
        trained = self._evaluated_run(payload)
        is_imported = payload.metadata.is_imported or (
            trained is not None
            and trained.is_imported
            and (
                trained.env_id == payload.metadata.worker.config.get("env_id", trained.env_id)
                or payload.modules != named_modules(payload.metadata.worker.config)
            )
        )
        if trained is not None and not trained.is_imported:
            payload = self._with_imports_of(trained, payload)
        return mark_imported(payload, is_imported and not request.is_trusted)

    def _with_imports_of(self, trained: RunRecord, payload: Payload) -> Payload:
        """The payload with what the run imports whose policy it evaluates: the checkpoint names the same modules."""
        try:
            theirs = self._records.read_payload(trained.run_id).metadata.worker.imports
        except (OSError, MosaicError):
            return payload
        if theirs is None:
            return payload
        return payload.with_worker(imports=theirs.merge(payload.metadata.worker.imports or Imports()))

    def _evaluated_run(self, payload: Payload) -> RunRecord | None:
        """The run of this workspace whose policy is evaluated."""
        runs, path = self._records.workspace.runs, Path(payload.evaluation.policy_path or "")
        if not path.is_relative_to(runs) or path == runs:
            return None
        return self._records.index.get_record(path.relative_to(runs).parts[0])

    def _executor(self, payload: Payload) -> Executor:
        return self.get_executor(choose_executor(payload, self._default_executor))

    def get_executor(self, name: str) -> Executor:
        if name not in self._executors:
            raise refuse_key("resources.executor", f"{name!r} is unknown here. Known: {', '.join(self._executors)}.")
        return self._executors[name]

    def verdict(self, payload: Payload, executor: Executor) -> Verdict:
        """The executor's verdict, then the worker's own; raises where one of them refuses."""
        executor.check(payload)
        if executor.name == LOCAL_EXECUTOR:
            check_gpu_request(payload.resources.gpus, executor.capacity().gpus)
        elif payload.resources.gpus.device is not None:
            message = f"{executor.name.capitalize()} chooses the GPU of a run. Leave it out: --gpus 1"
            raise refuse_key("resources.gpus.device", message)
        return self._checkers.check(payload.metadata.worker.id, payload)

    def submit(self, request: pb.PayloadRequest) -> RunView:
        """Creates the run, if all checks accept it. That of an experiment is returned if it exists already.

        So is the run of a request that is repeated because its answer was lost.
        """
        _check_submission_key(request.submission_key)
        _check_submitter(request.submitted_by)
        if repeated := self._find_submitted(request):
            return self._records.view(repeated)
        self.require_space()
        data = decode_limited(request.payload_json)
        redacted = redact_secrets(data)
        payload, verdict = self._check_submission(redacted, request)
        stored = store_secrets(data)  # not earlier: a refused payload must leave nothing
        if stored != redacted:  # a reference got another name, because another secret had that one
            payload = self._parse_submission(translate_extras(name_worker(stored)), request)
        payload = pin_env_version(payload, verdict.summary.environment.id)
        with self._creation_lock:  # so that a run submitted twice at the same time is created once
            found = self._find_submitted(request) or self._find_experiment_run(payload.metadata)
            return self._records.view(found) if found else self._create_run(payload, verdict.summary, request)

    def _find_submitted(self, request: pb.PayloadRequest) -> str | None:
        return self._records.index.find_submitted_run(request.submission_key) if request.submission_key else None

    def _find_experiment_run(self, metadata: Metadata) -> str | None:
        if metadata.experiment is None:
            return None
        return self._records.index.find_experiment_run(metadata.group, metadata.experiment)

    def _create_run(self, payload: Payload, summary: VerdictSummary, request: pb.PayloadRequest) -> RunView:
        with self._records.lock:
            run_id = self._records.new_id()
        try:
            record = self._create_run_folder(run_id, payload, summary, request)
            with self._records.lock:
                self._records.put(record)
        except BaseException:
            self._records.environments.drop(run_id)
            self._records.tracking.drop(run_id)
            shutil.rmtree(self._records.folder(run_id).path, ignore_errors=True)  # it was never acknowledged
            raise
        self._wake()
        return self._records.view(run_id)

    def require_space(self) -> None:
        full_disk = describe_full_disk(self._records.workspace.root)
        if full_disk:
            raise DiskFull(full_disk)

    def _create_run_folder(
        self, run_id: str, payload: Payload, summary: VerdictSummary, request: pb.PayloadRequest
    ) -> RunRecord:
        """Creates the folder of an accepted run under another name and renames it, so that it is never incomplete."""
        workspace = self._records.workspace
        with self._records.lock:
            queued_at = self._records.queue_time()
        now = time.time()
        payload = self._with_cpus(payload, summary.cpus)
        executor = self._executor(payload)
        slots = executor.capacity()
        warnings = summary.warnings
        if request.environment:
            # Without what would load libraries of the caller's choice into the keeper's tree.
            variables = {name: value for name, value in request.environment.items() if not name.startswith("LD_")}
            warnings += self._records.environments.put(run_id, variables)
        prefixes = (TRACKING_PREFIX, HUB_PREFIX)
        if variables := {name: value for name, value in request.tracking.items() if name.startswith(prefixes)}:
            warnings += self._records.tracking.put(run_id, variables)
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
        self._records.payloads[run_id] = payload
        return record

    def _with_cpus(self, payload: Payload, suggested_cpus: int | None) -> Payload:
        """Sets the threads that the worker recommends where the payload names none; they become part of the config."""
        if payload.resources.cpus is not None or suggested_cpus is None or suggested_cpus < 2:
            return payload
        resources = payload.resources.model_copy(
            update={"cpus": min(suggested_cpus, self._executor(payload).capacity().cpus)}
        )
        return payload.model_copy(update={"resources": resources})


def _check_variables(environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise BadInput(
                f"The environment variable {name!r} cannot be passed to a program: expected a name without '=' and "
                "no NUL character."
            )


def _check_submission_key(key: str) -> None:
    if key and not SUBMISSION_KEY.fullmatch(key):
        raise BadInput(f"submission_key: {key[:80]!r} is not valid; expected 32 hexadecimal digits, or nothing.")


def _check_submitter(text: str) -> None:
    if not text:
        return
    try:
        validate_submitter(text)
    except ValueError as error:
        raise BadInput(f"submitted_by: {text[:80]!r} is not valid; {error}, or nothing.") from None
