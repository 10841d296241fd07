"""analytics.json: what the run has made so far, for people and programs that look into the folder."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contracts.files import write_json
from mosaic.contracts.folder import RunFolder
from mosaic.run.metric_buffer import SeriesByTag
from mosaic.sidecar import sync_state

_RESERVED_KEYS = (
    "run_id", "updated_at", "global_step", "episodes", "mean_return", "scalars", "tensorboard",
    "checkpoints", "best", "last",
)  # fmt: skip


class AnalyticsFile:
    def __init__(self, folder: RunFolder, tensorboard: Path | None) -> None:
        self._folder = folder
        self.scalars: dict[str, dict[str, Any]] = {}
        """By tag: step, at, value of the newest point, and how many there are."""
        is_enabled = tensorboard is not None
        self._tensorboard = {"dir": self._relative_path(tensorboard) if tensorboard else None, "enabled": is_enabled}
        self._artifacts: dict[str, Any] = {"wandb": None, "videos": [], "model": None, "evaluation": None}
        self._artifacts.update(_read_artifacts(folder.analytics))

    def update(self, series: SeriesByTag) -> None:
        for tag, rows in series.items():
            step, at, value = rows[-1]
            seen = self.scalars[tag]["count"] if tag in self.scalars else 0
            shown = value if math.isfinite(value) else None
            self.scalars[tag] = {"step": step, "at": at, "value": shown, "count": seen + len(rows)}

    def set_artifact(self, name: str, value: Any) -> None:
        if name in _RESERVED_KEYS:
            raise ValueError(f"analytics.json: {name!r} is kept by the run itself; choose another name.")
        self._artifacts[name] = value

    def write(self, facts: Mapping[str, Any]) -> None:
        """`facts` are the run's own entries: where it stands, and its checkpoints."""
        first = {"run_id": self._folder.run_id, "updated_at": time.time()}
        if self._folder.wandb.is_dir() and (state := sync_state.read(self._folder)) is not None:
            self._artifacts["wandb"] = sync_state.artifact_summary(state)
        body = {**first, **facts, "scalars": self.scalars, "tensorboard": self._tensorboard, **self._artifacts}
        write_json(self._folder.analytics, body)

    def _relative_path(self, path: Path) -> str:
        """Relative where it lies in the run folder, so that a copied folder stays true."""
        path = path.absolute()
        return str(path.relative_to(self._folder.path) if path.is_relative_to(self._folder.path) else path)


def _read_artifacts(path: Path) -> dict[str, Any]:
    """What an earlier attempt had listed beyond the run's own entries."""
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in body.items() if key not in _RESERVED_KEYS} if isinstance(body, dict) else {}
