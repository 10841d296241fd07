"""The only way out of the GUI thread: one thread follows the daemon, a small pool answers one-shot calls.

Nothing here blocks the window, and nothing of Qt is touched outside the GUI thread: results come back as signals.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal
from shiboken6 import isValid

from mosaic.client import Trainer
from mosaic.client import connect as connect_here
from mosaic.contracts.errors import MosaicError, NoDaemon
from mosaic.contracts.folder import Workspace

Json = dict[str, Any]
Then = Callable[[Any], None]

DRAIN_MS = 100
POLL_S = 1.0
RETRY_S = (0.3, 0.6, 1.0, 2.0, 5.0)
ACTIVE = ("queued", "starting", "running", "paused", "stopping")


class Bridge(QObject):
    # `object`, not `list`: Qt would take a list apart and put it together again, a tenth of a second for a long one.
    connected = Signal(object)
    """The daemon's status, after the first connection and after each one that replaced a lost one."""
    lost = Signal(str)
    """Why there is no daemon; it is tried again by itself."""
    listed = Signal(object)
    """All runs, after a connection was made."""
    polled = Signal(object, object)
    """The views of the active runs, and the daemon's status, about once a second."""
    told = Signal(object)
    """New events, at most ten times a second."""

    _came = Signal(object)

    def __init__(self, workspace: Workspace, connect: Callable[[], Trainer] | None = None) -> None:
        """`connect`: how to reach a daemon that is not this workspace's own."""
        super().__init__()
        self.workspace = workspace
        self._connect = connect or functools.partial(connect_here, workspace)
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._end = threading.Event()
        self._nudge = threading.Event()
        """Set to try again at once."""
        self._is_resting = False
        """A trainer that was drained shall not be started again just because we look for it."""
        self._pool = ThreadPoolExecutor(6, thread_name_prefix="ask")
        self._early: list[Callable[[], None]] | None = []
        """What was asked while the window was being made; it waits for `start`."""
        self._trainer: Trainer | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._follow, name="bridge", daemon=True)
        self._poller = threading.Thread(target=self._poll, name="poll", daemon=True)
        self._timer = QTimer(self)
        self._timer.setInterval(DRAIN_MS)
        self._timer.timeout.connect(self._drain)
        self._again = QTimer(self, singleShot=True, interval=0)
        self._again.timeout.connect(self._drain)
        self._came.connect(lambda call: call())

    def start(self) -> None:
        self._thread.start()
        self._poller.start()
        self._timer.start()
        early, self._early = self._early or [], None
        for run in early:
            self._pool.submit(run)

    def stop(self) -> None:
        """Ends the threads; the daemon and its runs are not touched."""
        self._timer.stop()
        self._again.stop()
        self._end.set()
        self._nudge.set()
        with self._lock:
            trainer, self._trainer = self._trainer, None
        if trainer is not None:
            trainer.close()
        self._pool.shutdown(wait=True)  # a film or a picture that was asked for is still written
        for thread in (self._thread, self._poller):
            if thread.is_alive():
                thread.join(timeout=15)

    def rest(self) -> None:
        """No trainer is started when this one has ended, until `wake`."""
        self._is_resting = True

    def wake(self) -> None:
        self._is_resting = False
        self._nudge.set()

    @property
    def is_resting(self) -> bool:
        return self._is_resting

    # --- one-shot calls

    def ask(
        self,
        call: Callable[[Trainer], Any],
        then: Then | None = None,
        failed: Then | None = None,
        owner: QObject | None = None,
    ) -> None:
        """Runs `call(trainer)` elsewhere; `then(result)` or `failed(error)` follow in the GUI thread.

        Where `owner` is gone by then, nothing follows. Errors the user can act on come as MosaicError.
        """
        self.work(lambda: call(self._connection()), then, failed, owner)

    def work(
        self,
        call: Callable[[], Any],
        then: Then | None = None,
        failed: Then | None = None,
        owner: QObject | None = None,
    ) -> None:
        """The same for work that needs no daemon, such as writing a file."""

        def run() -> None:
            try:
                result = call()
            except Exception as error:
                self._answer(failed, error, owner)
            else:
                self._answer(then, result, owner)

        if self._early is not None:
            self._early.append(run)
        elif not self._end.is_set():
            self._pool.submit(run)

    def _answer(self, then: Then | None, value: Any, owner: QObject | None) -> None:
        if then is None or self._end.is_set():
            return

        def call() -> None:
            if owner is None or isValid(owner):
                then(value)

        self._came.emit(call)

    def _connection(self) -> Trainer:
        with self._lock:
            if self._trainer is None:
                if self._end.is_set():
                    raise NoDaemon("The window is closing.")
                if self._is_resting:
                    raise NoDaemon("The trainer was drained and starts nothing more. Start it again: Tools, Trainer.")
                self._trainer = self._connect()
            return self._trainer

    def _drop_connection(self) -> None:
        with self._lock:
            trainer, self._trainer = self._trainer, None
        if trainer is not None:
            trainer.close()

    # --- following

    def _follow(self) -> None:
        """Connects, lists, watches; and again when the daemon is lost."""
        cursor = -1
        tries = 0
        while not self._end.is_set():
            try:
                trainer = self._connection()
                status = trainer.status()
                batches = trainer.watch(cursor)
                first = next(batches)  # says where we stand before anything is listed, so that nothing is missed
                cursor = first.cursor
                self._inbox.put(("listed", trainer.runs(include_archived=True)))
                self._inbox.put(("connected", status))
                if first.events:  # what was said while we were away
                    self._inbox.put(("told", first.events))
                tries = 0
                for batch in batches:
                    if self._end.is_set():
                        return
                    cursor = batch.cursor
                    if batch.events:
                        self._inbox.put(("told", batch.events))
                raise MosaicError("The trainer ended.")
            except Exception as error:
                if self._end.is_set():
                    return
                self._drop_connection()
                self._inbox.put(("lost", str(error)))
                self._nudge.wait(RETRY_S[min(tries, len(RETRY_S) - 1)])
                if not self._end.is_set():
                    self._nudge.clear()
                tries += 1

    def _poll(self) -> None:
        """What changes all the time is asked for by the clock, so that its cost does not follow the runs' speed."""
        while not self._end.wait(POLL_S):
            with self._lock:
                trainer = self._trainer
            if trainer is None:
                continue
            try:
                began = time.monotonic()
                status = trainer.status()
                self._is_resting = self._is_resting or bool(status.get("is_draining"))
                self._inbox.put(("polled", (trainer.runs(status=ACTIVE), status)))
                self._end.wait(min(5.0, 4 * (time.monotonic() - began)))
            except (MosaicError, ValueError):  # gRPC's word for a channel that was closed meanwhile
                continue  # the follower tells of it

    def _drain(self) -> None:
        """Events together; anything else one at a time, with a turn of the event loop between two of them."""
        events: list[Json] = []
        while not self._inbox.empty():
            kind, value = self._inbox.get_nowait()
            if kind == "told":
                events += value
                continue
            if events:
                self.told.emit(events)
            if kind == "polled":
                self.polled.emit(*value)
            else:
                getattr(self, kind).emit(value)
            self._again.start()
            return
        if events:
            self.told.emit(events)
