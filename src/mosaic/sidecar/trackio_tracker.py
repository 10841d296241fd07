"""Records a run for trackio's local dashboard: `trackio show`, with TRACKIO_DIR set to the workspace's `trackio`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.sidecar.wishes import Facts

_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID", "TRACKIO_WEBHOOK_URL")
"""It is asked for as a local dashboard: what would send a run elsewhere is not passed on."""


class TrackioTracker:
    name = "trackio"

    def __init__(self, folder: RunFolder) -> None:
        self._place = Workspace.of(folder).trackio
        self._run: Any = None
        self.rows = 0

    def start(self, facts: Facts) -> None:
        for variable in _ELSEWHERE:
            os.environ.pop(variable, None)
        os.environ["TRACKIO_DIR"] = str(self._place)
        self._place.mkdir(parents=True, exist_ok=True)
        import trackio

        self._run = trackio.init(
            facts.project,
            name=f"{facts.name}-{facts.run_id[-6:]}" if not facts.name.endswith(facts.run_id[-6:]) else facts.name,
            group=facts.group,
            config={**facts.config, "run_id": facts.run_id},
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def settings(self, values: Mapping[str, Any]) -> None:
        """trackio takes a run's config at its start only."""

    def scalars(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)
        self.rows += 1

    def hardware(self, at: float, values: Mapping[str, float]) -> None:
        self._run.log_system(dict(values))

    def video(self, path: Path, step: int) -> None:
        import trackio

        self._run.log({"videos": trackio.Video(str(path), format="mp4")}, step=step)

    def checkpoint(self, path: Path, step: int, names: tuple[str, ...]) -> None:
        """They lie in the run's folder already."""

    def finish(self, outcome: str | None) -> None:
        self._run.finish()
