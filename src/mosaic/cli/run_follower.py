"""Follows runs until their end, across restarts of the daemon, and handles Ctrl-C."""

from __future__ import annotations

import queue
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from mosaic import formatting
from mosaic.api.run_wait import InterruptCounter, poll_until_finished
from mosaic.cli import output
from mosaic.cli.cli_context import INTERRUPTED_EXIT_CODE, CliContext
from mosaic.cli.live_view import LiveDisplay, LiveGroupView, LiveRunState, PlainDisplay, create_display
from mosaic.cli.outage import Outage
from mosaic.client.trainer_client import MetricsUpdate
from mosaic.contracts.errors import MosaicError, NoDaemon, NotAllowed, RunEnded
from mosaic.contracts.metric_tags import RETURN_TAG
from mosaic.contracts.views import MetricsCursor

if TYPE_CHECKING:
    from mosaic.client import TrainerClient
    from mosaic.contracts.events import Event
    from mosaic.contracts.views import RunView

TICK_S = 0.1
POLL_S = 0.5
CANCEL_RETRY_S = 1.0
MAX_SILENCE_S = 5.0
"""After this long without an event, the daemon is asked for the run's state."""
FOLLOWED_EVENT_KINDS = ("record", "hello", "progress", "episodes", "sample", "warning", "anomaly")
"""What the live view shows."""
EXIT_CODES = {"succeeded": 0, "cancelled": INTERRUPTED_EXIT_CODE}


class RunEventStream:
    """Reads the events and returns of a run in a thread.

    When the daemon dies, another one is started, and the stream continues from its cursors.
    """

    def __init__(self, context: CliContext, run_id: str) -> None:
        self._context = context
        self._run_id = run_id
        self._cursor = 0
        self._returns_cursor = MetricsCursor()
        # Not a SimpleQueue: a signal can make its `get` ignore the timeout.
        self._items: queue.Queue[Event | MetricsUpdate | str | MosaicError] = queue.Queue()
        self._outage = Outage(context, _attach_command(run_id))
        self.is_connected = True
        self._closed = threading.Event()
        self._trainer: TrainerClient | None = None
        self._thread = threading.Thread(target=self._listen, name="watch", daemon=True)

    def __enter__(self) -> RunEventStream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        while self._thread.is_alive():  # it may just have opened another connection
            if self._trainer is not None:
                self._trainer.close()
            self._thread.join(0.05)

    def poll(self, timeout_s: float) -> list[Event | MetricsUpdate | str]:
        """Returns what is new, also sentences about the connection, waiting up to `timeout_s` for the first item."""
        items: list[Event | MetricsUpdate | str] = []
        with suppress(queue.Empty):
            item = self._items.get(timeout=timeout_s)
            while True:
                if isinstance(item, MosaicError):
                    raise item
                items.append(item)
                item = self._items.get_nowait()
        return items

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                self._trainer = self._context.connect()
                for batch in self._trainer.watch(self._cursor, self._run_id, FOLLOWED_EVENT_KINDS):
                    self._set_connected(self._outage.note_success())
                    if batch.runs_with_points:
                        self._read_returns(self._trainer)
                    for event in batch.events:
                        self._items.put(event)
                    self._cursor = batch.cursor
                error = NoDaemon("The daemon ended the watch.")
            except NoDaemon as broken:
                error = broken
            except MosaicError as refusal:
                self._items.put(refusal)
                return
            except ValueError:
                if self._closed.is_set():
                    return  # gRPC's error for a closed channel
                raise
            if self._trainer is not None:
                self._trainer.close()
            try:
                self.is_connected = False
                self._tell(self._outage.note_failure(error))
            except NoDaemon as final:
                self._items.put(final)
                return
            self._closed.wait(POLL_S)

    def _set_connected(self, message: str | None) -> None:
        self.is_connected = True
        self._tell(message)

    def _tell(self, message: str | None) -> None:
        if message:
            self._items.put(message)

    def _read_returns(self, trainer: TrainerClient) -> None:
        update = trainer.metrics_after(self._run_id, self._returns_cursor, [RETURN_TAG])
        self._items.put(update)
        self._returns_cursor = update.cursor


