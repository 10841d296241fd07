"""Starts the worker and the sidecar, sends signals to the worker's whole process tree, and reads its last words."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from typing import IO, NoReturn

from mosaic.base.processes import own_identity
from mosaic.contracts.folder import KEEPER_VARIABLE, RunFolder
from mosaic.keeper.launch_spec import LaunchSpec, ProgramSpec
from mosaic.keeper.survivors import keeper_mark
from mosaic.keeper.tree import PROC, descendants

_PR_SET_CHILD_SUBREAPER = 36
_HAS_PROC = sys.platform == "linux"
_PASSES = 16
_MAX_ERROR_BYTES = 4000
_TAIL_BYTES = 1 << 16
_MAX_LENGTH = 300
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_LINE_END = re.compile(r"[\r\n]+")
_TRACEBACK = "Traceback (most recent call last):"
_MAX_EXCEPTION_LINES = 5
_FATAL = "Fatal Python error: "
_FOOTERS = (
    "For simplicity, JAX has removed its internal frames",
    "Set the environment variable HYDRA_FULL_ERROR=1",
    "Compile with `TORCH_USE_CUDA_DSA`",
)
"""Beginnings of hints that libraries print after the exception."""


class ProgramStartError(Exception):
    """The worker or the sidecar could not be started; the message is the reason."""


def become_subreaper() -> None:
    """Make orphans among our descendants our children, whatever session they are in."""
    if _HAS_PROC:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start_worker(launch: LaunchSpec, folder: RunFolder) -> tuple[int, int]:
    """Start the worker; return its pid and the size that its stderr log had before."""
    try:
        folder.logs.mkdir(parents=True, exist_ok=True)
        with (
            open(folder.stdout_log(launch["log_name"]), "ab") as stdout,
            open(folder.stderr_log(launch["log_name"]), "ab") as stderr,
        ):
            begin = stderr.tell()
            launch["env"][KEEPER_VARIABLE] = keeper_mark(own_identity())
            return _start_program(launch, stdout, stderr, launch.get("umask", -1)), begin
    except (OSError, ValueError) as error:
        raise ProgramStartError(_reason(error, launch["argv"][0], launch["cwd"])) from None


def _reason(error: OSError | ValueError, program: str, cwd: str) -> str:
    if not os.path.isdir(cwd):
        return f"The worker's working directory does not exist: {cwd!r}."
    if isinstance(error, FileNotFoundError) and error.filename == program:
        return f"The worker's program was not found: {program!r}. Is its package installed?"
    if isinstance(error, PermissionError):
        return f"Permission denied for {error.filename!r}: this user needs access to the worker's program and folders."
    return f"The worker could not be started: {error}."


# --- the sidecar: a program that runs alongside the run and may outlive it, such as an upload


def start_sidecar(sidecar: ProgramSpec, folder: RunFolder) -> int:
    """Start the sidecar and return its pid. Call it before `become_subreaper` and before any thread.

    It must not belong to the run's process tree: the keeper's limits, samples, signals and exit do not apply to it. So
    an intermediate process starts it and exits at once.
    """
    reader, writer = os.pipe()
    pid = None
    with suppress(OSError):  # at the process limit: the worker may still find room
        pid = os.fork()
    if pid == 0:
        _spawn_and_exit(sidecar, folder, writer)
    os.close(writer)
    with open(reader, "rb") as reply:
        answer = reply.read().decode(errors="replace")
    if pid is not None:
        os.waitpid(pid, 0)
    if not answer.isdecimal():
        raise ProgramStartError(f"The sidecar was not started: {answer or 'no process could be created'}.")
    return int(answer)


def _spawn_and_exit(sidecar: ProgramSpec, folder: RunFolder, writer: int) -> NoReturn:
    """Run in the intermediate process. No code of the keeper may run here, whatever is raised."""
    answer = ""
    try:
        folder.logs.mkdir(parents=True, exist_ok=True)
        with open(folder.logs / f"{sidecar['log_name']}.log", "ab") as log:
            answer = str(_start_program(sidecar, log, log))
    except BaseException as error:
        answer = str(error)
    finally:
        with suppress(OSError):
            os.write(writer, answer.encode()[:_MAX_ERROR_BYTES])
        os._exit(0)


def _start_program(program: ProgramSpec, stdout: IO[bytes], stderr: IO[bytes], umask: int = -1) -> int:
    process = subprocess.Popen(
        program["argv"],
        cwd=program["cwd"],
        env=program["env"],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        umask=umask,
    )
    # The loop waits for all children at once and takes the exit status, so Popen must not wait for it.
    process.returncode = 0
    return process.pid


# --- signals


def signal_process(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def signal_tree(main: int, number: signal.Signals) -> None:
    """Signal every descendant of the keeper; without /proc, the worker's process group."""
    if not _HAS_PROC:
        with suppress(OSError):
            os.killpg(main, number)
        return
    # SIGTERM is sent once: a process started later may be cleanup.
    _signal_descendants(os.getpid(), number, _PASSES if number in (signal.SIGKILL, signal.SIGSTOP) else 1)


def kill_with_descendants(pid: int) -> None:
    """Kill a process of which the caller is not the parent; without /proc, its process group."""
    if not _HAS_PROC:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        return
    signal_process(pid, signal.SIGSTOP)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none forks or loses its parent meanwhile
        _signal_descendants(pid, number, _PASSES)
    signal_process(pid, signal.SIGKILL)


def _signal_descendants(root: int, number: signal.Signals, passes: int) -> None:
    """Signal them in several passes: while some are being stopped, others may still fork."""
    signaled: set[int] = set()
    for _ in range(passes):
        new_pids = [process.pid for process in descendants(PROC, root) if process.pid not in signaled]
        if not new_pids:
            return
        for pid in new_pids:
            signal_process(pid, number)
        signaled.update(new_pids)


def is_process_group_alive(main: int) -> bool:
    """Return whether the worker's group is alive, on systems where orphans are not our children."""
    if _HAS_PROC:
        return False
    try:
        os.killpg(main, 0)
    except OSError:
        return False
    return True


# --- last words: the line of its stderr that explains its exit


def extract_last_words(tail: bytes) -> str | None:
    """Return the first line of an interpreter's crash dump, or the last exception, or the last line.

    Hints of libraries are left out. An exception that many lines follow was not the last thing that happened.
    """
    text = _ESCAPE.sub("", tail.decode(errors="replace"))
    raw = [line for line in _LINE_END.split(text) if any(map(str.isalnum, _clean(line)))]
    lines = [_clean(line) for line in raw]
    fatal = [line for line in lines if line.startswith(_FATAL)]
    words = fatal or [line for line in lines if not line.startswith(_FOOTERS)] or lines
    if not fatal and _TRACEBACK in lines:
        begin = len(lines) - lines[::-1].index(_TRACEBACK)
        begin = next((at for at in range(begin, len(raw)) if not raw[at].startswith(" ")), len(raw))
        exception = [line for line in lines[begin:] if not line.startswith(_FOOTERS)]
        if 0 < len(exception) <= _MAX_EXCEPTION_LINES:
            words = [" ".join(exception)]
    return words[-1][:_MAX_LENGTH] if words else None


def read_last_words(path: str | os.PathLike[str], begin: int) -> str | None:
    """Return the last words written after byte `begin`."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin, size - _TAIL_BYTES))
            return extract_last_words(file.read(_TAIL_BYTES))
    except OSError:
        return None


def _clean(line: str) -> str:
    return "".join(char if char.isprintable() else " " if char == "\t" else "" for char in line).strip()
