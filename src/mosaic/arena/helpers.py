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

from mosaic.arena.claims import Claims

if TYPE_CHECKING:
    from mosaic.arena.evaluate import Episode

_ENDED = struct.Struct("=qdq")
"""Index, return and length of an episode; short enough to be written to a pipe in one piece."""
NICENESS = 5
"""Beside a run that trains, an evaluation takes what is left."""
STALE_S = 1.0
"""A first process that was not heard for so long is paused."""
LOOK_S = 0.02
PATIENCE_S = 0.3
"""How long a helper may take to end before it is killed."""


Work = Callable[[Callable[["Episode"], None], Callable[[], bool]], None]
"""Plays: hands over each episode, and asks after each step whether to go on."""


class Helpers:
    """Those that were started. What one of them did not bring before it died is simply not there."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._pids: list[int] = []
        self._pipes: dict[int, bytes] = {}
        """What was read of each and is no whole record yet."""
        self._look_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._pipes)

    def start(self, work: Work, count: int) -> None:
        """`work` is called in each of the processes."""
        self._claims.beat(time.monotonic())
        for _ in range(count):
            ours, theirs = os.pipe()
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                _help(work, self._claims, theirs, parent)
            os.close(theirs)
            os.set_blocking(ours, False)
            self._pids.append(pid)
            self._pipes[ours] = b""

    def taken(self) -> Iterator[tuple[int, float, int]]:
        """Episodes that were brought since. Looks now and then only: it may be asked at every step."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            for pipe in list(self._pipes):
                yield from self._read(pipe)

    def wait(self) -> bool:
        """Waits a little for something to take; False when all have ended."""
        if self._pipes:
            select.select(list(self._pipes), [], [], LOOK_S)
            self._look_at = 0.0
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
        whole = len(held) // _ENDED.size * _ENDED.size
        self._pipes[pipe] = held[whole:]
        yield from _ENDED.iter_unpack(held[:whole])

    def end(self) -> None:
        """Asks, then kills: an environment may be deep in a step of its own."""
        self._claims.stop()
        deadline = time.monotonic() + PATIENCE_S
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


def _help(work: Work, claims: Claims, pipe: int, parent: int) -> None:
    """Never returns: what stands behind the fork is the first process's to do."""
    look_at = 0.0

    def bring(episode: Episode) -> None:
        os.write(pipe, _ENDED.pack(episode.index, episode.episodic_return, episode.length))

    def goes_on() -> bool:
        nonlocal look_at
        if claims.is_stopped:
            return False
        if time.monotonic() < look_at:
            return True
        while time.monotonic() - claims.beaten_at > STALE_S and os.getppid() == parent and not claims.is_stopped:
            time.sleep(LOOK_S)
        look_at = time.monotonic() + LOOK_S
        return os.getppid() == parent and not claims.is_stopped

    try:
        with contextlib.suppress(OSError):
            os.nice(NICENESS)
        work(bring, goes_on)
        os._exit(0)
    finally:
        # Not a word of what went wrong: the first process plays the same episode and will meet it too.
        os._exit(1)
