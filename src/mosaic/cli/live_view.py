"""Shows a run while it is active: a small live view, or a plain line every few seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from math import isfinite, nan
from typing import TYPE_CHECKING, Any, Protocol

from mosaic.cli import output

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.live import Live

    from mosaic.client.trainer_client import MetricsUpdate

from mosaic import formatting
from mosaic.contracts.events import (
    Anomaly,
    CheckpointSaved,
    Event,
    ProgressReported,
    RecordChanged,
    Sample,
    WarningLogged,
)
from mosaic.contracts.views import HardwareSample, RunView

EPISODES_IN_MEAN = 100
_MAX_POINTS = 512
_PLAIN_INTERVAL_S = 5.0
_STAGE_MESSAGES = {"queued": "waiting for a slot", "starting": "waiting for the worker"}
"""Shown while there are no figures yet."""


class DownsampledCurve:
    """The course of a figure in a bounded number of points: when there are too many, neighbours are merged."""

    def __init__(self) -> None:
        self.points: list[float] = []
        self._span = 1
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        self._pending.append(value)
        if len(self._pending) < self._span:
            return
        self.points.append(sum(self._pending) / self._span)
        self._pending.clear()
        if len(self.points) >= _MAX_POINTS:
            self.points = [sum(self.points[at : at + 2]) / 2 for at in range(0, len(self.points) - 1, 2)]
            self._span *= 2


class LiveRunState:
    """The state of one run, from its events."""

    def __init__(self, view: RunView, target_episodes: int | None = None) -> None:
        self.view = view
        self.target_episodes = target_episodes
        """For an evaluation, whose end is counted in episodes."""
        self.step: int | None = view.global_step
        self.sps: float | None = view.sps
        self.hardware: HardwareSample | None = view.hardware
        self.checkpoint_step: int | None = view.checkpoint_step
        self.episodes = 0
        self.curve = DownsampledCurve()
        self.warnings: list[str] = []
        """Not yet shown."""
        self._recent_returns: deque[float] = deque(maxlen=EPISODES_IN_MEAN)
        # Views from before this start are outdated: a resumed run has finished before.
        self._queued_at: float = view.queued_at or 0.0

    def apply_event(self, event: Event) -> None:
        """Events of other kinds are skipped."""
        match event:
            case RecordChanged():
                self.apply_view(event.view)
            case ProgressReported():
                self.step = event.global_step
                self.sps = event.sps or self.sps
            case Sample():
                self.hardware = HardwareSample.model_validate(event.model_dump())
            case CheckpointSaved():
                self.checkpoint_step = event.step
            case WarningLogged():
                self.warnings.append(event.text)
            case Anomaly():
                self.warnings.append(f"{event.tag} is not finite at step {event.step:,}.")

    def apply_returns(self, update: MetricsUpdate) -> None:
        """Adds the returns of episodes; one that is not finite is NaN."""
        if update.is_reload:
            self.episodes = 0
            self.curve = DownsampledCurve()
            self._recent_returns.clear()
        for series in update.series:
            for step, episodic_return in zip(series.steps, series.values, strict=True):
                self.step = max(self.step or 0, step)
                self._recent_returns.append(episodic_return)
                self.episodes += 1
                if isfinite(episodic_return):
                    self.curve.add(self._mean_recent_return())

    def _mean_recent_return(self) -> float:
        """NaN where none of the recent returns is finite."""
        finite = [value for value in self._recent_returns if isfinite(value)]
        return sum(finite) / len(finite) if finite else nan

    def apply_view(self, view: RunView) -> None:
        if (view.queued_at or 0.0) >= self._queued_at:
            self.view = view

    @property
    def is_evaluation(self) -> bool:
        return self.view.is_evaluation

    @property
    def total_steps(self) -> int | None:
        """An evaluation takes as many steps as it takes."""
        return None if self.is_evaluation else self.view.total_timesteps

    @property
    def has_ended(self) -> bool:
        return bool(self.view.stage == "finished")

    @property
    def mean_return(self) -> float | None:
        """Of the recent episodes whose return is finite."""
        return self._mean_recent_return() if self._recent_returns else self.view.episodic_return

    @property
    def return_text(self) -> str:
        """`15`, or `15 (3 of 100 not finite)`."""
        bad = sum(not isfinite(value) for value in self._recent_returns)
        note = f" ({bad} of {len(self._recent_returns)} not finite)" if bad else ""
        return formatting.format_number(self.mean_return) + note

    @property
    def seconds_left(self) -> float | None:
        if self.view.stage != "running" or not self.sps or not self.total_steps or self.step is None:
            return None
        return max(0, self.total_steps - self.step) / self.sps

    @property
    def progress_text(self) -> str:
        """`12,000 / 50,000`, in steps or in episodes."""
        if self.target_episodes:
            return f"{self.episodes} / {self.target_episodes} episodes"
        if self.is_evaluation:
            return f"{self.episodes:,} episodes"
        return f"{formatting.format_count(self.step)} / {formatting.format_count(self.total_steps)}"

    @property
    def fraction_done(self) -> float | None:
        if self.view.outcome == "succeeded":
            return 1.0
        if self.target_episodes:
            return min(1.0, self.episodes / self.target_episodes)
        return min(1.0, self.step / self.total_steps) if self.step is not None and self.total_steps else None


def format_hardware(hardware: HardwareSample) -> str:
    words = [f"CPU {hardware.cpu_percent:.0f} %", f"RAM {hardware.rss_mb:,.0f} MB"]
    words += [f"GPU {gpu.util_percent:.0f} % {gpu.memory_used_mb:,.0f} MB" for gpu in hardware.gpus]
    return "   ".join(words)


def format_progress_line(state: LiveRunState) -> str:
    """One line for a log file."""
    view = state.view
    parts = [f"{formatting.short_id(view.run_id)} {view.status}"]
    if state.step is not None:
        share = f" ({state.fraction_done:.0%})" if state.fraction_done is not None else ""
        parts.append(f"step {state.step:,}{share}")
    if state.is_evaluation and state.episodes:
        parts.append(state.progress_text)
    if state.sps and not state.has_ended:
        parts.append(f"{state.sps:,.0f} steps/s")
    if state.seconds_left is not None:
        parts.append(f"{formatting.format_duration(state.seconds_left)} left")
    if state.mean_return is not None:
        parts.append(f"return {state.return_text}")
    if state.hardware and not state.has_ended:
        parts.append(format_hardware(state.hardware).replace("   ", " "))
    return ", ".join(parts)


class LiveRunView:
    """The live view of one run; rich asks for it whenever it draws."""

    def __init__(self, state: LiveRunState) -> None:
        self.state = state
        self.hint = "Ctrl-C stops it." if state.is_evaluation else "Ctrl-C stops it with a checkpoint."

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        watched, view = self.state, self.state.view
        word = view.status
        yield Text.assemble(
            (word, f"bold {output.OUTCOME_STYLES.get(word, '')}"),
            "  ",
            formatting.run_description(view),
            ("  " + view.run_id, "dim"),
        )
        share = watched.fraction_done
        without_share = _STAGE_MESSAGES.get(view.stage, watched.progress_text if watched.is_evaluation else "")
        figures = f"{share:4.0%}  {watched.progress_text}" if share is not None else without_share
        pace = f"{watched.sps:,.0f} steps/s" if watched.sps else ""
        left = f"{formatting.format_duration(watched.seconds_left)} left" if watched.seconds_left is not None else ""
        words = "   ".join(part for part in (figures, pace, left) if part)
        line = Table.grid(padding=(0, 2, 0, 0), expand=True)
        line.add_column(ratio=1, min_width=8)
        line.add_column(no_wrap=True)
        is_pulsing = share is None and not watched.has_ended
        line.add_row(
            ProgressBar(total=1.0, completed=share or 0.0, pulse=is_pulsing, complete_style="cyan"),
            words,
        )
        yield line
        room = max(8, min(40, options.max_width - 60))
        spark = output.sparkline(watched.curve.points, room)
        yield Text.assemble(
            ("return ", "dim"),
            (watched.return_text, "bold"),
            "  ",
            (spark, "green"),
            "   ",
            (format_hardware(watched.hardware) if watched.hardware else "", "dim"),
        )
        yield Text(self.hint, style="dim", no_wrap=True, overflow="ellipsis")


class ProgressDisplay(Protocol):
    """Shows the state of one or more active runs."""

    def refresh(self) -> None: ...
    def print_message(self, message: str) -> None: ...
    def set_hint(self, message: str) -> None: ...


class LiveDisplay:
    """Draws `renderable` in place, at the end of the terminal."""

    def __init__(self, renderable: Any) -> None:
        self._renderable = renderable
        self._console = output.console(is_stderr=True)
        self._live: Live | None = None

    def __enter__(self) -> LiveDisplay:
        from rich.live import Live

        self._live = Live(
            self._renderable, console=self._console, auto_refresh=False, transient=True, redirect_stdout=False
        )
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def refresh(self) -> None:
        if self._live is not None:
            self._live.refresh()

    def print_message(self, message: str) -> None:
        self._console.print(message)

    def set_hint(self, message: str) -> None:
        self._renderable.hint = message


class PlainDisplay:
    """Prints lines: when the status changes, otherwise every few seconds."""

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

    def set_hint(self, message: str) -> None:
        output.print_message(message)


def create_display(state: LiveRunState) -> LiveDisplay | PlainDisplay:
    if output.console(is_stderr=True).is_terminal:
        return LiveDisplay(LiveRunView(state))
    return PlainDisplay(lambda: [(state.view.status, format_progress_line(state))])
