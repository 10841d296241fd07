"""`mosaic export` and `mosaic import`: runs as files."""

from __future__ import annotations

import io
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import click

from mosaic.base import formatting
from mosaic.base.files import atomic_write
from mosaic.cli import output
from mosaic.cli.context import CliContext, Outage, command, pass_context
from mosaic.cli.output import EPISODES_IN_MEAN
from mosaic.cli.parameters import find_run, find_runs, run_argument
from mosaic.contracts.errors import BadInput, MissingExtra, NoDaemon, NotAllowed, UnknownName, unknown_name_error
from mosaic.contracts.printable import make_printable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mosaic.contracts.views import EpisodeRow, RunView
    from mosaic.trainer.client.exports import ExportTask
    from mosaic.trainer.client.trainer_client import TrainerClient

_FILE_TYPE = click.Path(dir_okay=False, path_type=Path)
_LINE_COLOR = "#1f4e79"


@command()
@run_argument(metavar="RUN|GROUP")
@click.option("--episodes", metavar="F.jsonl", type=_FILE_TYPE, help="Every episode, one JSON object per line.")
@click.option(
    "--csv",
    "csv_file",
    metavar="F.csv",
    type=_FILE_TYPE,
    help="Every logged value: tag,step,at,value; of a group, run first.",
)
@click.option(
    "--metrics", "json_file", metavar="F.json", type=_FILE_TYPE, help="The same as JSON, with what each run is."
)
@click.option("--png", metavar="F.png", type=_FILE_TYPE, help="The curve of its returns.")
@click.option("--pdf", metavar="F.pdf", type=_FILE_TYPE, help="The same for print.")
@click.option("--svg", metavar="F.svg", type=_FILE_TYPE, help="The same to be edited.")
@click.option("--zip", "zip_file", metavar="F.zip", type=_FILE_TYPE, help="The whole run, for another machine.")
@pass_context
def export(context: CliContext, /, run: str, **paths: Path | None) -> None:
    """Writes a run's episodes, metrics, curve or whole folder to a file.

    For a group, --csv, --metrics and --zip write one file with all runs; the others one for each: F.png becomes
    F-RUN.png.
    """
    chosen = {kind: path for kind, path in paths.items() if path is not None}
    if not chosen:
        raise BadInput(
            "Choose what to export: --episodes F.jsonl, --csv F.csv, --metrics F.json, --png F.png, --pdf F.pdf, "
            "--svg F.svg or --zip F.zip."
        )
    from mosaic.features.experiments.core_figures import FORMATS, parse_format
    from mosaic.trainer.client import exports

    for kind in chosen:
        if kind in FORMATS:
            parse_format(chosen[kind], kind)
    fits = (lambda view: view.stage == "finished") if "zip_file" in chosen else None
    views = find_runs(context, [run], fits)
    for_one: dict[str, Callable[[TrainerClient, RunView, Path, ExportTask], None]] = {
        "episodes": exports.export_episodes,
        **dict.fromkeys(FORMATS, save_curve),
    }
    for_all: dict[str, Callable[[TrainerClient, Sequence[RunView], Path, ExportTask], None]] = {
        "json_file": exports.export_json_of_runs,
        "csv_file": exports.export_csv_of_runs,
        "zip_file": exports.export_zip_of_runs,
    }
    if len(views) == 1:
        for_one |= {"csv_file": exports.export_csv, "zip_file": exports.export_zip}
    trainer = context.trainer()
    short = formatting.short_ids([view.run_id for view in views])
    written: dict[str, list[str]] = {view.run_id: [] for view in views}
    for kind, chosen_path in chosen.items():
        with output.progress_bar("Packing") as show_bytes:
            show = show_bytes if kind == "zip_file" else lambda *_: None
            if kind not in for_one:
                for_all[kind](trainer, views, chosen_path, exports.ExportTask(chosen_path.name, show))
                _report(context, written, views, chosen_path)
                continue
            for view in _with_curve(views) if kind in FORMATS else views:
                name = chosen_path.stem if len(views) == 1 else f"{chosen_path.stem}-{short[view.run_id]}"
                path = chosen_path.with_stem(name)
                for_one[kind](trainer, view, path, exports.ExportTask(path.name, show))
                _report(context, written, [view], path)
    if context.is_json:
        entries = [{"run_id": run_id, "files": files} for run_id, files in written.items()]
        output.print_json(entries[0] if len(entries) == 1 else entries)


