"""`mosaic export` and `mosaic import`: runs as files."""

from __future__ import annotations

import json
import os
import stat
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from mosaic.cli import output
from mosaic.cli.arguments import run_argument
from mosaic.cli.door import Door, command, pass_door
from mosaic.cli.reading import write_csv
from mosaic.contracts.errors import BadInput, NotAllowed

Json = dict[str, Any]
_FILE = click.Path(dir_okay=False)
_CHUNK_BYTES = 1 << 20


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
        with replacing(csv_file) as file, _as_text(file) as text:
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


@contextmanager
def replacing(path: str | Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is whole."""
    target = Path(path).absolute()
    part = target.with_name(f".{target.name}.part")
    try:
        with open(part, "wb") as file:
            yield file
        part.rename(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadInput(f"{path} cannot be written: {error.strerror or error}.") from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def _as_text(file: IO[bytes]) -> Iterator[IO[str]]:
    import io

    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    yield text
    text.flush()
    text.detach()


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


def pack(folder: Path, file: IO[bytes], advanced: Callable[[int], object] = lambda _: None) -> None:
    """The folder under its own name; links stay links."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in sorted(folder.rglob("*")):
            name = str(Path(folder.name) / path.relative_to(folder))
            if path.is_symlink():
                link = zipfile.ZipInfo(name, _zip_time(path))
                link.create_system = 3  # Unix: the upper half of external_attr is the file's mode
                link.external_attr = (stat.S_IFLNK | 0o777) << 16
                archive.writestr(link, os.readlink(path))
            elif path.is_dir():
                archive.mkdir(name)
            else:
                _pack_file(archive, path, name, advanced)


def _pack_file(archive: zipfile.ZipFile, path: Path, name: str, advanced: Callable[[int], object]) -> None:
    info = zipfile.ZipInfo(name, _zip_time(path))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = path.stat().st_mode << 16
    info.file_size = path.stat().st_size  # tells the writer whether 64-bit sizes are needed
    with open(path, "rb") as source, archive.open(info, "w") as packed:
        while chunk := source.read(_CHUNK_BYTES):
            packed.write(chunk)
            advanced(len(chunk))


def _zip_time(path: Path) -> tuple[int, int, int, int, int, int]:
    """Zip files know no time before 1980."""
    at = time.localtime(max(path.lstat().st_mtime, 315_619_200))
    return (at.tm_year, at.tm_mon, at.tm_mday, at.tm_hour, at.tm_min, at.tm_sec)


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
