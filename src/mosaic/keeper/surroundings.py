"""Describes the machine and the commits of the user's code, in a thread, as a driver or a disk may be slow."""

from __future__ import annotations

import os
import platform
import queue
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from mosaic.keeper.gpus import read_gpu_names

_GIT_TIMEOUT_S = 10.0
_GIT = ("git", "-c", "core.fsmonitor=false", "status", "--porcelain=v2", "--branch", "--untracked-files=no")
"""Prints the commit and what differs from it. A monitor that a repository configures is not started."""
_END_TIMEOUT_S = 2.0

Report = tuple[str, dict[str, Any]]


class Surroundings:
    """Collects events for the keeper's journal."""

    def __init__(self, source_folders: Sequence[str], has_gpus: bool) -> None:
        """`source_folders`: where code of the user's is."""
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._describe, args=(source_folders, has_gpus), name="surroundings", daemon=True
        )
        self._thread.start()

    def take_reports(self, is_last: bool = False) -> Iterator[Report]:
        """Yield the kind and the fields of each event that is complete. `is_last`: wait a little for the rest."""
        if is_last:
            self._thread.join(_END_TIMEOUT_S)
        with suppress(queue.Empty):
            while True:
                yield self._reports.get_nowait()

    def _describe(self, source_folders: Sequence[str], has_gpus: bool) -> None:
        for root in dict.fromkeys(filter(None, map(find_repository, source_folders))):
            commit = read_commit(root)
            if commit is not None:
                self._reports.put(("source", commit))
        self._reports.put(("machine", describe_machine() | {"gpus": read_gpu_names() if has_gpus else []}))


def describe_machine() -> dict[str, Any]:
    try:
        memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    except (OSError, ValueError):
        memory_mb = 0
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_name(),
        "cpus": os.cpu_count() or 0,
        "memory_mb": memory_mb,
    }


def _cpu_name() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def find_repository(folder: str) -> str:
    """Return the nearest folder with a Git repository; empty where there is none."""
    folder = os.path.abspath(folder)
    while True:
        if os.path.exists(os.path.join(folder, ".git")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return ""
        folder = parent


def read_commit(root: str) -> dict[str, Any] | None:
    """Return the commit of a repository and whether files differ from it; None where Git does not say."""
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    try:
        # Its exit status may be collected by the keeper's loop, so only what it prints counts.
        done = subprocess.run(
            _GIT,
            cwd=root,
            env={**env, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.decode(errors="replace").splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "")
    if not commit or commit.startswith("("):  # (initial): it has no commit yet
        return None
    return {"folder": root, "commit": commit, "is_dirty": any(not line.startswith("#") for line in lines)}