def _with_curve(views: Sequence[RunView]) -> Sequence[RunView]:
    """Return the runs that have a curve; if none has, all of them, of which the first is refused."""
    drawn = [view for view in views if view.episodes]
    if drawn and len(drawn) < len(views):
        ids = ", ".join(formatting.short_id(view.run_id) for view in views if not view.episodes)
        output.print_message(f"Not drawn, as no episode has ended: {ids}.")
    return drawn or views


def _report(context: CliContext, written: dict[str, list[str]], views: Sequence[RunView], path: Path) -> None:
    for view in views:
        written[view.run_id].append(str(path.absolute()))
    if not context.is_json:
        output.echo(f"Wrote {path.absolute()} ({formatting.format_size(os.path.getsize(path))})")


@command("import")
@click.argument("file", metavar="F.zip", type=click.Path())
@pass_context
def import_(context: CliContext, file: str) -> None:
    """Imports the runs in a zip that `mosaic export --zip` made, or a run folder from the trash."""
    context.require_local()
    path = Path(file).absolute()
    if not path.exists():
        raise BadInput(f"{file} does not exist; expected a zip that `mosaic export --zip` made.")
    context.print_workspace()
    from mosaic.trainer.client.file_transfer import import_runs

    views = import_runs(context.trainer(), path)
    if context.is_json:
        output.print_json(views[0] if len(views) == 1 else views)
        return
    for view in views:
        output.echo(f"Imported run {view.run_id}: {view.run_dir}")


# --- the curve of returns


def save_curve(trainer: TrainerClient, view: RunView, path: Path, _: ExportTask | None = None) -> None:
    """Writes the curve of a run's returns as an image, whose name decides the format."""
    from mosaic.features.experiments.core_figures import parse_format

    with atomic_write(path) as file:
        _draw_curve(view, list(trainer.episodes(view.run_id)), file, parse_format(path))


def _draw_curve(view: RunView, episodes: list[EpisodeRow], file: IO[bytes], image_format: str) -> None:
    """Draws each episode as a dot, the mean of the last 100 as a line."""
    if not episodes:
        raise NotAllowed(
            f"Run {formatting.short_id(view.run_id)} has finished no episode yet: there is nothing to draw."
        )
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ModuleNotFoundError:
        raise MissingExtra("A curve needs matplotlib: pip install 'mosaic-rl[plot]'.") from None
    import numpy as np

    steps = [episode.step for episode in episodes]
    returns = np.array([episode.episodic_return for episode in episodes], np.float64)
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    size = 9 if len(steps) < 500 else 4
    axes.scatter(
        steps, returns, s=size, color=_LINE_COLOR, alpha=0.22, linewidths=0, label="one episode", rasterized=True
    )
    label = f"mean of the last {EPISODES_IN_MEAN}"
    axes.plot(steps, running_mean(returns), color=_LINE_COLOR, linewidth=2, label=label)
    title = make_printable(f"{view.algo} on {view.env_id}, seed {view.seed}")
    axes.set_title(title, loc="left", fontweight="bold", parse_math=False, usetex=False)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("episodic return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(0, max(steps))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    figure.text(0.995, 0.005, view.run_id, ha="right", va="bottom", fontsize=6, color="grey")
    figure.savefig(file, format=image_format)


def running_mean(values: npt.ArrayLike, window: int = EPISODES_IN_MEAN) -> npt.NDArray[np.float64]:
    """The mean of the last `window` values at each of them; values that are not finite do not count."""
    import numpy as np

    is_finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(is_finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(is_finite)])
    first = np.maximum(np.arange(1, len(sums)) - window, 0)
    number = (counts[1:] - counts[first]).astype(np.float64)
    number[number == 0] = np.nan
    means: npt.NDArray[np.float64] = (sums[1:] - sums[first]) / number
    return means


# --- `mosaic logs` and `mosaic metrics`.


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
        from mosaic.trainer.client.exports import write_csv, write_group_csv

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
