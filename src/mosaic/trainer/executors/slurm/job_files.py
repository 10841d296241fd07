"""The files in a run folder by which the daemon and a job on its node agree on one attempt.

The daemon writes `offer.json`; the job that starts takes it by renaming it, the daemon withdraws it by deleting it, and
only one of both succeeds, also over a network file system. So an attempt is started once at most, whatever Slurm still
has of it: a job that was submitted just before a crash, or that was not cancelled in time, finds no offer and ends.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import ValidationError

from mosaic import __version__
from mosaic.base.files import write_json
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.model import AnyContract, Contract, StoredProcess
from mosaic.contracts.states import Attempt

ENDED_BY_KEEPER = "keeper"
"""The keeper has ended by itself, with its worker."""
ENDED_BY_NOTICE = "SIGUSR2"
"""Slurm announced the end of the job: its time limit, or a preemption."""
ENDED_BY_TERMINATION = "SIGTERM"
"""Slurm ended the job: someone cancelled it, or a preemption without notice."""


class JobOffer(Contract):
    """What the job of an attempt needs to start its keeper."""

    folder: str
    """The run folder."""
    worker: str
    config: str
    """The file with the worker's config."""
    is_resume: bool
    threads: int
    max_seconds: float | None
    memory_mb: int | None
    inbox_offset: int
    end_key: str = ""
    """Not in the file any more when the worker is started, which could read it there."""
    mosaic: str = __version__
    python: str = ".".join(map(str, sys.version_info[:2]))

    def refuse(self, node: str) -> str | None:
        """Return why this program may not start it; None: it may."""
        there = f"MOSAIC {__version__} with Python {'.'.join(map(str, sys.version_info[:2]))}"
        own = f"MOSAIC {self.mosaic} with Python {self.python}"
        if own == there:
            return None
        return f"Node {node} has {there}, the trainer has {own}. Install the same versions on all nodes."


class SubmittedJob(Contract):
    """A job that Slurm has accepted."""

    job_id: str
    """`1234`, or `1234_5` in an array."""
    process: StoredProcess | None = None
    """Of a job on this machine, by submitit's local executor."""


class TaskReport(Contract):
    """What the job says of itself; written when it has taken the offer, and again when it ends."""

    job_id: str
    node: str
    refusal: str | None = None
    """Why the keeper was not started."""
    ended_by: str | None = None
    """Null while it runs."""


class JobFiles:
    """The folder of one attempt, in its run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_attempt(cls, folder: RunFolder, attempt: Attempt) -> JobFiles:
        """An attempt that never started is replaced by one with the same number, but not with the same time."""
        return cls(folder.path / "slurm" / f"{attempt.number}-{attempt.started_at * 1e6:.0f}")

    @property
    def _offer(self) -> Path:
        return self.path / "offer.json"

    @property
    def _claimed(self) -> Path:
        return self.path / "claimed.json"

    @property
    def _job(self) -> Path:
        return self.path / "job.json"

    @property
    def _report(self) -> Path:
        return self.path / "task.json"

    def offer(self, offer: JobOffer) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self._offer, offer.model_dump())

    def is_offered(self) -> bool:
        return self._offer.exists()

    def withdraw(self) -> bool:
        """Return whether no job can take the offer any more; False: one has it."""
        try:
            self._offer.unlink()
        except FileNotFoundError:
            return not self._claimed.exists()
        return True

    def claim(self) -> JobOffer | None:
        """Take the offer; None if it was withdrawn, or another job has it."""
        try:
            self._offer.rename(self._claimed)
        except FileNotFoundError:
            return None
        offer = JobOffer.model_validate_json(self._claimed.read_bytes())
        write_json(self._claimed, offer.model_copy(update={"end_key": ""}).model_dump())
        return offer

    def claimed_at(self) -> float | None:
        try:
            return self._claimed.stat().st_mtime
        except OSError:
            return None

    def write_job(self, job: SubmittedJob) -> None:
        write_json(self._job, job.model_dump())

    def read_job(self) -> SubmittedJob | None:
        return _read(self._job, SubmittedJob)

    def write_report(self, report: TaskReport) -> None:
        write_json(self._report, report.model_dump())

    def read_report(self) -> TaskReport | None:
        return _read(self._report, TaskReport)


def _read(path: Path, kind: type[AnyContract]) -> AnyContract | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):  # it is not there, or damaged: what it says is found out by other means
        return None
