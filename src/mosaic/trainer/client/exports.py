"""Runs as files for other programs: written to a temporary file and renamed, with progress, and cancellable."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from mosaic.base.files import atomic_write
from mosaic.base.formatting import run_title, short_id
from mosaic.contracts.errors import MosaicError, NotAllowed
from mosaic.contracts.folder import to_file_name
from mosaic.contracts.printable import csv_text
from mosaic.trainer.client.file_transfer import pack_run

if TYPE_CHECKING:
    from mosaic.contracts.views import MetricSeries, RunView
    from mosaic.trainer.client.trainer_client import RunFile, TrainerClient


CSV_COLUMNS = ("tag", "step", "at", "value")
_DESCRIBED = ("run_id", "group", "algo", "env_id", "seed", "tags", "experiment", "total_timesteps", "global_step")
"""What a JSON file states of each run."""


class ExportCancelled(MosaicError):
    """The user has cancelled the export."""


class ExportTask:
    """The progress of an export, which another thread may read and cancel."""

    def __init__(self, title: str, on_advance: Callable[[int, int], None] = lambda done, total: None) -> None:
        self.title = title
        self.done = 0
        self.total = 0
        """0: unknown."""
        self.is_cancelled = False
        self._on_advance = on_advance

    def advance(self, amount: int = 1) -> None:
        if self.is_cancelled:
            raise ExportCancelled("Nothing was written.")
        self.done += amount
        self._on_advance(self.done, self.total)


def export_zip(trainer: TrainerClient, view: RunView, path: Path, task: ExportTask) -> None:
    """Write the whole run folder."""
    _require_finished([view])
    files = trainer.files(view.run_id)
    task.total = sum(entry.size_bytes for entry in files)
    with atomic_write(path) as file:
        pack_run(trainer, view.run_id, files, file, task.advance)


class TransferResult(NamedTuple):
    """What became of several runs or files."""

    done: list[RunView]
    problems: list[str]
    """One sentence for each that failed."""
    is_cancelled: bool = False


def export_zips(trainer: TrainerClient, views: Sequence[RunView], folder: Path, task: ExportTask) -> TransferResult:
    """Write a zip for each run into a folder. Files that exist are not replaced; a run that fails ends no other."""
    done: list[RunView] = []
    problems: list[str] = []
    files: dict[str, list[RunFile]] = {}
    for view in views:
        with _noting_errors(view, problems):
            _require_finished([view])
            files[view.run_id] = trainer.files(view.run_id)
    task.total = sum(entry.size_bytes for entries in files.values() for entry in entries)
    try:
        for view in views:
            if view.run_id in files:
                with _noting_errors(view, problems), atomic_write(_unused_path(folder, export_stem(view))) as file:
                    task.advance(0)
                    pack_run(trainer, view.run_id, files[view.run_id], file, task.advance)
                    done.append(view)
    except ExportCancelled:
        return TransferResult(done, problems, is_cancelled=True)
    return TransferResult(done, problems)


@contextmanager
def _noting_errors(view: RunView, problems: list[str]) -> Iterator[None]:
    try:
        yield
    except ExportCancelled:
        raise
    except (MosaicError, OSError) as error:
        problems.append(f"{run_title(view)}: {error}")


def export_stem(view: RunView) -> str:
    """The name of a run's files, without their ending."""
    return to_file_name(f"{view.algo or view.worker}-{short_id(view.run_id)}")


def _unused_path(folder: Path, stem: str) -> Path:
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    return next(path for path in (folder / f"{name}.zip" for name in names) if not path.exists())


def export_zip_of_runs(trainer: TrainerClient, views: Sequence[RunView], path: Path, task: ExportTask) -> None:
    """Write a zip that contains the zip of each run."""
    _require_finished(views)
    files = {view.run_id: trainer.files(view.run_id) for view in views}
    task.total = sum(entry.size_bytes for entries in files.values() for entry in entries)
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for run_id, entries in files.items():
            with tempfile.TemporaryFile(dir=path.absolute().parent) as packed:
                pack_run(trainer, run_id, entries, packed, task.advance)
                packed.seek(0)
                with archive.open(f"{run_id}.zip", "w", force_zip64=True) as target:
                    shutil.copyfileobj(packed, target)


def _require_finished(views: Iterable[RunView]) -> None:
    for view in views:
        if view.stage != "finished":
            raise NotAllowed(
                f"Run {short_id(view.run_id)} is {view.stage}; its folder can be exported when it has ended."
            )


def export_csv(trainer: TrainerClient, view: RunView, path: Path, task: ExportTask) -> None:
    """Write every logged value."""
    with _open_text(path) as text:
        write_csv(_count_points(trainer, view.run_id, task), text)


def export_csv_of_runs(trainer: TrainerClient, views: Sequence[RunView], path: Path, task: ExportTask) -> None:
    """Write every logged value of all runs into one file, with the run's id first."""
    with _open_text(path) as text:
        write_group_csv({view.run_id: _count_points(trainer, view.run_id, task) for view in views}, text)


def export_json_of_runs(trainer: TrainerClient, views: Sequence[RunView], path: Path, task: ExportTask) -> None:
    """Write every logged value of all runs as one JSON array: what each run is, and its metrics by tag.

    A value that is not finite is null.
    """
    with _open_text(path) as text:
        for number, view in enumerate(views):
            series: dict[str, dict[str, list[Any]]] = {}
            for part in _count_points(trainer, view.run_id, task):
                columns = series.setdefault(part.tag, {"steps": [], "at": [], "values": []})
                columns["steps"].extend(part.steps)
                columns["at"].extend(part.at)
                columns["values"].extend(value if math.isfinite(value) else None for value in part.values)
            entry = {**view.model_dump(mode="json", include=set(_DESCRIBED)), "status": view.status, "metrics": series}
            text.write(("[" if number == 0 else ",\n") + json.dumps(entry))
        text.write("]\n")


@contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    with atomic_write(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        yield text
        text.detach()


def _count_points(trainer: TrainerClient, run_id: str, task: ExportTask) -> Iterator[MetricSeries]:
    for part in trainer.metrics(run_id):
        task.advance(len(part.steps))
        yield part


def write_csv(parts: Iterable[MetricSeries], stream: IO[str]) -> None:
    """Write one row per value: tag, step, at, value; numbers with all their digits."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    writer.writerows(_csv_rows(parts))


def write_group_csv(parts_by_run: Mapping[str, Iterable[MetricSeries]], stream: IO[str]) -> None:
    """Write the same of several runs, with the run's id first."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("run", *CSV_COLUMNS))
    for run_id, parts in parts_by_run.items():
        writer.writerows((csv_text(run_id), *row) for row in _csv_rows(parts))


def _csv_rows(parts: Iterable[MetricSeries]) -> Iterator[tuple[str, int, str, str]]:
    for part in parts:
        tag = csv_text(part.tag)
        for step, at, value in zip(part.steps, part.at, part.values, strict=True):
            yield tag, step, repr(at), repr(value)


def export_episodes(trainer: TrainerClient, view: RunView, path: Path, task: ExportTask) -> None:
    """Write every episode, one JSON object per line."""
    task.total = view.episodes or 0
    with atomic_write(path) as file:
        for episode in trainer.episodes(view.run_id):
            task.advance()
            file.write(episode.model_dump_json(by_alias=True).encode() + b"\n")
