"""Reads wandb's offline file: records in blocks, in the format of LevelDB's log, each a protobuf message."""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers.run_folders import Points

BLOCK_BYTES = 32768
HEADER_BYTES = 7
"""Headers of the file and of each fragment of a record."""
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
OWN = ("global_step", "_step", "_runtime", "_timestamp")


def messages(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, pieces = HEADER_BYTES, b""
    while at + HEADER_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER_BYTES:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0:
            return
        piece = data[at + HEADER_BYTES : at + HEADER_BYTES + size]
        at += HEADER_BYTES + size
        pieces = piece if kind in (WHOLE, FIRST) else pieces + piece
        if kind in (WHOLE, LAST):
            yield pieces


def records(folder: Path) -> Iterator[Any]:
    """Yields the records of one of wandb's folders."""
    proto: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (path,) = folder.glob("*.wandb")
    for message in messages(path):
        record = proto.Record()
        record.ParseFromString(message)
        yield record


def rows(folder: Path) -> list[dict[str, Any]]:
    """Returns the rows of its history."""
    rows = []
    for record in records(folder):
        if record.WhichOneof("record_type") == "history":
            rows.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            )
    return rows


def points(folder: Path) -> Points:
    """Returns step, time and value of each point by tag, like TensorBoard's reader."""
    series: Points = {}
    for row in rows(folder):
        for tag, value in row.items():
            if tag not in OWN and not tag.startswith("videos/"):
                series.setdefault(tag, []).append((row["global_step"], row["_timestamp"], float(value)))
    return series
