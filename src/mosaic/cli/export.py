"""`mosaic export` and `mosaic import`: runs as files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.cli.run_arguments import run_argument
from mosaic.common.files import atomic_write
from mosaic.contracts.errors import BadInput, NotAllowed

if TYPE_CHECKING:
    from mosaic.client import TrainerClient
    from mosaic.contracts.views import RunView

_FILE_TYPE = click.Path(dir_okay=False)


@command()
@run_argument()
@click.option("--episodes", metavar="F.jsonl", type=_FILE_TYPE, help="Every episode, one JSON object per line.")
@click.option("--csv", "csv_file", metavar="F.csv", type=_FILE_TYPE, help="Every logged value: tag,step,at,value.")
@click.option("--png", metavar="F.png", type=_FILE_TYPE, help="The curve of its returns.")
@click.option("--zip", "zip_file", metavar="F.zip", type=_FILE_TYPE, help="The whole run, for another machine.")
@pass_context
def export(
    context: CliContext, run: str, episodes: str | None, csv_file: str | None, png: str | None, zip_file: str | None
) -> None:
    """Writes a run's episodes, metrics, curve or whole folder to a file."""
    if not any((episodes, csv_file, png, zip_file)):
        raise BadInput("Choose what to export: --episodes F.jsonl, --csv F.csv, --png F.png or --zip F.zip.")
    trainer = context.trainer()
    view = trainer.get(run)
    run_id = view.run_id
    written: list[str] = []

    def done(path: str) -> None:
        written.append(str(Path(path).absolute()))
        if not context.is_json:
            click.echo(f"Wrote {written[-1]} ({formatting.format_size(os.path.getsize(path))})")

    if episodes:
        with atomic_write(episodes) as file:
            for episode in trainer.episodes(run_id):
                file.write(episode.model_dump_json(by_alias=True).encode() + b"\n")
        done(episodes)
    if csv_file:
        from mosaic.client.metrics_csv import text_stream, write_csv

        with atomic_write(csv_file) as file, text_stream(file) as text:
            write_csv(trainer.metrics(run_id), text)
        done(csv_file)
    if png:
        from mosaic.cli.curve_plot import draw_curve

        with atomic_write(png) as file:
            draw_curve(view, list(trainer.episodes(run_id)), file)
        done(png)
    if zip_file:
        _write_zip(trainer, view, zip_file)
        done(zip_file)
    if context.is_json:
        output.print_json({"run_id": run_id, "files": written})


def _write_zip(trainer: TrainerClient, view: RunView, path: str) -> None:
    if view.stage != "finished":
        raise NotAllowed(
            f"Run {formatting.short_id(view.run_id)} is {view.stage}; its folder can be exported when it has ended."
        )
    from rich.progress import Progress

    from mosaic.client.file_transfer import pack_run

    files = trainer.files(view.run_id)
    console = output.console(is_stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    with bar as progress, atomic_write(path) as file:
        task = progress.add_task("Packing", total=sum(entry.size_bytes for entry in files))
        pack_run(trainer, view.run_id, files, file, lambda size_bytes: progress.advance(task, size_bytes))


@command("import")
@click.argument("file", metavar="F.zip", type=click.Path())
@pass_context
def import_(context: CliContext, file: str) -> None:
    """Takes in a run that was exported as a zip, or a run folder from the trash."""
    path = Path(file).absolute()
    if not path.exists():
        raise BadInput(f"{file} does not exist; expected a zip that `mosaic export --zip` made.")
    context.print_workspace()
    view = context.trainer().import_run(str(path))
    if context.is_json:
        output.print_json(view)
    else:
        click.echo(f"Run {view.run_id} is here now: {view.run_dir}")
