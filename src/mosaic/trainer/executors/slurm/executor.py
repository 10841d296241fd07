"""Runs as Slurm jobs: what the supervisor asks, answered from files and from what the queue of jobs has found out."""

from __future__ import annotations

import importlib.util
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mosaic.base.checkpoint_files import list_steps
from mosaic.base.journal import Follower
from mosaic.contracts.errors import MissingExtra, MosaicError, NotAllowed, refuse_key
from mosaic.contracts.events import Exited, decode_event
from mosaic.contracts.folder import Workspace
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import RunRecord
from mosaic.contracts.views import ExecutorStatus
from mosaic.trainer.executors import HeldRun, RunChange, StartRequest
from mosaic.trainer.executors.slurm.job_events import JobFacts, find_action, is_final
from mosaic.trainer.executors.slurm.job_files import JobFiles, JobOffer, SubmittedJob, TaskReport
from mosaic.trainer.executors.slurm.job_queue import (
    MISSING_SUBMITIT,
    AttemptKey,
    JobQueue,
    JobRequest,
    JobResources,
    LocalCluster,
    Refusal,
    SlurmCluster,
)
from mosaic.trainer.executors.slurm.settings import SlurmSettings
from mosaic.trainer.lifecycle import StartFailed
from mosaic.trainer.scheduler import Slots

SLURM_EXECUTOR = "slurm"
LOOK_S = 0.25
"""Between two looks at the files of an attempt, which may be on a network file system."""
GATHER_S = 1.0
"""How long a run of a group waits for another one to be submitted with it, as one array."""
MAX_GATHER_S = 5.0
RETRY_S = 30.0
"""How long no job is submitted after Slurm did not answer."""
_UNLIMITED = 1_000_000
_MAX_LOG_BYTES = 4096


