"""The points of a run as a table for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO

from mosaic.client.trainer_client import MetricSeries


def write_csv(parts: Iterable[MetricSeries], stream: IO[str]) -> None:
    """One row a value: tag, step, at, value; numbers with all their digits."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("tag", "step", "at", "value"))
    for part in parts:
        for step, at, value in zip(part.steps, part.at, part.values, strict=True):
            writer.writerow((part.tag, step, repr(at), repr(value)))


@contextmanager
def text_stream(file: IO[bytes]) -> Iterator[IO[str]]:
    """The file as a text stream; it stays open."""
    text = io.TextIOWrapper(file, encoding="utf-8", newline="")
    yield text
    text.flush()
    text.detach()