def submit_and_follow(
    context: CliContext,
    payload: Mapping[str, Any],
    target_episodes: int | None = None,
    environment: dict[str, str] | None = None,
    is_trusted: bool = False,
) -> RunView:
    """Starts a run and follows it. From the submission on, a Ctrl-C is for the run."""
    context.trainer()
    with InterruptCounter() as interrupts:
        view = context.submit(payload, environment, is_trusted, lambda: interrupts.count > 0)
        output.print_warnings(view)
        return _follow(context, view, interrupts, target_episodes)


def follow(context: CliContext, view: RunView, may_cancel: bool = True) -> RunView:
    """Shows the run until it has ended, and returns its last view; where detached, one that is not finished."""
    with InterruptCounter() as interrupts:
        return _follow(context, view, interrupts, may_cancel=may_cancel)


def _follow(
    context: CliContext,
    view: RunView,
    interrupts: InterruptCounter,
    target_episodes: int | None = None,
    may_cancel: bool = True,
) -> RunView:
    state = LiveRunState(view, target_episodes)
    with RunEventStream(context, view.run_id) as stream, create_display(state) as display:
        if not may_cancel:
            display.set_hint("Ctrl-C detaches.")
        heard_at = time.monotonic()

        def update() -> None:
            nonlocal heard_at
            items = stream.poll(TICK_S)
            for item in items:
                if isinstance(item, str):
                    display.print_message(item)
                elif isinstance(item, MetricsUpdate):
                    state.apply_returns(item)
                else:
                    state.apply_event(item)
            is_silent = not items and stream.is_connected and time.monotonic() - heard_at > MAX_SILENCE_S
            if is_silent:
                with suppress(*((NoDaemon,) if context.is_remote else ())):  # the stream reports it
                    state.apply_view(_read_view(context, view.run_id, retry_s=0.0))
            if items or is_silent:
                heard_at = time.monotonic()
            while state.warnings:
                display.print_message(f"Warning: {state.warnings.pop(0)}")

        _update_until_end(context, state, display, update, interrupts, may_cancel)
    # The daemon may have received further progress while it ended the run.
    return state.view if state.active_views else _read_view(context, view.run_id)


def follow_many(context: CliContext, views: list[RunView]) -> list[RunView]:
    """Shows the runs of a group, one line each, until all have ended or the user has detached."""
    group_view = LiveGroupView(views)
    group = views[0].group or ""
    next_at = 0.0
    outage = Outage(context, f"mosaic runs --group {shlex.quote(group)}")

    def update() -> None:
        nonlocal next_at
        if time.monotonic() >= next_at:
            try:
                found = context.call_with_reconnect(
                    lambda trainer: trainer.runs(group=group, include_archived=True), retry_s=0.0
                )
                message = outage.note_success()
            except NoDaemon as error:
                found, message = [], outage.note_failure(error)
            if message:
                display.print_message(message)
            for view in found:
                group_view.apply_view(view)
            next_at = time.monotonic() + POLL_S
        time.sleep(TICK_S)

    with InterruptCounter() as interrupts, create_display(group_view) as display:
        _update_until_end(context, group_view, display, update, interrupts)
    return group_view.views


def _update_until_end(
    context: CliContext,
    shown: LiveRunState | LiveGroupView,
    display: LiveDisplay | PlainDisplay,
    update: Callable[[], None],
    interrupts: InterruptCounter,
    may_cancel: bool = True,
) -> None:
    """Returns when all runs have ended or the user has detached: the first Ctrl-C cancels them, the second detaches."""
    handled = 0
    cancel_at: float | None = None
    while shown.active_views:
        display.refresh()
        update()
        if interrupts.count > handled:
            handled += 1
            if handled > 1 or not may_cancel:
                if cancel_at is not None:
                    display.print_message(
                        "The trainer was not reached, so nothing was stopped: what it runs continues."
                    )
                return
            cancel_at = time.monotonic()
        if cancel_at is not None and time.monotonic() >= cancel_at:
            try:
                for view in _cancel_runs(context, shown.active_views, display):
                    shown.apply_view(view)
                cancel_at = None
            except NoDaemon:
                if not context.is_remote:
                    raise
                cancel_at = time.monotonic() + CANCEL_RETRY_S
                display.set_hint("Stopping when the trainer can be reached again. Ctrl-C again: detach.")
    display.refresh()


