"""Runs as files: written elsewhere and renamed, told of while it lasts, given up when the user says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mosaic.client import Trainer
from mosaic.client.points import as_text, write_csv
from mosaic.contracts.errors import MosaicError, NotAllowed
from mosaic.contracts.files import replacing
from mosaic.contracts.packing import pack

Json = dict[str, Any]


class GivenUp(MosaicError):
    """The user has changed their mind."""


class Task:
    """How far something is that another thread does: it counts, the window looks."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.done = 0
        self.total = 0
        """0: nobody knows."""
        self.is_given_up = False

    def advance(self, amount: int = 1) -> None:
        if self.is_given_up:
            raise GivenUp("Nothing was written.")
        self.done += amount


def export_zip(_: Trainer, view: Json, path: Path, task: Task) -> None:
    folder = Path(view["run_dir"])
    if not folder.is_dir():
        raise NotAllowed(f"{folder} is not on this machine; export it where the trainer runs: mosaic export --zip")
    task.total = sum(one.lstat().st_size for one in folder.rglob("*") if not one.is_dir())
    with replacing(path) as file:
        pack(folder, file, task.advance)


def export_csv(trainer: Trainer, view: Json, path: Path, task: Task) -> None:
    def counted() -> Any:
        for part in trainer.metrics(view["run_id"]):
            task.advance(len(part.steps))
            yield part

    with replacing(path) as file, as_text(file) as text:
        write_csv(counted(), text)


def export_episodes(trainer: Trainer, view: Json, path: Path, task: Task) -> None:
    task.total = view.get("episodes") or 0
    with replacing(path) as file:
        for episode in trainer.episodes(view["run_id"]):
            task.advance()
            file.write(json.dumps(episode).encode() + b"\n")
