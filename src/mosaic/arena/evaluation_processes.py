"""Further processes that play episodes. They are forked: the policy and all imports are there at once."""

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
"""Index, return and length of an episode; short enough to be written to a pipe in one piece."""
NICENESS = 5
"""Beside a run that trains, an evaluation takes what is left."""
HEARTBEAT_TIMEOUT_S = 1.0
"""A first process that was not heard for so long is paused."""
POLL_S = 0.02
EXIT_TIMEOUT_S = 0.3
"""How long a helper may take to end before it is killed."""


PlayEpisodes = Callable[[Callable[["Episode"], None], Callable[[], bool]], None]
"""Plays: hands over each episode, and asks after each step whether to go on."""


class EvaluationProcesses:
    """Those that were started. What one of them did not bring before it died is simply not there."""

    def __init__(self, work_queue: SharedWorkQueue) -> None:
        self._work_queue = work_queue
        self._pids: list[int] = []
        self._pipes: dict[int, bytes] = {}
        """What was read of each and is no whole record yet."""
        self._next_poll_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._pipes)

    def start(self, work: PlayEpisodes, count: int) -> None:
        """`work` is called in each of the processes."""
        self._work_queue.heartbeat(time.monotonic())
        for _ in range(count):
            ours, theirs = os.pipe()
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                _run_child(work, self._work_queue, theirs, parent)
            os.close(theirs)
            os.set_blocking(ours, False)
            self._pids.append(pid)
            self._pipes[ours] = b""

    def read_episodes(self) -> Iterator[tuple[int, float, int]]:
        """Episodes that were brought since. Looks now and then only: it may be asked at every step."""
        now = time.monotonic()
        if now >= self._next_poll_at:
            self._next_poll_at = now + POLL_S
            for pipe in list(self._pipes):
                yield from self._read(pipe)

    def wait(self) -> bool:
        """Waits a little for something to take; False when all have ended."""
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
        held = self._pipes[pipe] + data
        whole = len(held) // _EPISODE_STRUCT.size * _EPISODE_STRUCT.size
        self._pipes[pipe] = held[whole:]
        yield from _EPISODE_STRUCT.iter_unpack(held[:whole])

    def stop(self) -> None:
        """Asks, then kills: an environment may be deep in a step of its own."""
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
    """Never returns: what stands behind the fork is the first process's to do."""
    look_at = 0.0

    def bring(episode: Episode) -> None:
        os.write(pipe, _EPISODE_STRUCT.pack(episode.index, episode.episodic_return, episode.length))

    def goes_on() -> bool:
        nonlocal look_at
        if work_queue.is_stopped:
            return False
        if time.monotonic() < look_at:
            return True
        while (
            time.monotonic() - work_queue.last_heartbeat > HEARTBEAT_TIMEOUT_S
            and os.getppid() == parent
            and not work_queue.is_stopped
        ):
            time.sleep(POLL_S)
        look_at = time.monotonic() + POLL_S
        return os.getppid() == parent and not work_queue.is_stopped

    try:
        with contextlib.suppress(OSError):
            os.nice(NICENESS)
        work(bring, goes_on)
        os._exit(0)
    finally:
        # Not a word of what went wrong: the first process plays the same episode and will meet it too.
        os._exit(1)