def _cancel_runs(context: CliContext, views: list[RunView], display: LiveDisplay | PlainDisplay) -> list[RunView]:
    is_evaluation = all(view.is_evaluation for view in views)
    display.set_hint(f"{'Stopping' if is_evaluation else 'Stopping with a checkpoint'}. Ctrl-C again: detach.")
    display.refresh()
    stopping: list[RunView] = []
    for run_id in [view.run_id for view in views]:
        with suppress(NotAllowed):  # it has just ended by itself
            stopping.append(context.call_with_reconnect(lambda trainer, run_id=run_id: trainer.cancel_run(run_id), 0.0))  # type: ignore[misc]
    return stopping


def _read_view(context: CliContext, run_id: str, retry_s: float | None = None) -> RunView:
    return context.call_with_reconnect(lambda trainer: trainer.get_run(run_id), retry_s)


def _attach_command(run_id: str) -> str:
    return f"mosaic show -f {formatting.short_id(run_id)}"


def wait_for_end(context: CliContext, views: list[RunView]) -> list[RunView]:
    """Waits without a live view; prints that a run is still saving a checkpoint."""
    told: set[str] = set()

    def tell(view: RunView) -> None:
        if view.checkpoint_wait and view.run_id not in told:
            told.add(view.run_id)
            short = formatting.short_id(view.run_id)
            output.print_message(f"Run {short} is {view.checkpoint_wait}. End it at once: mosaic cancel {short}")

    return [poll_until_finished(partial(_read_view, context, view.run_id), show=tell) for view in views]


def exit_code(view: RunView) -> int:
    """The exit code of a command that waited for the run."""
    if view.stage != "finished":
        return INTERRUPTED_EXIT_CODE
    return EXIT_CODES.get(str(view.outcome), RunEnded.exit_code)


def report_end(context: CliContext, view: RunView) -> int:
    """Prints the closing summary, or the view as JSON, and returns the exit code."""
    short = formatting.short_id(view.run_id)
    if view.stage != "finished":
        attach = context.add_trainer_option(_attach_command(view.run_id))
        output.print_message(f"{describe_detached([view])} Attach again: {attach}")
    if context.is_json:
        output.print_json(view)
    if context.is_json or view.stage != "finished":
        return exit_code(view)
    output.print_run_heading(view)
    output.print_fields(end_summary_rows(view, context.describe_path(view.run_dir)), "  ")
    if view.can_resume():
        command = context.add_trainer_option(f"mosaic resume {short}")
        output.print_message(f"Resume from step {view.checkpoint_step:,}: {command}")
    return exit_code(view)


def describe_detached(views: Sequence[RunView]) -> str:
    """Return what happens to runs that are no longer followed."""
    left = [view for view in views if view.stage != "finished"]
    is_stopping = any(view.stage == "stopping" for view in left)
    if len(left) == 1:
        return f"Detached; run {formatting.short_id(left[0].run_id)} {'is stopping' if is_stopping else 'continues'}."
    return f"Detached; {len(left)} runs {'are stopping' if is_stopping else 'continue'}."


def end_summary_rows(view: RunView, folder: str) -> list[tuple[str, str | None]]:
    """What is worth printing of a run that has ended."""
    speed = f", {view.sps:,.0f} steps/s" if view.sps else ""
    step = view.global_step
    return [
        ("why", view.end_reason),
        ("return", output.describe_return(view)),
        ("steps", f"{step:,} in {formatting.format_duration(view.active_s)}{speed}" if step is not None else None),
        ("checkpoint", output.describe_checkpoint(view)),
        ("run", view.run_id),
        ("folder", folder),
    ]
