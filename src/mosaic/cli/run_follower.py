"""Follows a run until its end, across restarts of the daemon, and handles Ctrl-C."""

from __future__ import annotations

import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from mosaic import formatting
from mosaic.api.run_wait import InterruptCounter
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext
from mosaic.cli.live_view import LiveRunState, ProgressDisplay, create_display
from mosaic.contracts.errors import MosaicError, NoDaemon, NotAllowed
from mosaic.contracts.metric_tags import RETURN_TAG

if TYPE_CHECKING:
    from mosaic.client import TrainerClient
    from mosaic.client.trainer_client import MetricsCursor, MetricsUpdate

if TYPE_CHECKING:
    from mosaic.contracts.events import Event
    from mosaic.contracts.views import RunView

Json = dict[str, Any]
TICK_S = 0.1
POLL_S = 0.5
MAX_SILENCE_S = 5.0
"""After this long without an event, the daemon is asked for the run's state."""
RECONNECT_TIMEOUT_S = 60.0
FOLLOWED_EVENT_KINDS = ("record", "hello", "progress", "episodes", "sample", "checkpoint", "warning", "anomaly")
"""What the live view shows."""
EXIT_CODES = {"succeeded": 0, "cancelled": 130}
FAILED_EXIT_CODE = 3
DETACHED_EXIT_CODE = 130


class RunEventStream:
    """The events and returns of one run. When the daemon dies, another is started and it continues from its cursors."""

    def __init__(self, context: CliContext, run_id: str) -> None:
        self._context = context
        self._run_id = run_id
        self._cursor = 0
        self._returns_cursor: MetricsCursor | None = None
        self._events: queue.Queue[Event | MetricsUpdate | MosaicError] = queue.Queue(maxsize=10_000)
        self._closed = threading.Event()
        self._trainer: TrainerClient | None = None
        self._thread = threading.Thread(target=self._listen, name="watch", daemon=True)

    def __enter__(self) -> RunEventStream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._trainer is not None:
            self._trainer.close()
        while self._thread.is_alive():
            self.poll(0.01)  # make room for a listener that is about to put
            self._thread.join(0.05)

    def poll(self, timeout_s: float) -> list[Event | MetricsUpdate]:
        """Returns what is new, waiting up to `timeout_s` for the first of it."""
        taken: list[Event | MetricsUpdate] = []
        try:
            item = self._events.get(timeout=timeout_s)
            while True:
                if isinstance(item, MosaicError):
                    if self._closed.is_set():
                        return taken
                    raise item
                taken.append(item)
                item = self._events.get_nowait()
        except queue.Empty:
            return taken

    def _listen(self) -> None:
        failing_since: float | None = None
        while not self._closed.is_set():
            try:
                if self._trainer is None:
                    self._trainer = self._context.connect()
                for batch in self._trainer.watch(self._cursor, self._run_id, FOLLOWED_EVENT_KINDS):
                    if batch.runs_with_points:
                        self._read_returns(self._trainer)
                    for event in batch.events:
                        self._events.put(event)
                    self._cursor = batch.cursor
                    failing_since = None
                    if self._closed.is_set():
                        return
                error: MosaicError = NoDaemon("The daemon ended the watch.")
            except NoDaemon as broken:
                error = broken
            except MosaicError as refused:
                self._events.put(refused)
                return
            except ValueError:
                if self._closed.is_set():
                    return  # gRPC's error for a closed channel
                raise
            if self._trainer is not None:
                self._trainer.close()
                self._trainer = None
            failing_since = failing_since or time.monotonic()
            if time.monotonic() - failing_since > RECONNECT_TIMEOUT_S:
                self._events.put(error)
                return
            self._closed.wait(POLL_S)

    def _read_returns(self, trainer: TrainerClient) -> None:
        from mosaic.client.trainer_client import MetricsCursor

        update = trainer.metrics_after(self._run_id, self._returns_cursor or MetricsCursor(), [RETURN_TAG])
        self._events.put(update)
        self._returns_cursor = update.cursor


def submit_and_follow(
    context: CliContext, payload: Json, target_episodes: int | None = None, environment: dict[str, str] | None = None
) -> RunView:
    """Starts a run and stays with it. From the submission on, a Ctrl-C is for the run."""
    trainer = context.trainer()
    with InterruptCounter() as interrupts:
        return _follow(context, trainer.submit(payload, environment), interrupts, target_episodes, may_cancel=True)


def follow(context: CliContext, view: RunView, may_cancel: bool = True) -> RunView:
    """Shows the run until it has ended, and returns its last view; where detached, one that is not finished."""
    with InterruptCounter() as interrupts:
        return _follow(context, view, interrupts, None, may_cancel)


