"""Follows runs until their end, across restarts of the daemon, and handles Ctrl-C."""

from __future__ import annotations

import queue
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from mosaic.base import formatting
from mosaic.cli import output
from mosaic.cli.context import INTERRUPTED_EXIT_CODE, CliContext, Outage
from mosaic.cli.runs_table import RunsTable
from mosaic.contracts.errors import MosaicError, NoDaemon, NotAllowed, RunEnded
from mosaic.contracts.events import Anomaly, Event, ProgressReported, RecordChanged, Sample, WarningLogged
from mosaic.contracts.names import RETURN_TAG
from mosaic.contracts.views import HardwareSample, MetricsCursor, RunView
from mosaic.trainer.client.run_wait import InterruptCounter, poll_until_finished
from mosaic.trainer.client.trainer_client import MetricsUpdate

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from mosaic.trainer.client.trainer_client import TrainerClient

# --- Shows runs while they are active: a small live view, or a plain line every few seconds.


_MAX_POINTS = 512
_PLAIN_INTERVAL_S = 5.0
_STAGE_MESSAGES = {"queued": "waiting for a slot", "starting": "waiting for the worker"}
"""Shown while there is no progress yet."""


class DownsampledCurve:
    """A curve in a bounded number of points: when there are too many, only every second is kept."""

    def __init__(self) -> None:
        self.points: list[float] = []
        self._count = 0
        self._stride = 1

    def add(self, value: float) -> None:
        if self._count % self._stride == 0:
            self.points.append(value)
        self._count += 1
        if len(self.points) >= _MAX_POINTS:
            self.points = self.points[::2]
            self._stride *= 2


class LiveRunState:
    """The view of a run, updated by its events, and the curve of its returns."""

    def __init__(self, view: RunView, target_episodes: int | None = None) -> None:
        self.view = view
        self.target_episodes = target_episodes
        """For an evaluation, whose end is counted in episodes."""
        self.curve = DownsampledCurve()
        self.warnings: list[str] = []
        """Not yet shown."""
        self._episodes = 0
        self._recent_returns: deque[float] = deque(maxlen=output.EPISODES_IN_MEAN)
        # Views from before this start are outdated: a resumed run has finished before.
        self._queued_at: float = view.queued_at or 0.0

    @property
    def active_views(self) -> list[RunView]:
        return [] if self.view.stage == "finished" else [self.view]

    def apply_event(self, event: Event) -> None:
        """Events of other kinds are skipped."""
        match event:
            case RecordChanged():
                self.apply_view(event.view)
            case ProgressReported():
                self._update(
                    global_step=max(self.view.global_step or 0, event.global_step or 0),
                    sps=event.sps or self.view.sps,
                    fraction=event.fraction if "fraction" in event.model_fields_set else self.view.fraction,
                )
            case Sample():
                self._update(hardware=HardwareSample.model_validate(event.model_dump()))
            case WarningLogged(is_withdrawn=False):
                self.warnings.append(event.text)
            case Anomaly():
                self.warnings.append(f"{event.tag} is not finite at step {event.step:,}.")

    def apply_returns(self, update: MetricsUpdate) -> None:
        """Adds the returns of episodes; one that is not finite is NaN."""
        if update.is_reload:
            self._episodes = 0
            self.curve = DownsampledCurve()
            self._recent_returns.clear()
        for series in update.series:
            self._episodes += len(series.values)
            for episodic_return in series.values:
                self._recent_returns.append(episodic_return)
                if isfinite(episodic_return):
                    self.curve.add(self._mean_recent_return())
            self._update()

    def apply_view(self, view: RunView) -> None:
        if (view.queued_at or 0.0) >= self._queued_at:
            self.view = view
            self._update()

    def _update(self, **fields: Any) -> None:
        if self._recent_returns:
            fields |= {"episodes": self._episodes, "episodic_return": self._mean_recent_return()}
        view = self.view.model_copy(update=fields)
        self.view = view.model_copy(update={"seconds_left": view.estimate_seconds_left()})

    def _mean_recent_return(self) -> float:
        """NaN where none of the recent returns is finite."""
        finite = [value for value in self._recent_returns if isfinite(value)]
        return sum(finite) / len(finite) if finite else nan

    @property
    def invalid_returns_note(self) -> str:
        """` (3 of 100 not finite)`, or nothing."""
        bad = sum(not isfinite(value) for value in self._recent_returns)
        return f" ({bad} of {len(self._recent_returns)} not finite)" if bad else ""

    @property
    def progress_text(self) -> str:
        """`12,000 / 50,000`, in steps or in episodes."""
        view = self.view
        if self.target_episodes:
            return f"{view.episodes} / {self.target_episodes} episodes"
        if view.is_evaluation:
            return formatting.count_noun(view.episodes, "episode")
        return f"{formatting.format_count(view.global_step)} / {formatting.format_count(view.total_timesteps)}"

    @property
    def fraction_done(self) -> float | None:
        if self.view.is_evaluation and self.view.outcome != "succeeded":
            return min(1.0, self.view.episodes / self.target_episodes) if self.target_episodes else None
        return formatting.progress_fraction(self.view)


