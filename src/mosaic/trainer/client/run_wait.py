"""Waits for the end of a run and shows its progress."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from mosaic.base.formatting import format_progress_line, progress_fraction
from mosaic.contracts.printable import make_printable

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

POLL_S = 0.1
SLOW_POLL_S = 0.5
"""After the first seconds: a run that takes long is asked for less often."""
FAST_POLLS = 50
REPORT_PERCENT = 10
"""How often a line is printed where the output is a file."""

ShowProgress = Callable[["RunView"], None]


def poll_until_finished(
    read_view: Callable[[], RunView],
    timeout: float | None = None,
    show: ShowProgress | None = None,
    is_interrupted: Callable[[], bool] = lambda: False,
) -> RunView:
    """Return the run's last view. Raises TimeoutError after `timeout` seconds; the run continues."""
    deadline = None if timeout is None else time.monotonic() + timeout
    polls = 0
    while True:
        view = read_view()
        if show is not None:
            show(view)
        if view.stage == "finished":
            return view
        if is_interrupted():
            raise KeyboardInterrupt
        polls += 1
        pause_s = POLL_S if polls < FAST_POLLS else SLOW_POLL_S
        if deadline is not None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"Run {view.run_id} is still {view.status} after {timeout:g} s. It continues.")
            pause_s = min(pause_s, left_s)
        time.sleep(pause_s)


class InterruptCounter:
    """Counts Ctrl-C instead of raising KeyboardInterrupt, which can get lost inside gRPC's own code."""

    def __init__(self) -> None:
        self.count = 0
        self._previous_handler: Any = None

    def __enter__(self) -> InterruptCounter:
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGINT, self._on_sigint)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)

    def _on_sigint(self, _: int, __: FrameType | None) -> None:
        self.count += 1


@contextmanager
def open_progress() -> Iterator[ShowProgress]:
    """Yield a function that shows progress: a bar in a terminal, one line of text in a notebook or a file."""
    if sys.stderr.isatty() and not _is_notebook():
        with _open_terminal_bar() as show:
            yield show
    else:
        yield _TextProgress(is_rewritten=_is_notebook())


class _TextProgress:
    def __init__(self, is_rewritten: bool) -> None:
        self._is_rewritten = is_rewritten
        self._last = ""
        self._width = 0

    def __call__(self, view: RunView) -> None:
        line = make_printable(format_progress_line(view))
        share = int(100 * (progress_fraction(view) or 0.0)) // REPORT_PERCENT
        key = line if self._is_rewritten else f"{view.status} {share}"
        if key == self._last:
            return
        self._last = key
        if self._is_rewritten:
            end = "\n" if view.stage == "finished" else ""
            print("\r" + line.ljust(self._width), end=end, flush=True)
            self._width = len(line)
        else:
            print(line, file=sys.stderr, flush=True)


@contextmanager
def _open_terminal_bar() -> Iterator[ShowProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns: tuple[Any, ...] = (BarColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("queued", total=None)

        def show(view: RunView) -> None:
            completed = view.episodes if view.is_evaluation else view.global_step or 0
            total = None if view.is_evaluation else view.total_timesteps
            progress.update(
                task, description=make_printable(format_progress_line(view)), completed=completed, total=total
            )

        yield show


def _is_notebook() -> bool:
    return "ipykernel" in sys.modules
