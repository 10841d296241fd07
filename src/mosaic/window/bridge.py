"""Background work of the window: one thread follows the daemon, one polls it, a small pool runs one-shot calls.

Nothing here blocks the window, and Qt is used in the GUI thread only: results arrive as signals.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal
from shiboken6 import isValid

from mosaic.base.handshake import REMOTE_RETRY_S
from mosaic.contracts.errors import IdentityFailed, MosaicError, NoDaemon
from mosaic.contracts.events import Event
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.connect import RECONNECT_PAUSE_S
from mosaic.trainer.client.connect import connect as connect_here
from mosaic.trainer.client.trainer_client import TrainerClient

Callback = Callable[[Any], None]

DISPATCH_INTERVAL_MS = 100
POLL_INTERVAL_S = 1.0
CALL_THREADS = 6
MAX_PENDING = 1000
"""Batches of events that the window has not taken yet."""
RETRY_DELAYS_S = (0.3, 0.6, 1.0, 2.0, 5.0)
ACTIVE_STAGES = ("queued", "starting", "running", "paused", "stopping")


class Bridge(QObject):
    # `object`, not `list`: Qt would convert a list, which takes a tenth of a second for a long one.
    connected = Signal(object)
    """The daemon's status, after each connection."""
    connection_lost = Signal(str)
    """Why there is no daemon; the connection is retried automatically."""
    runs_listed = Signal(object)
    """All runs, after a connection was made."""
    status_polled = Signal(object, object)
    """The views of the active runs, and the daemon's status, about once a second."""
    events_received = Signal(object)
    """New events, at most ten times a second."""
    points_changed = Signal(object)
    """The ids of the runs whose points have changed, at most ten times a second."""

    _result_ready = Signal(object)

    def __init__(self, workspace: Workspace, connect: Callable[[], TrainerClient] | None = None) -> None:
        """`connect` connects to a daemon of another workspace."""
        super().__init__()
        self.workspace = workspace
        self._connect = connect or functools.partial(connect_here, workspace)
        self._pending_signals: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._stop_event = threading.Event()
        self._retry_now = threading.Event()
        """Set to try again at once."""
        self._is_suspended = False
        """Whether connecting must not start a trainer, because it was drained."""
        self._pool = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix="ask")
        self._calls_before_start: list[Callable[[], None]] | None = []
        """Calls made before `start`, which runs them."""
        self._trainer: TrainerClient | None = None
        self._lock = threading.Lock()
        self._watch_thread = threading.Thread(target=self._watch_loop, name="bridge", daemon=True)
        self._poll_thread = threading.Thread(target=self._poll_loop, name="poll", daemon=True)
        self._dispatch_timer = QTimer(self)
        self._dispatch_timer.setInterval(DISPATCH_INTERVAL_MS)
        self._dispatch_timer.timeout.connect(self._dispatch_pending)
        self._dispatch_again_timer = QTimer(self, singleShot=True, interval=0)
        self._dispatch_again_timer.timeout.connect(self._dispatch_pending)
        self._result_ready.connect(lambda call: call())

    def start(self) -> None:
        self._watch_thread.start()
        self._poll_thread.start()
        self._dispatch_timer.start()
        early, self._calls_before_start = self._calls_before_start or [], None
        for run in early:
            self._pool.submit(run)

    def stop(self) -> None:
        """Ends the threads; the daemon and its runs are not touched."""
        self._dispatch_timer.stop()
        self._dispatch_again_timer.stop()
        self._stop_event.set()
        self._retry_now.set()
        with self._lock:
            trainer, self._trainer = self._trainer, None
        if trainer is not None:
            trainer.close()
        self._pool.shutdown(wait=True)  # a requested video or image is still written
        for thread in (self._watch_thread, self._poll_thread):
            if thread.is_alive():
                thread.join(timeout=15)

    def suspend(self) -> None:
        """Starts no other trainer when this one has ended, until `resume`."""
        self._is_suspended = True

    def resume(self) -> None:
        self._is_suspended = False
        self._retry_now.set()

    @property
    def is_suspended(self) -> bool:
        return self._is_suspended

    # --- one-shot calls

    def ask(
        self,
        call: Callable[[TrainerClient], Any],
        then: Callback | None = None,
        failed: Callback | None = None,
        owner: QObject | None = None,
        is_repeatable: bool = False,
    ) -> None:
        """Runs `call(trainer)` in a thread, then `then(result)` or `failed(error)` in the GUI thread.

        Neither is called if `owner` was deleted meanwhile. Errors the user can act on are MosaicErrors. A call that
        `is_repeatable` is made again where the connection broke, for up to a minute.
        """
        make = self._call_repeatedly if is_repeatable else self._call_once
        self.run_in_background(lambda: make(call), then, failed, owner)

    def call_now(self, call: Callable[[TrainerClient], Any]) -> None:
        """Calls it at once and waits: what must be done before the window closes. Without a daemon, nothing."""
        with suppress(MosaicError):
            self._call_once(call)

    def _call_once(self, call: Callable[[TrainerClient], Any]) -> Any:
        return call(self._get_connection())

    def _call_repeatedly(self, call: Callable[[TrainerClient], Any]) -> Any:
        deadline = time.monotonic() + REMOTE_RETRY_S
        while True:
            try:
                return self._call_once(call)
            except (MosaicError, ValueError) as error:
                if not _is_connection_lost(error) or self._is_suspended or time.monotonic() > deadline:
                    raise
            if self._stop_event.wait(RECONNECT_PAUSE_S):
                raise NoDaemon("The window is closing.")

    def run_in_background(
        self,
        call: Callable[[], Any],
        then: Callback | None = None,
        failed: Callback | None = None,
        owner: QObject | None = None,
    ) -> None:
        """Like `ask`, for work without the daemon, such as writing a file."""

        def run() -> None:
            try:
                result = call()
            except Exception as error:
                self._deliver(failed, error, owner)
            else:
                self._deliver(then, result, owner)

        if self._calls_before_start is not None:
            self._calls_before_start.append(run)
        elif not self._stop_event.is_set():
            self._pool.submit(run)

    def _deliver(self, then: Callback | None, value: Any, owner: QObject | None) -> None:
        if then is None or self._stop_event.is_set():
            return

        def call() -> None:
            if owner is None or isValid(owner):
                then(value)

        self._result_ready.emit(call)

    def _get_connection(self) -> TrainerClient:
        with self._lock:
            if self._trainer is None:
                if self._stop_event.is_set():
                    raise NoDaemon("The window is closing.")
                if self._is_suspended:
                    raise NoDaemon("The trainer was drained and starts no more runs. Start it again: Tools, Trainer.")
                self._trainer = self._connect()
            return self._trainer

    def _drop_connection(self) -> None:
        with self._lock:
            trainer, self._trainer = self._trainer, None
        if trainer is not None:
            trainer.close()

    # --- following

    def _watch_loop(self) -> None:
        """Connects, lists and watches, again and again."""
        cursor = -1
        tries = 0
        while not self._stop_event.is_set():
            try:
                trainer = self._get_connection()
                status = trainer.get_status()
                batches = trainer.watch(cursor)
                first = next(batches, None)  # the cursor before the runs are listed, so that nothing is missed
                if first is None:
                    raise MosaicError("The trainer ended.")
                cursor = first.cursor
                self._pending_signals.put(("runs_listed", trainer.runs(include_archived=True)))
                self._pending_signals.put(("connected", status))
                if first.events:  # events since the last connection
                    self._pending_signals.put(("events_received", first.events))
                tries = 0
                for batch in batches:
                    while self._pending_signals.qsize() > MAX_PENDING and not self._stop_event.wait(POLL_INTERVAL_S):
                        pass  # the window has not taken what came before; gRPC makes the trainer wait, too
                    if self._stop_event.is_set():
                        return
                    cursor = batch.cursor
                    if batch.events:
                        self._pending_signals.put(("events_received", batch.events))
                    if batch.runs_with_points:
                        self._pending_signals.put(("points_changed", batch.runs_with_points))
                raise MosaicError("The trainer ended.")
            except Exception as error:
                if self._stop_event.is_set():
                    return
                self._drop_connection()
                self._pending_signals.put(("connection_lost", str(error)))
                self._retry_now.wait(RETRY_DELAYS_S[min(tries, len(RETRY_DELAYS_S) - 1)])
                if not self._stop_event.is_set():
                    self._retry_now.clear()
                tries += 1

    def _poll_loop(self) -> None:
        """Polls what changes all the time, so that the cost does not depend on the runs' speed."""
        while not self._stop_event.wait(POLL_INTERVAL_S):
            with self._lock:
                trainer = self._trainer
            if trainer is None:
                continue
            try:
                started_at = time.monotonic()
                status = trainer.get_status()
                self._is_suspended = self._is_suspended or status.is_draining
                self._pending_signals.put(("status_polled", (trainer.runs(status=ACTIVE_STAGES), status)))
                self._stop_event.wait(min(5.0, 4 * (time.monotonic() - started_at)))
            except (MosaicError, ValueError):  # gRPC raises ValueError for a channel that was closed meanwhile
                continue  # the watch loop reports it

    def _dispatch_pending(self) -> None:
        """Emits events together, and anything else one at a time with a turn of the event loop in between."""
        events: list[Event] = []
        runs_with_points: set[str] = set()
        while not self._pending_signals.empty():
            kind, value = self._pending_signals.get_nowait()
            if kind == "events_received":
                events += value
                continue
            if kind == "points_changed":
                runs_with_points |= value
                continue
            self._emit_news(events, runs_with_points)
            if kind == "status_polled":
                self.status_polled.emit(*value)
            else:
                getattr(self, kind).emit(value)
            self._dispatch_again_timer.start()
            return
        self._emit_news(events, runs_with_points)

    def _emit_news(self, events: list[Event], runs_with_points: set[str]) -> None:
        if events:
            self.events_received.emit(events)
        if runs_with_points:
            self.points_changed.emit(runs_with_points)


def _is_connection_lost(error: Exception) -> bool:
    """Whether the call may succeed with another connection. gRPC raises ValueError for one that was closed."""
    if isinstance(error, ValueError):
        return "closed channel" in str(error)
    reason = error.__cause__ if isinstance(error.__cause__, MosaicError) else error
    return isinstance(reason, NoDaemon) and not isinstance(reason, IdentityFailed)
