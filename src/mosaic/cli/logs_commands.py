"""`mosaic logs` and `mosaic metrics`."""

from __future__ import annotations

import io
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.outage import Outage
from mosaic.cli.parameters import find_run, find_runs, run_argument
from mosaic.contracts.errors import BadInput, NoDaemon, UnknownName, unknown_name_error
from mosaic.contracts.printable import make_printable

RECONNECT_PAUSE_S = 0.5
MAX_LINE_CHARS = 4000
"""Characters of a line that are shown in a terminal."""


class Stream(NamedTuple):
    """Which log is meant."""

    is_stderr: bool
    is_both: bool

    @property
    def title(self) -> str:
        return "stdout and stderr" if self.is_both else "stderr" if self.is_stderr else "stdout"

    @property
    def flag(self) -> str:
        return " --both" if self.is_both else " --stderr" if self.is_stderr else ""


@command()
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Follow until the run has ended.")
@click.option("--stderr", "is_stderr", is_flag=True, help="What it wrote to stderr.")
@click.option("--both", "is_both", is_flag=True, help="Stdout and stderr, in the order of their writing.")
@click.option("-n", "--lines", metavar="N", type=click.IntRange(0), help="Show only the last N lines.")
@click.option("--search", "text", metavar="TEXT", help="Show only the lines that contain TEXT, with their numbers.")
@pass_context
def logs(
    context: CliContext, run: str, follow: bool, is_stderr: bool, is_both: bool, lines: int | None, text: str | None
) -> None:
    """Prints what a run wrote to its console: the exact bytes, or made readable where they go to a terminal."""
    if follow and context.is_json:
        raise BadInput("--follow and --json cannot both be given.")
    if is_stderr and is_both:
        raise BadInput("--stderr and --both cannot both be given.")
    if text is not None and (follow or lines is not None):
        raise BadInput("--search shows matches of the whole log, without --follow and --lines.")
    trainer = context.trainer()
    run_id = find_run(context, run).run_id
    stream = Stream(is_stderr, is_both)
    if text is not None:
        _search(context, run_id, stream, text)
        return
    offset = 0
    if lines is not None or context.is_json:
        chunks = list(trainer.log(run_id, is_stderr, is_both=is_both))
        data = last_lines(b"".join(chunk.data for chunk in chunks), lines)
        offset = chunks[-1].offset if chunks else 0
        if context.is_json:
            output.print_json({"run_id": run_id, "stream": stream.title, "text": data.decode(errors="replace")})
            return
        size = write_log([data])
        if follow:
            size += write_log(follow_log(context, run_id, stream, offset))
    elif follow:
        size = write_log(follow_log(context, run_id, stream))
    else:
        size = write_log(chunk.data for chunk in trainer.log(run_id, is_stderr, is_both=is_both))
    if size == 0:
        other = f" Its other stream: mosaic logs --stderr {formatting.short_id(run_id)}" if not stream.flag else ""
        output.print_message(f"Run {formatting.short_id(run_id)} wrote nothing to {stream.title}.{other}")


def _search(context: CliContext, run_id: str, stream: Stream, text: str) -> None:
    """Prints `12:the line`, as grep does; of both streams with their names."""
    found = context.trainer().search_log(run_id, text, *stream)
    names = {False: "stdout", True: "stderr"}
    if context.is_json:
        rows = [{"line": row.line, "stream": names[row.is_stderr], "text": row.text} for row in found.lines]
        output.print_json({"run_id": run_id, "matches": rows, "is_limited": found.is_limited})
        return
    prefix = {is_stderr: f"{name}:" if stream.is_both else "" for is_stderr, name in names.items()}
    write_log(f"{prefix[row.is_stderr]}{row.line}:{row.text}\n".encode() for row in found.lines)
    if found.is_limited:
        output.print_message(f"Only the first {len(found.lines):,} matches are shown.")
    if not found.lines:
        output.print_message(f"No line of {stream.title} contains {text!r}.")


def follow_log(context: CliContext, run_id: str, stream: Stream, offset: int = 0) -> Iterator[bytes]:
    """Yields what is written from `offset` on until the run has ended; a broken connection continues where it was."""
    outage = Outage(context, f"mosaic logs -f{stream.flag} {formatting.short_id(run_id)}")
    while True:
        try:
            trainer = context.trainer()
            if (message := outage.note_success()) is not None:
                output.print_message(message)
            for chunk in trainer.log(run_id, stream.is_stderr, offset, follow=True, is_both=stream.is_both):
                offset = chunk.offset
                yield chunk.data
            if trainer.get_run(run_id).stage == "finished":
                return
            error = NoDaemon("The daemon has ended.")
        except NoDaemon as broken:
            error = broken
        context.drop_connection()
        if (message := outage.note_failure(error)) is not None:
            output.print_message(message)
        time.sleep(RECONNECT_PAUSE_S)


