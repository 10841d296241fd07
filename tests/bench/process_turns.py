"""Two programs that take turns: what one of them pays more shows although the machine's own speed wanders.

Runs that follow each other differ by several percent on a shared machine, whatever they do. Two that run by turns of a
second meet the same machine.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

TURN_S = 1.0

Span = tuple[float, float]


def run_alternately(first: int, second: int, turn_s: float = TURN_S) -> dict[int, list[Span]]:
    """Lets one process run, then the other, until one of them has ended; gives when each was held, by perf_counter."""
    held: dict[int, list[Span]] = {first: [], second: []}
    running, waiting = first, second
    try:
        while _send_signal(waiting, signal.SIGSTOP) and _send_signal(running, signal.SIGCONT):
            began = time.perf_counter()
            time.sleep(turn_s)
            held[waiting].append((began, time.perf_counter()))
            running, waiting = waiting, running
    finally:
        for pid in (first, second):
            _send_signal(pid, signal.SIGCONT)
    return held


def running_time_s(suspended: Iterable[Span], started_at: float, ended_at: float) -> float:
    """How long it was from one moment to the other, less the time that it was held."""
    return (
        ended_at - started_at - sum(max(0.0, min(end, ended_at) - max(start, started_at)) for start, end in suspended)
    )


def _send_signal(pid: int, signal_number: signal.Signals) -> bool:
    """Whether the process is there and not yet ended."""
    with suppress(OSError):
        os.kill(pid, signal_number)
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    return False
