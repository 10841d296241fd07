"""Output of the command line: tables and messages for people, one line of JSON for programs.

Everything that a command prints goes through here, and what others wrote, such as a run's name, is escaped here.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from mosaic.base import formatting
from mosaic.cli import output
from mosaic.contracts.printable import make_printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

    from mosaic.contracts.setting_field import SettingField
    from mosaic.contracts.views import RunView

_BLOCKS = "▁▂▃▄▅▆▇█"
_UNLIMITED_WIDTH = 10_000

OUTCOMES = ("succeeded", "failed", "cancelled", "rejected", "lost")
OUTCOME_STYLES = {
    "succeeded": "green",
    "ended": "green",
    "failed": "red",
    "rejected": "red",
    "lost": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "starting": "cyan",
    "stalled": "yellow",
    "paused": "yellow",
    "stopping": "yellow",
    "queued": "dim",
}


EPISODES_IN_MEAN = 100
"""Episodes whose mean return is shown as the return of a run."""


def echo(text: str = "", is_bold: bool = False, has_newline: bool = True) -> None:
    """Prints text to stdout."""
    shown = make_printable(text)
    click.echo(click.style(shown, bold=True) if is_bold else shown, nl=has_newline)


def print_json(data: Any, indent: int | None = None) -> None:
    """Exactly one line on stdout, unless indented."""
    text = json.dumps(_to_plain(data), separators=(", ", ": ") if indent is None else None, indent=indent)
    click.echo(text.replace("\x7f", "\\u007f"))  # the one control character that `ensure_ascii` leaves


def _to_plain(data: Any) -> Any:
    """Models as dicts; JSON has no NaN."""
    if hasattr(data, "model_dump"):
        data = data.model_dump(mode="json", by_alias=True)
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _to_plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_to_plain(value) for value in data]
    return data


def print_message(message: str) -> None:
    """Prints a message to stderr; it is never part of the output."""
    click.echo(make_printable(message), err=True)


def confirm(question: str) -> None:
    """Asks on the terminal, and aborts the command unless the answer is yes."""
    click.confirm(make_printable(question), abort=True, err=True)


def ask_hidden(question: str, default: str | None = None) -> str:
    """Asks on the terminal, without showing what is typed."""
    answer = click.prompt(make_printable(question), default=default, hide_input=True, show_default=False, err=True)
    return str(answer).strip()


def print_warnings(*views: RunView) -> None:
    """Prints what the dry run of these runs warned about, each once."""
    for warning in dict.fromkeys(warning for view in views for warning in view.warnings):
        print_message(f"Warning: {warning}")


def console(is_stderr: bool = False) -> Console:
    """Fits the terminal; where there is none, lines are as long as they need to be. Escapes what others wrote."""
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        def render_str(self, text: str, **styling: Any) -> Text:
            return super().render_str(make_printable(text), **styling)  # before a table measures it

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(make_printable(segment.text), segment.style)

    stream = sys.stderr if is_stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else 500
    return PrintableConsole(stderr=is_stderr, width=width, highlight=False, markup=False, emoji=False)


def create_table(
    *columns: str, right_aligned: Sequence[str] = (), truncate: Sequence[str] = (), wrap: Sequence[str] = ()
) -> Table:
    """In a narrow terminal, columns in `truncate` lose their end and those in `wrap` take more lines; others stay."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in right_aligned else "left",
            no_wrap=column not in (*truncate, *wrap),
            overflow="fold" if column in wrap else "ellipsis",
        )
    return table


def fits_width(screen: Console, table: Table) -> bool:
    """Whether nothing of a table has to be cut or wrapped."""
    unlimited = screen.options.update(max_width=_UNLIMITED_WIDTH)  # a table is measured as no wider than its screen
    return screen.measure(table, options=unlimited).maximum <= screen.width


def print_fields(rows: Iterable[tuple[str, str | None]], indent: str = "") -> None:
    """Prints name and value, one per line, without empty values. Text is wrapped; paths are kept whole."""
    from rich.table import Table
    from rich.text import Text

    shown = [(indent + name, value) for name, value in rows if value]
    width = max((len(name) for name, _ in shown), default=0)
    screen = console()
    for name, value in shown:
        if "/" in value and " " not in value.rpartition("/")[2] and len(value) + width + 2 > screen.width:
            screen.print(Text.assemble((name.ljust(width) + "  ", "dim"), make_printable(value)), soft_wrap=True)
            continue
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column(style="dim", no_wrap=True, width=width)
        line.add_column(overflow="fold")
        line.add_row(name, value)
        screen.print(line)


def run_heading(view: RunView) -> tuple[tuple[str, str] | str, ...]:
    """The status of a run and what it does, for `Text.assemble`."""
    status = view.status
    style = f"bold {OUTCOME_STYLES.get(status, '')}"
    return (status.capitalize(), style), "  ", (make_printable(formatting.run_description(view)), "bold")


def print_run_heading(view: RunView) -> None:
    from rich.text import Text

    console().print(Text.assemble(*run_heading(view)))


def describe_return(view: RunView) -> str | None:
    """`482.1 (mean of the last 100 of 1,234 episodes)`."""
    if not view.episodes:
        return None
    episodes = formatting.count_noun(view.episodes, "episode")
    span = f"mean of the last {min(EPISODES_IN_MEAN, view.episodes)} of {episodes}"
    if view.cut_episodes:
        span += f", {view.cut_episodes:,} cut by reset"
    return f"{formatting.format_number(view.episodic_return)} ({span})"


def describe_checkpoint(view: RunView) -> str | None:
    return None if view.checkpoint_step is None else f"step {view.checkpoint_step:,}"


@contextmanager
def progress_bar(title: str, unit: str = "bytes") -> Iterator[Callable[..., None]]:
    """Shows a bar on a terminal; the function that it yields takes the units done, all of them, and a title."""
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn

    screen = console(is_stderr=True)
    counter = (DownloadColumn(),) if unit == "bytes" else (MofNCompleteColumn(), TextColumn(unit, markup=False))
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *counter)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task(title, total=None)

        def show(done: int, total: int, title: str = title) -> None:
            progress.update(task, description=title, completed=done, total=total or None)

        yield show


def sparkline(values: Sequence[float | None], width: int = 24, bounds: tuple[float, float] | None = None) -> str:
    """A curve in one line of text; each character is the mean of its part.

    `bounds` are the values of the lowest and the highest character; without them, those of the curve.
    """
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite or width < 1:
        return ""
    parts = min(width, len(finite))
    edges = [len(finite) * part // parts for part in range(parts + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = bounds or (min(means), max(means))
    if high == low:
        return _BLOCKS[3] * parts
    return "".join(_BLOCKS[max(0, min(7, int((mean - low) / (high - low) * 8)))] for mean in means)


def print_settings(title: str, settings: Sequence[SettingField]) -> None:
    """Print settings with their defaults, what they accept and what they do."""
    table = output.create_table(title, "DEFAULT", "VALUES", "WHAT IT DOES", wrap=("VALUES", "WHAT IT DOES"))
    for field in settings:
        default = formatting.PLACEHOLDER if field.default is None else json.dumps(field.default)
        table.add_row(field.name, default, field.expected_values, field.help)
    output.console().print(table)
