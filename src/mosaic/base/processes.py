"""Identifies processes and checks whether they are alive. Standard library only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mosaic.contracts.process_identity import ProcessIdentity


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _read_start(pid: int) -> str:
    """Return the start of a process from /proc; empty for a zombie."""
    with open(f"/proc/{pid}/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def start_time(pid: int) -> str:
    """Empty when no such process lives; a zombie does not live."""
    try:
        return _read_start(pid)
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return ""
    shown = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, encoding="utf-8", errors="replace"
    )
    return shown.stdout.strip()


def identify(pid: int) -> ProcessIdentity:
    return {"pid": pid, "start": start_time(pid), "boot_id": boot_id()}


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether that very process still runs, not merely one with its number."""
    if identity["pid"] <= 0 or identity["boot_id"] != boot_id():
        return False
    start = start_time(identity["pid"])
    return bool(start) and start == identity["start"]


def is_gone(identity: ProcessIdentity) -> bool:
    """Whether that process has certainly ended; one that cannot be looked at, as with too many open files, has not."""
    booted = boot_id()
    if not booted:
        return not Path("/proc").is_dir() and not is_alive(identity)
    if identity["boot_id"] not in ("", booted):
        return True
    try:
        start = _read_start(identity["pid"])
        return not start or identity["start"] not in ("", start)
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, IndexError):
        return False


def own_identity() -> ProcessIdentity:
    return identify(os.getpid())


SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
"""Environment variable: makes Python import nothing from its working directory or next to its script."""


def without_working_directory(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that works in a run folder and must import nothing from there.

    The folder may come from someone else. A relative entry of PYTHONPATH would be a folder inside it.
    """
    entries = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(entry)]
    return {**env, SAFE_PATH_VARIABLE: "1", "PYTHONPATH": os.pathsep.join(entries)}
