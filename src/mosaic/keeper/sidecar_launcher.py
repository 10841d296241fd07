"""Starts the sidecar: a program that runs alongside the run and may outlive it, such as an upload.

It must not belong to the run's process tree: the keeper's limits, samples, signals and exit do not apply to it. So an
intermediate process forks it and exits at once, before the keeper becomes the subreaper. The worker waits only for
that, a millisecond; whether the program could be started is checked when the worker runs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NoReturn

from mosaic.contracts.folder import RunFolder
from mosaic.keeper.launch_spec import ProgramSpec

_MAX_ERROR_BYTES = 4000


class SidecarStartError(Exception):
    """The sidecar could not be started; the message is the reason."""


class SidecarLaunch:
    """A sidecar that is being started. Create it before `become_subreaper` and before any thread."""

    def __init__(self, sidecar: ProgramSpec, folder: RunFolder) -> None:
        pid_reader, pid_writer = os.pipe()
        self._reader, writer = os.pipe()  # closed by a successful exec
        intermediate_pid = _try_fork()
        if intermediate_pid == 0:
            _spawn_and_exit(sidecar, folder, pid_writer, writer)
        os.close(writer)
        os.close(pid_writer)
        with open(pid_reader, "rb") as answer:
            pid = answer.read()
        if intermediate_pid is not None:
            os.waitpid(intermediate_pid, 0)
        self._pid = int(pid or 0)

    def wait_for_pid(self) -> int:
        """Return the sidecar's pid once it runs."""
        with open(self._reader, "rb") as answer:
            problem = answer.read().decode(errors="replace")
        if problem or not self._pid:
            raise SidecarStartError(f"The sidecar was not started: {problem or 'no process could be created'}.")
        return self._pid


def _try_fork() -> int | None:
    """Fork, or return None at the process limit: the worker may still find room."""
    try:
        return os.fork()
    except OSError:
        return None


def _spawn_and_exit(sidecar: ProgramSpec, folder: RunFolder, pid_writer: int, writer: int) -> NoReturn:
    """Run in the intermediate process. No code of the keeper may run here or below, whatever is raised."""
    try:
        pid = os.fork()
        if pid == 0:
            os.close(pid_writer)
            _exec_sidecar(sidecar, folder, writer)
        os.write(pid_writer, str(pid).encode())
    finally:
        os._exit(0)


def _exec_sidecar(sidecar: ProgramSpec, folder: RunFolder, writer: int) -> NoReturn:
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