def _follow(
    context: CliContext, view: RunView, interrupts: InterruptCounter, target_episodes: int | None, may_cancel: bool
) -> RunView:
    watched = LiveRunState(view, target_episodes)
    run_id = view.run_id
    heard_at = time.monotonic()
    obeyed = 0
    is_detached = False
    with RunEventStream(context, run_id) as feed, create_display(watched) as screen:
        if not may_cancel:
            screen.set_hint("Ctrl-C detaches.")
        while not watched.has_ended and not is_detached:
            screen.refresh()
            events = feed.poll(TICK_S)
            for event in events:
                if isinstance(event, tuple):
                    watched.apply_returns(event)
                else:
                    watched.apply_event(event)
            heard_at = time.monotonic() if events else heard_at
            if time.monotonic() - heard_at > MAX_SILENCE_S:
                watched.apply_view(context.call_with_reconnect(lambda trainer: trainer.get(run_id)))
                heard_at = time.monotonic()
            while watched.warnings:
                screen.print_message(f"Warning: {watched.warnings.pop(0)}")
            while obeyed < interrupts.count and not is_detached:
                obeyed += 1
                is_detached = obeyed > 1 or not may_cancel
                for stopping in [] if is_detached else _cancel_runs(context, [run_id], screen, watched.is_evaluation):
                    watched.apply_view(stopping)
        screen.refresh()
    # Progress that the daemon took in while it ended the run.
    return context.call_with_reconnect(lambda trainer: trainer.get(run_id)) if watched.has_ended else watched.view


def follow_many(context: CliContext, views: list[RunView]) -> list[RunView]:
    """Shows several runs, one line each, until all have ended or the user has detached."""
    from mosaic.cli.runs_commands import LiveGroupView, create_group_display

    picture = LiveGroupView(views)
    obeyed = 0
    is_detached = False
    next_at = 0.0
    with InterruptCounter() as interrupts, create_group_display(picture) as screen:
        while any(view.stage != "finished" for view in picture.views) and not is_detached:
            if time.monotonic() >= next_at:
                picture.views = _refresh_group(context, picture.views)
                next_at = time.monotonic() + POLL_S
                screen.refresh()
            time.sleep(TICK_S)
            while obeyed < interrupts.count and not is_detached:
                obeyed += 1
                is_detached = obeyed > 1
                if not is_detached:
                    _cancel_runs(context, [view.run_id for view in picture.views if view.stage != "finished"], screen)
        screen.refresh()
    return picture.views


def _refresh_group(context: CliContext, views: list[RunView]) -> list[RunView]:
    """One question for all of them."""
    group = views[0].group or ""
    found = context.call_with_reconnect(lambda trainer: trainer.runs(group=group, include_archived=True))
    by_id = {view.run_id: view for view in found}
    return [by_id.get(view.run_id, view) for view in views]


def _cancel_runs(
    context: CliContext, run_ids: list[str], display: ProgressDisplay, is_evaluation: bool = False
) -> list[RunView]:
    stopping: list[RunView] = []
    how = "Stopping" if is_evaluation else "Stopping with a checkpoint"
    display.set_hint(f"{how}. Ctrl-C again: detach.")
    display.refresh()
    for run_id in run_ids:
        try:
            stopping.append(context.call_with_reconnect(lambda trainer, run_id=run_id: trainer.cancel(run_id)))  # type: ignore[misc]
        except NotAllowed:
            continue  # it has just ended by itself
    return stopping


def wait_for_end(context: CliContext, views: list[RunView]) -> list[RunView]:
    """Waits without a live view."""
    from mosaic.api.run_wait import poll_until_finished

    def read_view(run_id: str) -> RunView:
        return context.call_with_reconnect(lambda trainer: trainer.get(run_id))

    return [poll_until_finished(partial(read_view, view.run_id)) for view in views]


def exit_code(view: RunView) -> int:
    """Of a command that waited for the run."""
    if view.stage != "finished":
        return DETACHED_EXIT_CODE
    return EXIT_CODES.get(str(view.outcome), FAILED_EXIT_CODE)


def report_end(context: CliContext, view: RunView) -> None:
    """The closing summary, or the view as JSON."""
    if context.is_json:
        output.print_json(view)
        return
    short = formatting.short_id(view.run_id)
    if view.stage != "finished":
        output.print_message(f"Detached from run {short}, which is {view.status}.")
        output.print_message(f"Attach again: mosaic show -f {short}")
        return
    from rich.text import Text

    word = view.status
    console = output.console()
    console.print(
        Text.assemble(
            (word.capitalize(), f"bold {output.OUTCOME_STYLES.get(word, '')}"), f"  {formatting.run_description(view)}"
        )
    )
    output.print_fields(end_summary_rows(view), "  ")
    is_told = "mosaic resume" in (view.reason or "")
    if word not in ("succeeded", "rejected") and view.checkpoint_step is not None and not is_told:
        output.print_message(f"Resume from step {view.checkpoint_step:,}: mosaic resume {short}")


def end_summary_rows(view: RunView) -> list[tuple[str, str | None]]:
    """What is worth saying of a run that has ended."""
    episodes = view.episodes or 0
    span = f"mean of the last {min(100, episodes)} of {episodes:,} episodes" if episodes else ""
    took = (view.finished_at or 0) - view.started_at if view.started_at else None
    pace = f", {view.sps:,.0f} steps/s" if view.sps else ""
    step = view.global_step
    return [
        ("why", view.reason if view.outcome != "succeeded" else None),
        ("return", f"{formatting.format_number(view.episodic_return)} ({span})" if episodes else None),
        ("steps", f"{step:,} in {formatting.format_duration(took)}{pace}" if step is not None else None),
        ("checkpoint", f"step {view.checkpoint_step:,}" if view.checkpoint_step is not None else None),
        ("run", view.run_id),
        ("folder", view.run_dir),
    ]