class SlurmExecutor:
    name = SLURM_EXECUTOR

    def __init__(self, workspace: Workspace, settings: SlurmSettings, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._folder = workspace.trainer / "slurm"
        make = LocalCluster if settings.cluster == "local" else SlurmCluster
        self._queue = JobQueue(lambda: make(settings, self._folder), self._folder, wake)
        self._requests: list[JobRequest] = []
        """To be submitted together."""
        self._first_request_at = self._last_request_at = 0.0
        self._submitted: set[AttemptKey] = set()
        """Attempts that this daemon has handed to the queue."""
        self._cancelled: set[AttemptKey] = set()
        """Those whose offer was withdrawn: their jobs are cancelled when their numbers are known."""
        self._ended: dict[AttemptKey, float] = {}
        """When the end of its job was first seen, on the monotonic clock."""
        self._has_commands = False
        """Whether it was found that jobs can be submitted from here."""
        self._next_look_at = 0.0
        self._retry_at = 0.0
        self._held: tuple[AttemptKey, ...] = ()

    # --- submitting and planning

    def check(self, payload: Payload) -> None:
        self._require_commands()
        gpus = payload.resources.gpus
        if gpus.requested is not None and gpus.requested != int(gpus.requested):
            raise refuse_key(
                "resources.gpus.requested", f"{gpus.requested:g} requested; Slurm gives whole GPUs only. Ask for 1."
            )

    def _require_commands(self) -> None:
        if self._has_commands:
            return
        if importlib.util.find_spec("submitit") is None:
            raise MissingExtra(MISSING_SUBMITIT)
        if self._settings.cluster == "slurm" and shutil.which("srun") is None:
            raise NotAllowed(
                "Slurm is not installed where the trainer runs: there is no srun in its PATH. Start the trainer on a "
                "machine from which jobs can be submitted, such as a login node, or leave out --executor slurm."
            )
        self._has_commands = True

    def capacity(self) -> Slots:
        """Slurm knows what there is; here only the number of jobs is limited, so that priorities count for the rest."""
        return Slots(runs=self._settings.max_jobs, cpus=_UNLIMITED, gpus=_UNLIMITED, are_gpus_numbered=False)

    def describe_wait(self, queued: Sequence[RunRecord]) -> Mapping[str, str]:
        try:
            self._require_commands()
        except MosaicError as error:
            return {record.run_id: str(error) for record in queued}
        if time.monotonic() < self._retry_at:
            return {record.run_id: "Slurm did not answer; it is asked again soon" for record in queued}
        return {}

    def status(self) -> ExecutorStatus | None:
        if not self._held:
            return None
        return ExecutorStatus(name=self.name, jobs=len(self._held), max_jobs=self._settings.max_jobs)

    # --- attempts

    def start(self, request: StartRequest) -> None:
        record, payload, files = request.record, request.payload, self._files(request)
        files.offer(
            JobOffer(
                folder=str(request.folder.path.resolve()),
                worker=request.worker.id,
                config=str(request.config.resolve()),
                is_resume=request.attempt.is_resume,
                threads=record.cpus,
                max_seconds=payload.schedule.max_duration_seconds,
                memory_mb=payload.resources.memory_mb,
                inbox_offset=request.inbox_offset,
                end_key=request.end_key,
            )
        )
        resources = JobResources(
            cpus=record.cpus,
            gpus=math.ceil(record.gpus),
            memory_mb=payload.resources.memory_mb,
            minutes=self._settings.job_minutes(payload.schedule.max_duration_seconds),
        )
        key = AttemptKey(record.run_id, files.path.name)
        self._submitted.add(key)
        self._last_request_at = time.monotonic()
        if not self._requests:
            self._first_request_at = self._last_request_at
        self._requests.append(JobRequest(key, files, record.group, resources))

    @staticmethod
    def _files(run: StartRequest | HeldRun) -> JobFiles:
        return JobFiles.of_attempt(run.folder, run.attempt)

    def _key(self, run: HeldRun) -> AttemptKey:
        return AttemptKey(run.record.run_id, self._files(run).path.name)

    def find_changes(self, held: Sequence[HeldRun]) -> list[RunChange]:
        now = time.monotonic()
        if now < self._next_look_at:
            return []
        self._next_look_at = now + LOOK_S
        changes, watched = [], dict[str, SubmittedJob]()
        for run in held:
            key, files = self._key(run), self._files(run)
            report, job = files.read_report(), self._find_job(key, files)
            if job is not None:
                watched[job.job_id] = job
            facts = self._gather(run, key, files, report, job)
            action = find_action(run.record, facts, time.time(), "")
            if action is not None and isinstance(action.event, StartFailed):
                action = find_action(run.record, facts, time.time(), self._describe_log(facts.job_id))
            if action is None or (action.is_withdrawal and not self._withdraw(key, files, job)):
                continue
            changes.append(RunChange(run.record.run_id, action.event))
            if facts.is_unreachable:
                self._retry_at = now + RETRY_S
        self._queue.watch(watched)
        return changes

    def _find_job(self, key: AttemptKey, files: JobFiles) -> SubmittedJob | None:
        answer = self._queue.answer(key)
        return answer if isinstance(answer, SubmittedJob) else files.read_job()

    def _gather(
        self, run: HeldRun, key: AttemptKey, files: JobFiles, report: TaskReport | None, job: SubmittedJob | None
    ) -> JobFacts:
        answer = self._queue.answer(key)
        job_id = report.job_id if report is not None else job.job_id if job is not None else ""
        state = self._queue.state(job_id)
        is_over = is_final(state) or (report is not None and report.ended_by is not None)
        ended_at = self._ended.setdefault(key, time.monotonic()) if is_over else time.monotonic()
        claimed_at = files.claimed_at()
        is_silent = report is None and claimed_at is not None
        return JobFacts(
            is_offered=files.is_offered() or claimed_at is None,
            report=report,
            job_id=job_id,
            state=state,
            is_submitting=key in self._submitted and answer is None,
            refusal=answer.text if isinstance(answer, Refusal) else "",
            is_unreachable=isinstance(answer, Refusal) and answer.is_unreachable,
            has_keeper_exited=is_over and _has_keeper_exited(run),
            checkpoint_step=max(list_steps(run.folder), default=None) if is_over or is_silent else None,
            claimed_s=time.time() - claimed_at if claimed_at is not None else 0.0,
            ended_s=time.monotonic() - ended_at,
        )

    def _withdraw(self, key: AttemptKey, files: JobFiles, job: SubmittedJob | None) -> bool:
        """Return whether no job will start the attempt; one that waits in Slurm is cancelled."""
        if not files.withdraw():
            return False
        if job is not None:
            self._queue.cancel(job.job_id)
        elif any(request.key == key for request in self._requests):
            self._requests = [request for request in self._requests if request.key != key]
        elif key in self._submitted:
            self._cancelled.add(key)
        return True

    def _describe_log(self, job_id: str) -> str:
        path = self._folder / f"{job_id}_0_log.err"
        lines = _read_end(path).split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if last:
            return f'Last words: "{last}". Full log: {path}'
        return f"It has no log at {path}: do its nodes share that folder with the trainer?"

    def reap(self, held: Sequence[HeldRun]) -> None:
        """Submit what was started; cancel the jobs of attempts that are over before they began."""
        self._held = tuple(map(self._key, held))
        self._submit(time.monotonic())
        for key in tuple(self._cancelled):
            answer = self._queue.answer(key)
            if isinstance(answer, SubmittedJob):
                self._queue.cancel(answer.job_id)
            if answer is not None:
                self._cancelled.discard(key)
        over = (self._submitted | self._ended.keys()) - set(self._held) - self._cancelled
        self._queue.forget(over)
        self._submitted -= over
        for key in over:
            self._ended.pop(key, None)

    def _submit(self, now: float) -> None:
        is_complete = now > min(self._last_request_at + GATHER_S, self._first_request_at + MAX_GATHER_S)
        ready = [request for request in self._requests if is_complete or request.group is None]
        if ready:
            self._requests = [request for request in self._requests if request not in ready]
            self._queue.submit(ready)

    def close(self) -> None:
        self._queue.close()


def _has_keeper_exited(run: HeldRun) -> bool:
    events = (decode_event(line.body) for line in Follower(run.folder.keeper, run.attempt.keeper_from).read_rest())
    return any(isinstance(event, Exited) and run.attempt.is_ended_by(event.end_key) for event in events)


def _read_end(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _MAX_LOG_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
