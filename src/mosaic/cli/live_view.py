"""Shows runs while they are active: a small live view, or a plain line every few seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.runs_commands import RunsTable
from mosaic.contracts.events import Anomaly, Event, ProgressReported, RecordChanged, Sample, WarningLogged
from mosaic.contracts.views import HardwareSample, RunView

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

    from mosaic.client.trainer_client import MetricsUpdate

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