def last_lines(data: bytes, lines: int | None) -> bytes:
    return data if lines is None else b"".join(deque(io.BytesIO(data), maxlen=lines))


def write_log(chunks: Iterable[bytes]) -> int:
    """Writes them to stdout and returns how many bytes the log had."""
    size = 0

    def counted() -> Iterator[bytes]:
        nonlocal size
        for chunk in chunks:
            size += len(chunk)
            yield chunk

    stream = sys.stdout.buffer
    for chunk in sanitize_for_terminal(counted()) if sys.stdout.isatty() else counted():
        stream.write(chunk)
        stream.flush()
    return size


def sanitize_for_terminal(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cuts long lines, replaces invalid text, and removes control sequences."""
    column = 0
    for chunk in chunks:
        shown: list[str] = []
        for char in chunk.decode(errors="replace"):
            if char in "\n\r":
                column = 0
                shown.append(char)
                continue
            column += 1
            if column <= MAX_LINE_CHARS:
                shown.append(make_printable(char))
            elif column == MAX_LINE_CHARS + 1:
                shown.append(" … (cut)")
        yield "".join(shown).encode()


# --- metrics


@command()
@run_argument(metavar="RUN|GROUP")
@click.option("--tag", "tags", multiple=True, help="Only this metric; can be given several times.")
@click.option(
    "--csv", "is_csv", is_flag=True, help="One row for each logged value: tag,step,at,value; of a group, run first."
)
@pass_context
def metrics(context: CliContext, run: str, tags: tuple[str, ...], is_csv: bool) -> None:
    """Prints the metrics of a run, or of each run of a group."""
    run_ids = [view.run_id for view in find_runs(context, [run])]
    if is_csv and not context.is_json:
        from mosaic.client.exports import write_csv, write_group_csv

        trainer = context.trainer()
        if len(run_ids) == 1:
            write_csv(trainer.metrics(run_ids[0], tags), sys.stdout)
        else:
            write_group_csv({run_id: trainer.metrics(run_id, tags) for run_id in run_ids}, sys.stdout)
        return
    points = {run_id: _read_points(context, run_id, tags) for run_id in run_ids}
    if not all(any(tag in series for series in points.values()) for tag in tags):
        raise _unknown_tag_error(context, points, tags)
    if context.is_json:
        shown = [{"run_id": run_id, "series": series} for run_id, series in points.items()]
        output.print_json(shown[0] if len(shown) == 1 else shown)
        return
    for run_id, points_by_tag in points.items():
        if len(points) > 1:
            output.echo(f"Run {run_id}", is_bold=True)
        _print_points(run_id, points_by_tag)


Points = dict[str, list[tuple[int, float, float]]]
"""By tag: step, time and value of each point."""


def _read_points(context: CliContext, run_id: str, tags: tuple[str, ...]) -> Points:
    trainer = context.trainer()
    points_by_tag: Points = {}
    for part in trainer.metrics(run_id, tags):
        points_by_tag.setdefault(part.tag, []).extend(zip(part.steps, part.at, part.values, strict=True))
    return points_by_tag


def _unknown_tag_error(context: CliContext, points: Mapping[str, Points], tags: tuple[str, ...]) -> UnknownName:
    known = {series.tag for run_id in points for series in context.trainer().metrics(run_id, last_only=True)}
    missing = next(tag for tag in tags if not any(tag in series for series in points.values()))
    where = f"run {formatting.short_id(next(iter(points)))}" if len(points) == 1 else "these runs"
    return unknown_name_error("metric", missing, known, where)


def _print_points(run_id: str, points_by_tag: Points) -> None:
    if not points_by_tag:
        output.print_message(f"Run {formatting.short_id(run_id)} has logged no metrics yet.")
        return
    table = output.create_table("METRIC", "LAST", "STEP", "VALUES", "COURSE", right_aligned=("LAST", "STEP", "VALUES"))
    for tag, points in sorted(points_by_tag.items()):
        step, _, value = points[-1]
        course = output.sparkline([point[2] for point in points])
        table.add_row(tag, formatting.format_number(value), f"{step:,}", f"{len(points):,}", course)
    output.console().print(table)
