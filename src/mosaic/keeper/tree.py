"""Who belongs to a process tree and what it uses, read from a /proc folder.

The keeper is the subreaper: whoever loses its parent becomes the keeper's child, so the keeper's descendants are
everybody. Anything may vanish between two reads; what has vanished is left out.
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
    is_zombie: bool
    own_ticks: int
    waited_ticks: int
    """Of its children that have ended and were waited for."""


class Memory(NamedTuple):
    private_mb: float
    shared_mb: float
    """File and shared-memory pages."""


class TreeUsage(NamedTuple):
    """A whole tree at one moment."""

    cpu_s: float
    """All that it has used so far, by those who have ended too."""
    private_mb: float
    processes: int


def read_process(proc: str, pid: int) -> Process | None:
    try:
        with open(f"{proc}/{pid}/stat", "rb", buffering=0) as file:
            # The name stands in parentheses and may hold spaces and parentheses itself.
            fields = file.read().rpartition(b")")[2].split()
        user, system, waited_user, waited_system = map(int, fields[11:15])
        return Process(pid, int(fields[1]), fields[0] in b"ZX", user + system, waited_user + waited_system)
    except (OSError, ValueError, IndexError):
        return None


def descendants(proc: str, root: int) -> list[Process]:
    """Parents before children, zombies included, `root` left out."""
    if not os.path.exists(f"{proc}/{root}/task/{root}/children"):
        return _descendants_by_parent(proc, root)
    found: list[Process] = []
    waiting = [root]
    for pid in waiting:
        for child in (read_process(proc, number) for number in _listed_children(proc, pid)):
            if child is not None and child.pid not in waiting:
                found.append(child)
                waiting.append(child.pid)
    return found


def _listed_children(proc: str, pid: int) -> list[int]:
    """As the kernel lists them: far cheaper than looking at everybody, but not built into every kernel."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"{proc}/{pid}/task"):
            with open(f"{proc}/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                children.extend(map(int, file.readall().split()))
    except OSError:
        pass
    return children


def _descendants_by_parent(proc: str, root: int) -> list[Process]:
    try:
        numbers = [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return []
    by_parent: dict[int, list[Process]] = defaultdict(list)
    for process in (read_process(proc, number) for number in numbers):
        if process is not None and process.pid != root:
            by_parent[process.parent].append(process)
    found = by_parent.pop(root, [])
    for process in found:
        found.extend(by_parent.pop(process.pid, []))
    return found


def read_memory(proc: str, pid: int) -> Memory:
    try:
        with open(f"{proc}/{pid}/statm", "rb", buffering=0) as file:
            _, resident, shared = map(int, file.read().split()[:3])
        return Memory((resident - shared) * _PAGE_MB, shared * _PAGE_MB)
    except (OSError, ValueError):
        return Memory(0.0, 0.0)


def read_tree(proc: str, keeper: int) -> TreeUsage:
    """Time moves from a child to whoever waits for it, so the sum with the keeper's own waits never loses any."""
    tree = descendants(proc, keeper)
    itself = read_process(proc, keeper)
    ticks = sum(process.own_ticks + process.waited_ticks for process in tree) + (itself.waited_ticks if itself else 0)
    living = [process.pid for process in tree if not process.is_zombie]
    private_mb = sum(read_memory(proc, pid).private_mb for pid in living)
    return TreeUsage(ticks / _TICKS_PER_S, private_mb, len(living))


def anonymous_memory_mb(proc: str, keeper: int) -> float:
    """The tree's own memory with pages that a fork shares counted once: exact, and too slow to ask all the time."""
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
