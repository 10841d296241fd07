"""Runs as files for other programs: written to a temporary file and renamed, with progress, and cancellable."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mosaic.client.file_transfer import pack_run
from mosaic.common.files import atomic_write
from mosaic.contracts.errors import MosaicError, NotAllowed
from mosaic.formatting import short_id

if TYPE_CHECKING:
    from mosaic.client.trainer_client import TrainerClient
    from mosaic.contracts.views import MetricSeries, RunView


CSV_COLUMNS = ("tag", "step", "at", "value")


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
    if view.stage != "finished":
        raise NotAllowed(f"Run {short_id(view.run_id)} is {view.stage}; its folder can be exported when it has ended.")
    files = trainer.files(view.run_id)
    task.total = sum(entry.size_bytes for entry in files)
    with atomic_write(path) as file:
        pack_run(trainer, view.run_id, files, file, task.advance)


def export_csv(trainer: TrainerClient, view: RunView, path: Path, task: ExportTask) -> None:
    """Write every logged value."""

    def count_points() -> Iterator[MetricSeries]:
        for part in trainer.metrics(view.run_id):
            task.advance(len(part.steps))
            yield part

    with atomic_write(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        write_csv(count_points(), text)
        text.detach()


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
        writer.writerows((run_id, *row) for row in _csv_rows(parts))


def _csv_rows(parts: Iterable[MetricSeries]) -> Iterator[tuple[str, int, str, str]]:
    for part in parts:
        for step, at, value in zip(part.steps, part.at, part.values, strict=True):
            yield part.tag, step, repr(at), repr(value)


def export_episodes(trainer: TrainerClient, view: RunView, path: Path, task: ExportTask) -> None:
    """Write every episode, one JSON object per line."""
    task.total = view.episodes or 0
    with atomic_write(path) as file:
        for episode in trainer.episodes(view.run_id):
            task.advance()
            file.write(episode.model_dump_json(by_alias=True).encode() + b"\n")
