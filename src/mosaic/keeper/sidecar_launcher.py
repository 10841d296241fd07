"""Starting the sidecar: a program that goes along with the run and outlives it for a while, such as an upload.

It must be nobody's in the run's tree: the keeper's limits, its samples, its signals and its end have nothing to do with
it. So it is started by a process between, which ends at once, before the keeper adopts whoever loses its parent. The
worker waits for that alone, a millisecond; whether the program could be started is asked when the worker runs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NoReturn

from mosaic.contracts.folder import RunFolder
from mosaic.keeper.launch_spec import SidecarSpec

_MAX_ERROR_BYTES = 4000


class SidecarStartError(Exception):
    """There is none, and the message says why."""


class SidecarLaunch:
    """A sidecar that is on its way. To be made before `become_subreaper`, and before there is any thread."""

    def __init__(self, sidecar: SidecarSpec, folder: RunFolder) -> None:
        pid_reader, pid_writer = os.pipe()
        self._reader, writer = os.pipe()  # closed by a program that has begun
        between = _try_fork()
        if between == 0:
            _spawn_and_exit(sidecar, folder, pid_writer, writer)
        os.close(writer)
        os.close(pid_writer)
        with open(pid_reader, "rb") as answer:
            told = answer.read()
        if between is not None:
            os.waitpid(between, 0)
        self._pid = int(told or 0)

    def wait_for_pid(self) -> int:
        """When it has begun."""
        with open(self._reader, "rb") as answer:
            problem = answer.read().decode(errors="replace")
        if problem or not self._pid:
            raise SidecarStartError(f"The sidecar was not started: {problem or 'no process could be made'}.")
        return self._pid


def _try_fork() -> int | None:
    """None where there is no room for a further process: the worker may still find some."""
    try:
        return os.fork()
    except OSError:
        return None


def _spawn_and_exit(sidecar: SidecarSpec, folder: RunFolder, pid_writer: int, writer: int) -> NoReturn:
    """In the process between. Nothing of the keeper's may run here or below, whatever is raised."""
    try:
        pid = os.fork()
        if pid == 0:
            os.close(pid_writer)
            _exec_sidecar(sidecar, folder, writer)
        os.write(pid_writer, str(pid).encode())
    finally:
        os._exit(0)


def _exec_sidecar(sidecar: SidecarSpec, folder: RunFolder, writer: int) -> NoReturn:
    try:
        os.setsid()
        folder.logs.mkdir(parents=True, exist_ok=True)
        log = os.open(folder.logs / f"{sidecar['log_name']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number, source in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(source, number)
        os.chdir(sidecar["cwd"])
        os.execve(sidecar["argv"][0], sidecar["argv"], sidecar["env"])
    except BaseException as error:
        with suppress(OSError):
            os.write(writer, str(error).encode()[:_MAX_ERROR_BYTES])
    finally:
        os._exit(1)
