"""`mosaic export` and `mosaic import`: runs as files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from mosaic.cli import output
from mosaic.cli.arguments import run_argument
from mosaic.cli.door import Door, command, pass_door
from mosaic.contracts.errors import BadInput, NotAllowed
from mosaic.contracts.files import replacing
from mosaic.contracts.packing import pack

Json = dict[str, Any]
_FILE = click.Path(dir_okay=False)


@command()
@run_argument()
@click.option("--episodes", metavar="F.jsonl", type=_FILE, help="Every episode, one JSON object a line.")
@click.option("--csv", "csv_file", metavar="F.csv", type=_FILE, help="Every logged value: tag,step,at,value.")
@click.option("--png", metavar="F.png", type=_FILE, help="The curve of its returns.")
@click.option("--zip", "zip_file", metavar="F.zip", type=_FILE, help="The whole run, for another machine.")
@pass_door
def export(
    door: Door, run: str, episodes: str | None, csv_file: str | None, png: str | None, zip_file: str | None
) -> None:
    """Writes a run's episodes, metrics, curve or whole folder to a file."""
    if not any((episodes, csv_file, png, zip_file)):
        raise BadInput("Say what to export: --episodes F.jsonl, --csv F.csv, --png F.png or --zip F.zip.")
    trainer = door.trainer()
    view = trainer.get(run)
    run_id = view["run_id"]
    written: list[str] = []

    def done(path: str) -> None:
        written.append(str(Path(path).absolute()))
        if not door.is_json:
            click.echo(f"Wrote {written[-1]} ({output.size(os.path.getsize(path))})")

    if episodes:
        with replacing(episodes) as file:
            for episode in trainer.episodes(run_id):
                file.write(json.dumps(episode).encode() + b"\n")
        done(episodes)
    if csv_file:
        from mosaic.client.points import as_text, write_csv

        with replacing(csv_file) as file, as_text(file) as text:
            write_csv(trainer.metrics(run_id), text)
        done(csv_file)
    if png:
        from mosaic.cli.curve import draw_curve

        with replacing(png) as file:
            draw_curve(view, list(trainer.episodes(run_id)), file)
        done(png)
    if zip_file:
        _zip(view, zip_file)
        done(zip_file)
    if door.is_json:
        output.print_json({"run_id": run_id, "files": written})


def _zip(view: Json, path: str) -> None:
    if view["stage"] != "finished":
        raise NotAllowed(
            f"Run {output.short_id(view['run_id'])} is {view['stage']}; its folder can be exported when it has ended."
        )
    from rich.progress import Progress

    folder = Path(view["run_dir"])
    console = output.console(is_stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    with bar as progress, replacing(path) as file:
        task = progress.add_task("Packing", total=sum(one.lstat().st_size for one in folder.rglob("*")))
        pack(folder, file, lambda size_bytes: progress.advance(task, size_bytes))


@command("import")
@click.argument("file", metavar="F.zip", type=click.Path())
@pass_door
def import_(door: Door, file: str) -> None:
    """Takes in a run that was exported as a zip, or a run folder from the trash."""
    path = Path(file).absolute()
    if not path.exists():
        raise BadInput(f"{file} does not exist; expected a zip that `mosaic export --zip` made.")
    door.announce()
    view = door.trainer().import_run(str(path))
    if door.is_json:
        output.print_json(view)
    else:
        click.echo(f"Run {view['run_id']} is here now: {view['run_dir']}")
