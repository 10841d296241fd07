"""Exports of runs: written to a temporary file and renamed, with progress, and cancellable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.client import TrainerClient
from mosaic.client.file_transfer import pack_run
from mosaic.client.metrics_csv import text_stream, write_csv
from mosaic.common.files import atomic_write
from mosaic.contracts.errors import MosaicError

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView


class ExportCancelled(MosaicError):
    """The user has changed their mind."""


class ExportTask:
    """How far something is that another thread does: it counts, the window looks."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.done = 0
        self.total = 0
        """0: unknown."""
        self.is_cancelled = False

    def advance(self, amount: int = 1) -> None:
        if self.is_cancelled:
            raise ExportCancelled("Nothing was written.")
        self.done += amount


def export_zip(trainer: TrainerClient, view: RunView, path: Path, task: ExportTask) -> None:
    files = trainer.files(view.run_id)
    task.total = sum(entry.size_bytes for entry in files)
    with atomic_write(path) as file:
        pack_run(trainer, view.run_id, files, file, task.advance)


def export_csv(trainer: TrainerClient, view: RunView, path: Path, task: ExportTask) -> None:
    def counted() -> Any:
        for part in trainer.metrics(view.run_id):
            task.advance(len(part.steps))
            yield part

    with atomic_write(path) as file, text_stream(file) as text:
        write_csv(counted(), text)


def export_episodes(trainer: TrainerClient, view: RunView, path: Path, task: ExportTask) -> None:
    task.total = view.episodes or 0
    with atomic_write(path) as file:
        for episode in trainer.episodes(view.run_id):
            task.advance()
            file.write(episode.model_dump_json(by_alias=True).encode() + b"\n")
