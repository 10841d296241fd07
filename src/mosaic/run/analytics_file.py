"""Writes analytics.json: what the run has produced so far, for people and programs that read the folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.common.files import write_json
from mosaic.contracts.folder import RunFolder
from mosaic.run.metric_buffer import SeriesByTag

_RESERVED_KEYS = (
    "run_id", "updated_at", "global_step", "episodes", "mean_return", "scalars", "tensorboard",
    "checkpoints", "best", "last",
)  # fmt: skip


class AnalyticsFile:
    def __init__(self, folder: RunFolder, tensorboard: Path | None) -> None:
        self._folder = folder
        self.scalars: dict[str, dict[str, Any]] = {}
        """By tag: step, time and value of the newest point, and the number of points."""
        is_enabled = tensorboard is not None
        self._tensorboard = {"dir": self._relative_path(tensorboard) if tensorboard else None, "enabled": is_enabled}
        self._artifacts: dict[str, Any] = {"wandb": None, "videos": [], "model": None, "evaluation": None}
        self._artifacts.update(_read_artifacts(folder.analytics))

    def update(self, series: SeriesByTag) -> None:
        for tag, rows in series.items():
            step, at, value = rows[-1]
            count = self.scalars[tag]["count"] if tag in self.scalars else 0
            finite_value = value if math.isfinite(value) else None
            self.scalars[tag] = {"step": step, "at": at, "value": finite_value, "count": count + len(rows)}

    def set_artifact(self, name: str, value: Any) -> None:
        if name in _RESERVED_KEYS:
            raise ValueError(f"analytics.json: the entry {name!r} is reserved; choose another name.")
        self._artifacts[name] = value

    def write(self, entries: Mapping[str, Any]) -> None:
        """Write the file with the run's own entries (progress and checkpoints) and the artifacts."""
        header = {"run_id": self._folder.run_id, "updated_at": time.time()}
        if (wandb := _read_wandb_status(self._folder)) is not None:
            self._artifacts["wandb"] = wandb
        body = {**header, **entries, "scalars": self.scalars, "tensorboard": self._tensorboard, **self._artifacts}
        write_json(self._folder.analytics, body)

    def _relative_path(self, path: Path) -> str:
        """Make a path inside the run folder relative, so that it stays valid in a copy of the folder."""
        path = path.absolute()
        return str(path.relative_to(self._folder.path) if path.is_relative_to(self._folder.path) else path)


def _read_wandb_status(folder: RunFolder) -> dict[str, Any] | None:
    """Return how the run is synchronized with W&B, from the ledger that the sidecar writes."""
    try:
        ledger = json.loads(folder.wandb_ledger.read_text())
        status = {key: ledger[key] for key in ("state", "url", "project")}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {**status, "ledger": str(folder.wandb_ledger.relative_to(folder.path))}


def _read_artifacts(path: Path) -> dict[str, Any]:
    """Return the entries that an earlier attempt added to the run's own."""
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in body.items() if key not in _RESERVED_KEYS} if isinstance(body, dict) else {}
