"""Finds and kills the processes of a run whose keeper was killed, so that none is left to hold memory or a GPU."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from contextlib import suppress

from mosaic.base.processes import boot_id, is_alive, start_time
from mosaic.contracts.folder import KEEPER_VARIABLE
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.keeper.tree import PROC, list_processes

_TIMEOUT_S = 4.0
_PASS_S = 0.02
_HAS_PROC = sys.platform == "linux"


def keeper_mark(keeper: ProcessIdentity) -> str:
    """Return the value of KEEPER_VARIABLE in the environment of all processes that this keeper started."""
    return f"{keeper['pid']}:{keeper['start']}:{keeper['boot_id']}"


def kill_survivors(keeper: ProcessIdentity, worker: ProcessIdentity | None) -> list[int]:
    """Kill what is left of a dead keeper's processes; return those that are still alive after some seconds."""
    if keeper["boot_id"] != boot_id():
        return []
    if not _HAS_PROC:
        if worker is not None and is_alive(worker):
            with suppress(OSError):
                os.killpg(worker["pid"], signal.SIGKILL)
        return []
    deadline = time.monotonic() + _TIMEOUT_S
    # Until none is found twice: a process may have forked while the others were killed, or may be just starting and
    # have no environment yet.
    pids: list[int] = []
    empty_passes = 0
    while empty_passes < 2 and time.monotonic() < deadline:
        pids = find_survivors(keeper, worker)
        empty_passes = 0 if pids else empty_passes + 1
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PASS_S)
    return pids


def find_survivors(keeper: ProcessIdentity, worker: ProcessIdentity | None) -> list[int]:
    """Return the processes with the keeper's mark, those of the worker's session, and all their descendants.

    The calling process and its descendants are left out, even if it was started from within the run.
    """
    mark = f"{KEEPER_VARIABLE}={keeper_mark(keeper)}".encode()
    # If another process has the worker's number, nothing is left of the worker's session.
    has_session = worker is not None and start_time(worker["pid"]) in ("", worker["start"])
    session = worker["pid"] if worker is not None and has_session else None
    survivors: list[int] = []
    children: dict[int, list[int]] = defaultdict(list)
    for process in list_processes(PROC):
        if process.is_zombie or process.pid == os.getpid():
            continue
        children[process.parent].append(process.pid)
        if process.session == session or _has_variable(process.pid, mark):
            survivors.append(process.pid)
    for pid in survivors:
        survivors.extend(child for child in children[pid] if child not in survivors)
    return survivors


def _has_variable(pid: int, variable: bytes) -> bool:
    try:
        with open(f"{PROC}/{pid}/environ", "rb") as file:
            return variable in file.read().split(b"\0")
    except OSError:
        return False  # of another user, or it has just ended
