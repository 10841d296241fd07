"""Helper processes that play episodes. They are forked, so they have the policy and all imports at once."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mosaic.arena.work_queue import SharedWorkQueue

if TYPE_CHECKING:
    from mosaic.arena.evaluate import Episode

_EPISODE_STRUCT = struct.Struct("=qdq")
"""Index, return and length of an episode; small enough for an atomic write to a pipe."""
NICENESS = 5
"""An evaluation yields to a training run."""
HEARTBEAT_TIMEOUT_S = 1.0
"""A main process without a heartbeat for this long is paused."""
POLL_S = 0.02
EXIT_TIMEOUT_S = 0.3
"""Time for a helper to exit before it is killed."""


PlayEpisodes = Callable[[Callable[["Episode"], None], Callable[[], bool]], None]
"""Plays episodes: calls the first function with each, and the second after each step to ask whether to continue."""


class EvaluationProcesses:
    """The started helpers. Episodes of one that dies are missing."""

    def __init__(self, work_queue: SharedWorkQueue) -> None:
        self._work_queue = work_queue
        self._pids: list[int] = []
        self._pipes: dict[int, bytes] = {}
        """By file descriptor: the bytes of an incomplete record."""
        self._next_poll_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._pipes)

    def start(self, work: PlayEpisodes, count: int) -> None:
        """Fork `count` processes that call `work`."""
        self._work_queue.heartbeat(time.monotonic())
        for _ in range(count):
            reader, writer = os.pipe()
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                _run_child(work, self._work_queue, writer, parent)
            os.close(writer)
            os.set_blocking(reader, False)
            self._pids.append(pid)
            self._pipes[reader] = b""

    def read_episodes(self) -> Iterator[tuple[int, float, int]]:
        """Yield new episodes. Polls the pipes only at intervals, so it can be called at every step."""
        now = time.monotonic()
        if now >= self._next_poll_at:
            self._next_poll_at = now + POLL_S
            for pipe in list(self._pipes):
                yield from self._read(pipe)

    def wait(self) -> bool:
        """Wait briefly for episodes; return False when all helpers have exited."""
        if self._pipes:
            select.select(list(self._pipes), [], [], POLL_S)
            self._next_poll_at = 0.0
        return bool(self._pipes)

    def _read(self, pipe: int) -> Iterator[tuple[int, float, int]]:
        try:
            data = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            os.close(pipe)
            del self._pipes[pipe]
            return
        buffered = self._pipes[pipe] + data
        complete_bytes = len(buffered) // _EPISODE_STRUCT.size * _EPISODE_STRUCT.size
        self._pipes[pipe] = buffered[complete_bytes:]
        yield from _EPISODE_STRUCT.iter_unpack(buffered[:complete_bytes])

    def stop(self) -> None:
        """Ask the helpers to stop, then kill them: an environment may be in a long step."""
        self._work_queue.stop()
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        while self._pids:
            is_late = time.monotonic() >= deadline
            for pid in list(self._pids):
                if is_late:
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(pid, 0 if is_late else os.WNOHANG)[0] == 0:
                        continue
                self._pids.remove(pid)
            if self._pids:
                time.sleep(0.002)
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes.clear()


def _run_child(work: PlayEpisodes, work_queue: SharedWorkQueue, pipe: int, parent: int) -> None:
    """Run `work` in the child and exit; never returns."""
    next_check_at = 0.0

    def send(episode: Episode) -> None:
        os.write(pipe, _EPISODE_STRUCT.pack(episode.index, episode.episodic_return, episode.length))

    def should_continue() -> bool:
        nonlocal next_check_at
        if work_queue.is_stopped:
            return False
        if time.monotonic() < next_check_at:
            return True
        while (
            time.monotonic() - work_queue.last_heartbeat > HEARTBEAT_TIMEOUT_S
            and os.getppid() == parent
            and not work_queue.is_stopped
        ):
            time.sleep(POLL_S)
        next_check_at = time.monotonic() + POLL_S
        return os.getppid() == parent and not work_queue.is_stopped

    try:
        with contextlib.suppress(OSError):
            os.nice(NICENESS)
        work(send, should_continue)
        os._exit(0)
    finally:
        # Errors are not reported: the main process plays the same episode and raises the same error.
        os._exit(1)
