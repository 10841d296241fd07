"""Creates and reads run folders in tests of `mosaic.worker.run`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mosaic.base.checkpoint_files import MANIFEST, STATE, manifest_digest, manifest_text
from mosaic.base.journal import Journal, read_all
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.names import LENGTH_TAG, RETURN_TAG
from mosaic.worker.checkpoints import Array
from mosaic.worker.run import Run

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


def make_run_folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "it's a workspace" / "run-1")


def open_run(folder: RunFolder, **settings: Any) -> Run:
    return Run(folder, worker="scripted", version="1", **{"tensorboard": folder.tensorboard, **settings})


def save(run: Run, step: int, **options: Any) -> Path | None:
    return run.save_checkpoint(step, weights=WEIGHTS, arrays=ARRAYS, facts=FACTS, **options)


def forge_state(path: Path, state: bytes) -> None:
    """Replace the arrays and update the manifest's hashes to match."""
    (path / STATE).write_bytes(state)
    body = json.loads((path / MANIFEST).read_text())
    body["files"][STATE] = {"size_bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}
    body["sha256"] = manifest_digest(body)
    (path / MANIFEST).write_text(manifest_text(body))


def send_command(folder: RunFolder, kind: str, **fields: Any) -> None:
    """Write a command to the inbox, as the daemon does."""
    inbox = Journal(folder.inbox)
    inbox.append(kind, **fields)
    inbox.close()


def events(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_all(folder.journal) if event["kind"] == kind]


def journal_points(folder: RunFolder) -> Points:
    """Return the valid points: those of an earlier attempt count up to the step at which a later one resumed."""
    points: Points = {}
    for event in (event for path in folder.journals() for event in read_all(path)):
        if event["kind"] == "hello" and (event.get("resumed_from") is not None or event.get("attempt", 1) > 1):
            begin = -1 if event["resumed_from"] is None else event["resumed_from"]
            points = {tag: [row for row in rows if row[0] <= begin] for tag, rows in points.items()}
        for tag, rows in event.get("series", {}).items():
            points.setdefault(tag, []).extend(tuple(row) for row in rows)
        for _, _, step, at, episodic_return, length in event.get("rows", []):
            points.setdefault(RETURN_TAG, []).append((step, at, episodic_return))
            points.setdefault(LENGTH_TAG, []).append((step, at, float(length)))
    return points


def load_event_file(path: Path) -> EventAccumulator:
    """Load a folder with TensorBoard's own reader, keeping every point."""
    reader = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    return reader


def tensorboard_points(path: Path) -> Points:
    reader = load_event_file(path)
    return {tag: [(e.step, e.wall_time, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
