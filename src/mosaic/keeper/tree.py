"""Reads the members and the usage of a process tree from /proc.

The keeper is the subreaper: orphans become its children, so its descendants are the whole tree. A process may vanish
between two reads and is then left out.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import NamedTuple

PROC = "/proc"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


class Process(NamedTuple):
    pid: int
    parent: int
    session: int
    is_zombie: bool
    own_ticks: int
    waited_ticks: int
    """Used by its children that have exited and were waited for."""


class Memory(NamedTuple):
    private_mb: float
    shared_mb: float
    """File and shared-memory pages."""


class TreeUsage(NamedTuple):
    """The usage of a whole tree at one moment."""

    cpu_s: float
    """Total so far, exited processes included."""
    private_mb: float
    processes: int


def read_process(proc: str, pid: int) -> Process | None:
    try:
        with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:
            # The name is in parentheses and may contain spaces and parentheses itself.
            fields = file.read().rpartition(b")")[2].split()
        user, system, waited_user, waited_system = map(int, fields[11:15])
        parent, session = int(fields[1]), int(fields[3])
        return Process(pid, parent, session, fields[0] in b"ZX", user + system, waited_user + waited_system)
    except (OSError, ValueError, IndexError):
        return None


def list_processes(proc: str) -> list[Process]:
    """Return all processes, zombies included."""
    try:
        pids = [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []
    return [process for process in (read_process(proc, pid) for pid in pids) if process is not None]


def descendants(proc: str, root: int) -> list[Process]:
    """Return parents before children, zombies included, without `root` itself."""
    if not os.path.exists(f"{proc}/{root}/task/{root}/children"):
        return _descendants_by_parent(proc, root)
    processes: list[Process] = []
    pids = [root]
    for pid in pids:
        for child in (read_process(proc, number) for number in _listed_children(proc, pid)):
            if child is not None and child.pid not in pids:
                processes.append(child)
                pids.append(child.pid)
    return processes


def _listed_children(proc: str, pid: int) -> list[int]:
    """Return the children listed by the kernel: far cheaper than scanning /proc, but not built into every kernel."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"{proc}/{pid}/task"):
            with open(f"{proc}/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                children.extend(map(int, file.readall().split()))
    except OSError:
        pass
    return children


def _descendants_by_parent(proc: str, root: int) -> list[Process]:
    by_parent: dict[int, list[Process]] = defaultdict(list)
    for process in list_processes(proc):
        if process.pid != root:
            by_parent[process.parent].append(process)
    processes = by_parent.pop(root, [])
    for process in processes:
        processes.extend(by_parent.pop(process.pid, []))
    return processes


def read_memory(proc: str, pid: int) -> Memory:
    try:
        with open(f"{proc}/{pid}/statm", "rb", buffering=0) as file:
            _, resident, shared = map(int, file.read().split()[:3])
        return Memory((resident - shared) * _PAGE_MB, shared * _PAGE_MB)
    except (OSError, ValueError):
        return Memory(0.0, 0.0)


def read_tree(proc: str, keeper: int) -> TreeUsage:
    """Sum the usage. CPU time moves from a child to the parent that waits for it, so the keeper's waits count too."""
    tree = descendants(proc, keeper)
    itself = read_process(proc, keeper)
    ticks = sum(process.own_ticks + process.waited_ticks for process in tree) + (itself.waited_ticks if itself else 0)
    living = [process.pid for process in tree if not process.is_zombie]
    private_mb = sum(read_memory(proc, pid).private_mb for pid in living)
    return TreeUsage(ticks / _TICKS_PER_S, private_mb, len(living))


def anonymous_memory_mb(proc: str, keeper: int) -> float:
    """Return the tree's private memory, counting pages shared by a fork once: exact, but too slow for every sample."""
    return sum(_anonymous_mb(proc, process.pid) for process in descendants(proc, keeper) if not process.is_zombie)


def _anonymous_mb(proc: str, pid: int) -> float:
    try:
        with open(f"{proc}/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss_Anon:"):
                    return int(line.split()[1]) / 1024
    except (OSError, ValueError):
        pass
    return read_memory(proc, pid).private_mb
