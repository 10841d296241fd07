"""Submits, watches and cancels Slurm jobs, in a thread of its own: Slurm's commands may take long.

submitit starts processes only; it has neither threads nor signal handlers in the process that submits.
"""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import structlog

from mosaic.base.processes import identify, is_gone
from mosaic.contracts.errors import MissingExtra
from mosaic.trainer.executors.slurm.job_events import GONE
from mosaic.trainer.executors.slurm.job_files import JobFiles, SubmittedJob
from mosaic.trainer.executors.slurm.job_task import JobTask
from mosaic.trainer.executors.slurm.settings import SlurmSettings

if TYPE_CHECKING:
    import submitit

log = structlog.get_logger("mosaic.trainer.executors.slurm")

STATES_S = 1.0
"""Between two looks at the states of jobs, which submitit answers from what it knows where it has asked just before."""
WATCH_DELAY_S = 60
"""The longest time between two calls of sacct, for all jobs at once; they are more frequent after a submission."""
MAX_REFUSAL = 500
MISSING_SUBMITIT = "Runs on Slurm need the extra 'slurm': pip install 'mosaic-rl[slurm]'."
KEEPER_MEMORY_MB = 256
"""What a job gets beyond the memory of its run."""
KEPT_S = 7 * 86400.0
"""How long submitit's files and the logs of jobs are kept."""
_JOIN_TIMEOUT_S = 5.0
_UNREACHABLE = re.compile(r"unable to contact slurm controller|socket timed out|connection refused", re.IGNORECASE)


class AttemptKey(NamedTuple):
    run_id: str
    name: str
    """Of its files. Not its number: an attempt that never started is replaced by one with the same number."""


class JobResources(NamedTuple):
    cpus: int
    gpus: int
    memory_mb: int | None
    minutes: int


@dataclass(frozen=True)
class JobRequest:
    key: AttemptKey
    files: JobFiles
    group: str | None
    resources: JobResources


@dataclass(frozen=True)
class Refusal:
    text: str
    is_unreachable: bool


def make_batches(requests: Iterable[JobRequest]) -> list[list[JobRequest]]:
    """Return what is submitted together: runs of one group with equal resources are one array. Pure."""

    def kind(request: JobRequest) -> tuple[str, str, int, int, int, int]:
        alone, resources = "" if request.group else request.key.run_id, request.resources
        sizes = (resources.cpus, resources.gpus, resources.memory_mb or 0, resources.minutes)
        return (request.group or "", alone, *sizes)

    return [list(batch) for _, batch in groupby(sorted(requests, key=lambda one: (kind(one), one.key)), key=kind)]


class Cluster(Protocol):
    def submit(self, batch: Sequence[JobRequest]) -> list[SubmittedJob]:
        """Submit one job, or an array of several."""

    def states(self, jobs: Collection[SubmittedJob]) -> dict[str, str]:
        """Return, by job id, Slurm's words for them; empty where it knows none."""

    def cancel(self, job_id: str) -> None:
        """Take a job out of the queue; nothing happens if it is over."""


