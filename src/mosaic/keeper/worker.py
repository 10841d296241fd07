"""Starting the worker, and sending signals to it and to everybody it started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress

from mosaic.contracts.folder import RunFolder
from mosaic.keeper.launch_spec import LaunchSpec
from mosaic.keeper.tree import PROC, descendants

_PR_SET_CHILD_SUBREAPER = 36
_HAS_PROC = sys.platform == "linux"
_PASSES = 16


class WorkerStartError(Exception):
    """There is no worker, and the message says why."""


def become_subreaper() -> None:
    """Whoever loses its parent below us becomes our child, whatever session it is in."""
    if _HAS_PROC:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start_worker(launch: LaunchSpec, folder: RunFolder) -> tuple[int, int]:
    """Returns its pid and the size that its stderr log had before."""
    program, cwd = launch["argv"][0], launch["cwd"]
    try:
        folder.logs.mkdir(parents=True, exist_ok=True)
        with (
            open(folder.stdout_log(launch["log_name"]), "ab") as stdout,
            open(folder.stderr_log(launch["log_name"]), "ab") as stderr,
        ):
            begin = stderr.tell()
            process = subprocess.Popen(
                launch["argv"],
                cwd=cwd,
                env=launch["env"],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        raise WorkerStartError(_reason(error, program, cwd)) from None
    # The loop waits for everybody at once and would take its status away: Popen is told not to look for it.
    process.returncode = 0
    return process.pid, begin


def _reason(error: OSError | ValueError, program: str, cwd: str) -> str:
    if not os.path.isdir(cwd):
        return f"The folder in which the worker should start does not exist: {cwd!r}."
    if isinstance(error, FileNotFoundError) and error.filename == program:
        return f"The worker's program was not found: {program!r}. Is its package installed?"
    if isinstance(error, PermissionError):
        return f"Permission denied for {error.filename!r}: the worker's program and folders must be open to this user."
    return f"The worker could not be started: {error}."


def signal_process(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def signal_tree(main: int, number: signal.Signals) -> None:
    """Everybody below the keeper; where that cannot be known, the worker's process group."""
    if not _HAS_PROC:
        with suppress(OSError):
            os.killpg(main, number)
        return
    # While some are being stopped others may still fork. A SIGTERM goes out once: what starts after it cleans up.
    passes = _PASSES if number in (signal.SIGKILL, signal.SIGSTOP) else 1
    reached: set[int] = set()
    for _ in range(passes):
        fresh = [process.pid for process in descendants(PROC, os.getpid()) if process.pid not in reached]
        if not fresh:
            return
        for pid in fresh:
            signal_process(pid, number)
        reached.update(fresh)


def is_process_group_alive(main: int) -> bool:
    """Only for systems where orphans are not ours to wait for."""
    if _HAS_PROC:
        return False
    try:
        os.killpg(main, 0)
    except OSError:
        return False
    return True
