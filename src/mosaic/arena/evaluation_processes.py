"""Helper processes that play episodes, and the queue from which all take them.

Helpers are forked, so they have the policy and all imports at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, get_context
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mosaic.arena.evaluate import Episode

NICENESS = 5
"""An evaluation yields to a training run."""
HEARTBEAT_TIMEOUT_S = 1.0
"""A main process without a heartbeat for this long is paused."""
POLL_S = 0.02
EXIT_TIMEOUT_S = 0.3
"""Time for the helpers to exit before they are killed."""

PlayEpisodes = Callable[[Callable[["Episode"], None], Callable[[], bool]], None]
"""Plays episodes: calls the first function with each, and the second after each step to ask whether to continue."""


class SharedWorkQueue:
    """A queue of episodes per row, from which every process takes the next. Create it before forking."""

    def __init__(self, rows: Sequence[Sequence[int]], is_shared: bool = False) -> None:
        self._rows = rows
        self.row_order = sorted((row for row in range(len(rows)) if rows[row]), key=lambda row: rows[row][0])
        """The rows that have episodes, in the order of their first one."""
        memory = memoryview(mmap.mmap(-1, mmap.PAGESIZE))
        self._taken_counts = memory[: 8 * len(rows)].cast("q")
        """Number of episodes taken, by row."""
        self._words = memory[8 * len(rows) :].cast("d")
        """The time of the main process's last heartbeat, and whether it has asked the helpers to stop."""
        # A kernel lock: the kernel releases it when the process that holds it is killed.
        self._lock = os.memfd_create("claims") if is_shared else None

    def take(self, row: int) -> int | None:
        """Take and return the next episode of a row; None if all are taken."""
        if self._lock is not None:
            fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            taken = self._taken_counts[row]
            if taken >= len(self._rows[row]):
                return None
            self._taken_counts[row] = taken + 1
            return self._rows[row][taken]
        finally:
            if self._lock is not None:
                fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def count_waiting(self) -> int:
        """Return the number of episodes not taken yet."""
        return sum(map(len, self._rows)) - sum(self._taken_counts)

    def heartbeat(self, now: float) -> None:
        """Record that the main process is running; the helpers wait while it is paused."""
        self._words[0] = now

    @property
    def is_paused(self) -> bool:
        return time.monotonic() - self._words[0] > HEARTBEAT_TIMEOUT_S

    def stop(self) -> None:
        self._words[1] = 1.0

    @property
    def is_stopped(self) -> bool:
        return self._words[1] != 0.0

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class EvaluationProcesses:
    """The running helpers. Episodes of one that dies are missing."""

    def __init__(self, work_queue: SharedWorkQueue) -> None:
        self._work_queue = work_queue
        self._helpers: dict[connection.Connection, ForkProcess] = {}
        self._next_poll_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._helpers)

    def start(self, work: PlayEpisodes, count: int) -> None:
        """Fork `count` processes that call `work`."""
        self._work_queue.heartbeat(time.monotonic())
        context = get_context("fork")
        for _ in range(count):
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=_run_helper, args=(work, self._work_queue, writer, os.getpid()))
            process.start()
            writer.close()
            self._helpers[reader] = process

    def read_episodes(self) -> Iterator[Episode]:
        """Yield new episodes. Polls the pipes only at intervals, so it can be called at every step."""
        now = time.monotonic()
        if now >= self._next_poll_at:
            self._next_poll_at = now + POLL_S
            for reader in list(self._helpers):
                yield from self._read(reader)

    def _read(self, reader: connection.Connection) -> Iterator[Episode]:
        try:
            while reader.poll():
                yield reader.recv()
        except EOFError:
            reader.close()
            self._helpers.pop(reader).join()

    def wait(self) -> bool:
        """Wait briefly for episodes; return False when all helpers have exited."""
        connection.wait(list(self._helpers), POLL_S)
        self._next_poll_at = 0.0
        return bool(self._helpers)

    def stop(self) -> None:
        """Ask the helpers to stop, then kill them: an environment may be in a long step."""
        self._work_queue.stop()
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        for reader, process in self._helpers.items():
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
            process.join()
            reader.close()
        self._helpers.clear()


def _run_helper(work: PlayEpisodes, work_queue: SharedWorkQueue, writer: connection.Connection, main_pid: int) -> None:
    """Run `work` in a helper and exit; never returns."""
    next_check_at = 0.0

    def should_continue() -> bool:
        nonlocal next_check_at
        if work_queue.is_stopped:
            return False
        if time.monotonic() < next_check_at:
            return True
        while work_queue.is_paused and os.getppid() == main_pid and not work_queue.is_stopped:
            time.sleep(POLL_S)
        next_check_at = time.monotonic() + POLL_S
        return os.getppid() == main_pid and not work_queue.is_stopped

    try:
        with contextlib.suppress(OSError):
            os.nice(NICENESS)
        work(writer.send, should_continue)
    finally:
        # Errors are not reported: the main process plays the same episode and raises the same error.
        os._exit(0)