class JobQueue:
    """Its methods return at once. `wake` is called, in its thread, when there is news."""

    def __init__(self, make_cluster: Callable[[], Cluster], folder: Path, wake: Callable[[], None]) -> None:
        """`folder`: for submitit's files and the logs of jobs."""
        self._make_cluster = make_cluster
        self._folder = folder
        self._wake = wake
        self._commands: queue.SimpleQueue[Callable[[Cluster], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._answers: dict[AttemptKey, SubmittedJob | Refusal] = {}
        self._watched: dict[str, SubmittedJob] = {}
        self._states: dict[str, str] = {}
        self._thread: threading.Thread | None = None

    def submit(self, requests: Iterable[JobRequest]) -> None:
        for batch in make_batches(requests):
            self._put(partial(self._submit, batch))

    def cancel(self, job_id: str) -> None:
        self._put(lambda cluster: cluster.cancel(job_id))

    def watch(self, jobs: Mapping[str, SubmittedJob]) -> None:
        """Find out the states of these jobs, by their ids, from now on."""
        with self._lock:
            self._watched = dict(jobs)
            self._states = {job_id: state for job_id, state in self._states.items() if job_id in jobs}
        if jobs and self._thread is None:
            self._start()

    def answer(self, key: AttemptKey) -> SubmittedJob | Refusal | None:
        """Return what Slurm said to a submission; None: nothing yet."""
        with self._lock:
            return self._answers.get(key)

    def state(self, job_id: str) -> str:
        with self._lock:
            return self._states.get(job_id, "")

    def forget(self, keys: Collection[AttemptKey]) -> None:
        with self._lock:
            for key in keys:
                self._answers.pop(key, None)

    def close(self) -> None:
        """What was not submitted yet is not: the next daemon finds its offer and queues the run again."""
        if self._thread is not None:
            self._commands.put(None)
            self._thread.join(_JOIN_TIMEOUT_S)  # a command of Slurm that hangs does not hold up the daemon's end

    # --- in the thread

    def _put(self, command: Callable[[Cluster], None]) -> None:
        self._commands.put(command)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="slurm", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        _delete_old(self._folder)
        try:
            cluster = self._make_cluster()
        except ImportError as error:  # uninstalled while jobs were active: their files still tell what becomes of them
            log.error("submitit_missing", error=str(error))
            cluster = _NoCluster()
        states_due_at = time.monotonic() + STATES_S
        while True:
            if time.monotonic() >= states_due_at:  # first, as submissions may come without a pause
                self._call(self._update_states, cluster)
                states_due_at = time.monotonic() + STATES_S
            try:
                command = self._commands.get(timeout=max(0.0, states_due_at - time.monotonic()))
            except queue.Empty:
                continue
            if command is None:
                return
            self._call(command, cluster)

    def _call(self, command: Callable[[Cluster], None], cluster: Cluster) -> None:
        try:
            command(cluster)
        except Exception:
            log.exception("slurm_command_failed")

    def _submit(self, batch: list[JobRequest], cluster: Cluster) -> None:
        answers: Sequence[SubmittedJob | Refusal]
        try:
            answers = cluster.submit(batch)
        except Exception as error:  # whatever sbatch printed, its user has to know
            text = " ".join(str(error).split())[-MAX_REFUSAL:] or type(error).__name__
            answers = [Refusal(text, bool(_UNREACHABLE.search(text)))] * len(batch)
            log.warning("jobs_refused", runs=[request.key.run_id for request in batch], error=text)
        for request, answer in zip(batch, answers, strict=True):
            if isinstance(answer, SubmittedJob):
                request.files.write_job(answer)
                log.info("job_submitted", run_id=request.key.run_id, job=answer.job_id)
        with self._lock:
            self._answers.update({request.key: answer for request, answer in zip(batch, answers, strict=True)})
        self._wake()

    def _update_states(self, cluster: Cluster) -> None:
        with self._lock:
            watched = list(self._watched.values())
        if not watched:
            return
        found = cluster.states(watched)
        with self._lock:
            is_news = any(self._states.get(job_id, "") != state for job_id, state in found.items())
            self._states.update({job_id: state for job_id, state in found.items() if job_id in self._watched})
        if is_news:
            self._wake()


def import_submitit() -> Any:
    """Import it without its own configuration of logging, which would close the handlers of this process."""
    name = "SUBMITIT_LOG_LEVEL"
    given = os.environ.get(name)
    os.environ[name] = "NOCONFIG"
    try:
        import submitit

        return submitit
    finally:
        os.environ.pop(name)
        if given is not None:
            os.environ[name] = given


class SlurmCluster:
    """Jobs by sbatch, sacct and scancel. Implements `Cluster`."""

    def __init__(self, settings: SlurmSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._submitit = import_submitit()
        self._watcher = self._make_watcher()

    def _make_watcher(self) -> Any:
        from submitit.slurm.slurm import SlurmInfoWatcher

        return SlurmInfoWatcher(delay_s=WATCH_DELAY_S)

    def submit(self, batch: Sequence[JobRequest]) -> list[SubmittedJob]:
        executor: submitit.SlurmExecutor = self._submitit.SlurmExecutor(self._folder, max_num_timeout=0)
        executor.update_parameters(**job_parameters(batch, self._settings))
        jobs = _submit_all(executor, batch)
        return [SubmittedJob(job_id=job.job_id) for job in jobs]

    def states(self, jobs: Collection[SubmittedJob]) -> dict[str, str]:
        # `CANCELLED by 1000` and `CANCELLED+` are the same state.
        words = {job.job_id: self._watcher.get_state(job.job_id).split()[0].rstrip("+") for job in jobs}
        return {job_id: "" if word == "UNKNOWN" else word for job_id, word in words.items()}

    def cancel(self, job_id: str) -> None:
        self._submitit.SlurmJob(self._folder, job_id).cancel(check=False)


class _NoCluster:
    """Stands for one where submitit is not installed: refuses each submission. Implements `Cluster`."""

    def submit(self, batch: Sequence[JobRequest]) -> list[SubmittedJob]:
        raise MissingExtra(f"{MISSING_SUBMITIT} Then restart the daemon: mosaic daemon stop")

    def states(self, jobs: Collection[SubmittedJob]) -> dict[str, str]:
        return {}

    def cancel(self, job_id: str) -> None:
        """Its job finds the offer withdrawn when it starts."""


class LocalCluster:
    """Jobs on this machine, by submitit's local executor: for tests. Implements `Cluster`."""

    def __init__(self, settings: SlurmSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._submitit = import_submitit()
        self._jobs: list[Any] = []

    def submit(self, batch: Sequence[JobRequest]) -> list[SubmittedJob]:
        executor: submitit.LocalExecutor = self._submitit.LocalExecutor(self._folder)
        delay_s = self._settings.parameters.get("signal_delay_s", 30)
        executor.update_parameters(timeout_min=batch[0].resources.minutes, signal_delay_s=delay_s)
        jobs = _submit_all(executor, batch)
        self._jobs += jobs
        return [SubmittedJob(job_id=job.job_id, process=identify(int(job.job_id))) for job in jobs]

    def states(self, jobs: Collection[SubmittedJob]) -> dict[str, str]:
        self._jobs = [job for job in self._jobs if not job.done()]  # leaves no zombies
        return {job.job_id: GONE if job.process is None or is_gone(job.process) else "RUNNING" for job in jobs}

    def cancel(self, job_id: str) -> None:
        """It starts at once, finds its offer withdrawn and ends."""


def _submit_all(executor: Any, batch: Sequence[JobRequest]) -> list[Any]:
    tasks = [JobTask(str(request.files.path)) for request in batch]
    if len(tasks) == 1:
        return [executor.submit(tasks[0])]
    with executor.batch():
        return [executor.submit(task) for task in tasks]


def job_parameters(batch: Sequence[JobRequest], settings: SlurmSettings) -> dict[str, Any]:
    """Return what submitit's executor for Slurm is given for a job, or for an array of equal ones. Pure."""
    resources = batch[0].resources
    name = batch[0].group if len(batch) > 1 else batch[0].key.run_id
    parameters: dict[str, Any] = dict(settings.parameters)
    if resources.memory_mb is not None:  # the limit of the run, which its keeper enforces, comes before the daemon's
        parameters = {key: value for key, value in parameters.items() if not key.startswith("mem")}
        parameters["mem"] = f"{resources.memory_mb + KEEPER_MEMORY_MB}MB"
    return {
        **parameters,
        "job_name": f"mosaic-{name}",
        "time": resources.minutes,
        "nodes": 1,
        "ntasks_per_node": 1,
        "cpus_per_task": resources.cpus,
        **({"gpus_per_node": resources.gpus} if resources.gpus else {}),
        # A run whose job is taken away waits in the daemon's queue again.
        "additional_parameters": {"no-requeue": True, **settings.sbatch},
    }


def _delete_old(folder: Path) -> None:
    for path in folder.iterdir():
        try:
            if path.lstat().st_mtime < time.time() - KEPT_S:
                path.unlink()
        except OSError:
            continue
