"""`mosaic export` and `mosaic import`: runs as files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.output import EPISODES_IN_MEAN
from mosaic.cli.parameters import find_runs, run_argument
from mosaic.common.files import atomic_write
from mosaic.contracts.errors import BadInput, MissingExtra, NotAllowed
from mosaic.contracts.printable import make_printable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mosaic.client import TrainerClient
    from mosaic.client.exports import ExportTask
    from mosaic.contracts.views import EpisodeRow, RunView

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
    from mosaic.api.figures import FORMATS, parse_format
    from mosaic.client import exports

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
    from mosaic.client.file_transfer import import_runs

    views = import_runs(context.trainer(), path)
    if context.is_json:
        output.print_json(views[0] if len(views) == 1 else views)
        return
    for view in views:
        output.echo(f"Imported run {view.run_id}: {view.run_dir}")


# --- the curve of returns


def save_curve(trainer: TrainerClient, view: RunView, path: Path, _: ExportTask | None = None) -> None:
    """Writes the curve of a run's returns as an image, whose name decides the format."""
    from mosaic.api.figures import parse_format

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