def format_log_line(view: RunView, returns_note: str = "") -> str:
    """One line for a log file."""
    line = f"{formatting.short_id(view.run_id)} {formatting.format_progress_line(view)}{returns_note}"
    if view.hardware is None or view.stage == "finished":
        return line
    return f"{line}, {formatting.format_hardware(view.hardware)}"


class LiveRunView:
    """The live view of one run; rich asks for it whenever it draws."""

    def __init__(self, state: LiveRunState) -> None:
        self.state = state
        self.hint = "Ctrl-C stops it." if state.view.is_evaluation else "Ctrl-C stops it with a checkpoint."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        state, view, fraction = self.state, self.state.view, self.state.fraction_done
        yield Text.assemble(*output.run_heading(view), ("  " + view.run_id, "dim"))
        without_fraction = view.wait_reason or _STAGE_MESSAGES.get(
            view.stage, state.progress_text if view.is_evaluation else ""
        )
        shown = view.checkpoint_wait or state.progress_text
        progress = f"{fraction:4.0%}  {shown}" if fraction is not None else without_fraction
        speed = f"{view.sps:,.0f} steps/s" if view.sps else ""
        left = f"{formatting.format_duration(view.seconds_left)} left" if view.seconds_left is not None else ""
        is_pulsing = fraction is None and view.stage != "finished"
        line = Table.grid(padding=(0, 2, 0, 0), expand=True)
        line.add_column(ratio=1, min_width=8)
        line.add_column(no_wrap=True)
        line.add_row(
            ProgressBar(total=1.0, completed=fraction or 0.0, pulse=is_pulsing, complete_style="cyan"),
            "   ".join(part for part in (progress, speed, left) if part),
        )
        yield line
        width = max(8, min(40, options.max_width - 60))
        yield Text.assemble(
            ("return ", "dim"),
            (formatting.format_number(view.episodic_return) + state.invalid_returns_note, "bold"),
            "  ",
            (output.sparkline(state.curve.points, width), "green"),
            "   ",
            (formatting.format_hardware(view.hardware) if view.hardware else "", "dim"),
        )
        yield Text(self.hint, style="dim", no_wrap=True, overflow="ellipsis")


class LiveGroupView:
    """The live view of several runs: the table, and what can be done."""

    def __init__(self, views: list[RunView]) -> None:
        self.views = views
        self.hint = "Ctrl-C stops all of them with a checkpoint."

    @property
    def active_views(self) -> list[RunView]:
        return [view for view in self.views if view.stage != "finished"]

    def apply_view(self, view: RunView) -> None:
        self.views = [view if view.run_id == shown.run_id else shown for shown in self.views]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        from rich.text import Text

        rows = max(3, options.size.height - 3)
        active = self.active_views
        yield RunsTable(self.views if len(self.views) <= rows else active[:rows])
        ended = len(self.views) - len(active)
        yield Text(f"{ended} of {len(self.views)} have ended. {self.hint}", style="dim")


class LiveDisplay:
    """Draws `renderable` in place, at the end of the terminal."""

    def __init__(self, renderable: LiveRunView | LiveGroupView) -> None:
        from rich.live import Live

        self._renderable = renderable
        console = output.console(is_stderr=True)
        self._live = Live(renderable, console=console, auto_refresh=False, transient=True, redirect_stdout=False)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def refresh(self) -> None:
        self._live.refresh()

    def print_message(self, message: str) -> None:
        self._live.console.print(message)

    def set_hint(self, message: str) -> None:
        self._renderable.hint = message


class PlainDisplay:
    """Prints a line per run: when its status changes, otherwise every few seconds."""

    def __init__(
        self, get_lines: Callable[[], list[tuple[str, str]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._get_lines = get_lines
        """Each run's status and its line."""
        self._clock = clock
        self._next_at = clock() + _PLAIN_INTERVAL_S
        self._last_statuses: list[str] = []

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def refresh(self) -> None:
        lines = self._get_lines()
        statuses = [status for status, _ in lines]
        is_due = self._clock() >= self._next_at
        for at, (status, line) in enumerate(lines):
            is_new = at >= len(self._last_statuses) or self._last_statuses[at] != status
            if is_new or (is_due and status not in output.OUTCOMES):
                output.print_message(line)
        if is_due or statuses != self._last_statuses:
            self._next_at = self._clock() + _PLAIN_INTERVAL_S
        self._last_statuses = statuses

    def print_message(self, message: str) -> None:
        output.print_message(message)

    set_hint = print_message


def create_display(shown: LiveRunState | LiveGroupView) -> LiveDisplay | PlainDisplay:
    if output.console(is_stderr=True).is_terminal:
        return LiveDisplay(shown if isinstance(shown, LiveGroupView) else LiveRunView(shown))
    if isinstance(shown, LiveGroupView):
        return PlainDisplay(lambda: [(view.status, format_log_line(view)) for view in shown.views])
    return PlainDisplay(lambda: [(shown.view.status, format_log_line(shown.view, shown.invalid_returns_note))])


# --- Follows runs until their end, across restarts of the daemon, and handles Ctrl-C.


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
