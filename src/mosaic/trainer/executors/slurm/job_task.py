"""What a Slurm job executes on its node: starts the keeper of a run and waits for it.

submitit unpickles `JobTask` there, so the node needs the same MOSAIC. The keeper holds the other end of a pipe of this
process: it stops the worker, which saves a checkpoint, when this process closes it or is killed. Slurm's own requeue is
not used: a run whose job is taken away waits in the daemon's queue again and continues as its next attempt.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from types import FrameType

from mosaic.base.worker_registry import get_worker
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import INBOX_OFFSET_VARIABLE, RunFolder
from mosaic.keeper.launch_spec import LaunchSpec
from mosaic.trainer.executors.local import GRACE_S, start_keeper
from mosaic.trainer.executors.slurm.job_files import (
    ENDED_BY_KEEPER,
    ENDED_BY_NOTICE,
    ENDED_BY_TERMINATION,
    JobFiles,
    JobOffer,
    TaskReport,
)
from mosaic.trainer.executors.worker_environment import worker_environment


class JobTask:
    def __init__(self, folder: str) -> None:
        """`folder`: of the attempt's files."""
        self._folder = folder
        self._report: TaskReport | None = None
        self._keeper_pid: int | None = None
        self._lifeline: int | None = None

    def __call__(self) -> None:
        files = JobFiles(Path(self._folder))
        offer = files.claim()
        if offer is None:
            print("The trainer has withdrawn this job, or started its run by another one: nothing is left to do.")
            return
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self._report = TaskReport(job_id=_own_job_id(), node=node, refusal=offer.refuse(node))
        if self._report.refusal is None:
            signal.signal(signal.SIGTERM, self._terminate)  # in place of submitit's, which ignores it
            try:
                keeper = self._start_keeper(offer)
            except (OSError, MosaicError) as error:
                self._report = self._report.model_copy(update={"refusal": f"on node {node}: {error}"})
        files.write_report(self._report)
        if self._report.refusal is not None:
            raise SystemExit(self._report.refusal)
        if self._report.ended_by is not None:  # since before there was a keeper
            self._end(self._report.ended_by)
        keeper.wait()
        self._write_end(ENDED_BY_KEEPER)

    def checkpoint(self) -> None:
        """Called by submitit, in a signal handler, when the job is about to end; None: it is not queued again."""
        self._end(ENDED_BY_NOTICE)
        if self._keeper_pid is not None:
            # Popen.wait would deadlock: it may be this thread's own call that was interrupted.
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._keeper_pid, os.WEXITED | os.WNOWAIT)
        self._write_end(ENDED_BY_NOTICE)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._end(ENDED_BY_TERMINATION)

    def _end(self, cause: str) -> None:
        """Let the keeper stop its worker. The first cause is the one reported."""
        if self._report is not None and self._report.ended_by is None:
            self._report = self._report.model_copy(update={"ended_by": cause})
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _write_end(self, cause: str) -> None:
        if self._report is not None:
            cause = self._report.ended_by or cause
            JobFiles(Path(self._folder)).write_report(self._report.model_copy(update={"ended_by": cause}))

    def _start_keeper(self, offer: JobOffer) -> subprocess.Popen[bytes]:
        folder, worker = RunFolder(offer.folder), get_worker(offer.worker)
        argv = [*worker.command, "--config", offer.config, *(["--resume"] if offer.is_resume else [])]
        reader, self._lifeline = os.pipe()
        launch: LaunchSpec = {
            "folder": str(folder.path),
            "argv": argv,
            "cwd": str(folder.path),
            "env": {**_environment(folder, offer), INBOX_OFFSET_VARIABLE: str(offer.inbox_offset)},
            "log_name": worker.log_prefix,
            "limits": {"seconds": offer.max_seconds, "memory_mb": offer.memory_mb},
            "inbox_offset": offer.inbox_offset,
            "grace_s": GRACE_S,
            "lifeline_fd": reader,
            "lifeline_s": 0.0,
            "is_signalled_by_cluster": True,
            "end_key": offer.end_key,
        }
        keeper = start_keeper(folder, launch, (reader,))
        os.close(reader)
        self._keeper_pid = keeper.pid
        return keeper


def _own_job_id() -> str:
    import submitit

    return str(submitit.JobEnvironment().job_id)


def _environment(folder: RunFolder, offer: JobOffer) -> dict[str, str]:
    """The job's, without what submitit has set for itself; the GPUs are those that Slurm has assigned to it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SUBMITIT_")}
    return worker_environment(inherited, folder, Path(offer.config), offer.threads)
