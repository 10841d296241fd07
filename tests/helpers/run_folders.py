"""Making and reading run folders in tests of `mosaic.run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mosaic.contracts.folder import RunFolder
from mosaic.journal import Journal, read_all
from mosaic.run import Run
from mosaic.run.checkpoints import Array
from mosaic.run.metric_buffer import LENGTH_TAG, RETURN_TAG

Points = dict[str, list[tuple[int, float, float]]]

WEIGHTS: dict[str, Array] = {
    "actor.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "actor.scale": np.array(0.5, np.float32),
}
ARRAYS: dict[str, Array] = {
    "file": np.arange(4),
    "rng/keys": np.array([1, 2**63], np.uint64),
    "flags": np.array([True, False]),
}
FACTS: dict[str, Any] = {"rng": 2**100, "name": "Zürich", "schedule": [0.1, None]}


def a_folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "it's a workspace" / "run-1")


def opened(folder: RunFolder, **settings: Any) -> Run:
    return Run.open(folder, worker="scripted", version="1", **{"tensorboard": folder.tensorboard, **settings})


def save(run: Run, step: int) -> Path | None:
    return run.save_checkpoint(step, weights=WEIGHTS, arrays=ARRAYS, facts=FACTS)


def tell(folder: RunFolder, kind: str, **facts: Any) -> None:
    """As the daemon does."""
    inbox = Journal(folder.inbox)
    inbox.append(kind, **facts)
    inbox.close()


def events(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_all(folder.journal) if event["kind"] == kind]


def journal_points(folder: RunFolder) -> Points:
    """What counts: points of an earlier attempt above the step that a later one began at do not."""
    found: Points = {}
    for event in read_all(folder.journal):
        if event["kind"] == "hello" and event["attempt"] > 1:
            begin = -1 if event["resumed_from"] is None else event["resumed_from"]
            found = {tag: [row for row in rows if row[0] <= begin] for tag, rows in found.items()}
        for tag, rows in event.get("series", {}).items():
            found.setdefault(tag, []).extend(tuple(row) for row in rows)
        for _, _, step, at, episodic_return, length in event.get("rows", []):
            found.setdefault(RETURN_TAG, []).append((step, at, episodic_return))
            found.setdefault(LENGTH_TAG, []).append((step, at, float(length)))
    return found


def accumulated(path: Path) -> EventAccumulator:
    """TensorBoard's own reader, which keeps every point."""
    reader = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    return reader


def tensorboard_points(path: Path) -> Points:
    reader = accumulated(path)
    return {tag: [(e.step, e.wall_time, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
