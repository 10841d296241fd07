"""Reading wandb's own offline file: records in blocks, as LevelDB writes its log, each a protobuf message."""

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
"""In front of the file, and in front of each piece of a record."""
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
    """Of one of wandb's folders."""
    proto: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    (path,) = folder.glob("*.wandb")
    for message in messages(path):
        record = proto.Record()
        record.ParseFromString(message)
        yield record


def rows(folder: Path) -> list[dict[str, Any]]:
    """Of its history."""
    found = []
    for record in records(folder):
        if record.WhichOneof("record_type") == "history":
            found.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            )
    return found


def points(folder: Path) -> Points:
    """As TensorBoard's reader gives them: by tag, in order: step, time, value."""
    found: Points = {}
    for row in rows(folder):
        for tag, value in row.items():
            if tag not in OWN and not tag.startswith("videos/"):
                found.setdefault(tag, []).append((row["global_step"], row["_timestamp"], float(value)))
    return found
