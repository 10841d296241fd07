"""Records a run for trackio's local dashboard: `trackio show`, with TRACKIO_DIR set to the workspace's `trackio`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.formatting import short_id
from mosaic.sidecar.tracking_request import TrackedRunInfo

_REMOTE_VARIABLES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID", "TRACKIO_WEBHOOK_URL")
"""Only the local dashboard is supported: these would send a run elsewhere."""


class TrackioTracker:
    name = "trackio"

    def __init__(self, folder: RunFolder) -> None:
        self._trackio_folder = Workspace.containing(folder).trackio
        self._run: Any = None
        self.row_count = 0

    def start(self, run_info: TrackedRunInfo) -> None:
        for variable in _REMOTE_VARIABLES:
            os.environ.pop(variable, None)
        os.environ["TRACKIO_DIR"] = str(self._trackio_folder)
        self._trackio_folder.mkdir(parents=True, exist_ok=True)
        import trackio

        suffix = short_id(run_info.run_id)
        self._run = trackio.init(
            run_info.project,
            name=run_info.name if run_info.name.endswith(suffix) else f"{run_info.name}-{suffix}",
            group=run_info.group,
            config={**run_info.config, "run_id": run_info.run_id},
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log_settings(self, values: Mapping[str, Any]) -> None:
        """trackio accepts a config at the start only."""

    def log_scalars(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)
        self.row_count += 1

    def log_hardware(self, at: float, values: Mapping[str, float]) -> None:
        self._run.log_system(dict(values))

    def log_video(self, path: Path, step: int) -> None:
        import trackio

        self._run.log({"videos": trackio.Video(str(path), format="mp4")}, step=step)

    def log_checkpoint(self, path: Path, step: int, aliases: tuple[str, ...]) -> None:
        """They are in the run's folder already."""

    def finish(self, outcome: str | None) -> None:
        self._run.finish()
