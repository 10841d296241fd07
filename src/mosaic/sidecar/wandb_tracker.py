"""Records a run as an offline run of W&B, inside the run's folder. Only the sidecar imports this."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contracts.folder import RunFolder
from mosaic.probe.script_env import wandb_variables
from mosaic.sidecar.tracking_request import MONITOR_VARIABLE, TrackedRunInfo

STEP_METRIC = "global_step"
"""The x axis of every chart, as in CleanRL's own runs."""
INIT_TIMEOUT_S = 120.0
FLUSH_S = 5.0


class WandbTracker:
    name = "wandb"

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._run: Any = None
        self._should_log_videos = True
        self.row_count = 0

    @property
    def path(self) -> Path:
        """wandb's folder of this run."""
        return Path(self._run.dir).parent

    def start(self, run_info: TrackedRunInfo) -> None:
        self._folder.wandb.mkdir(exist_ok=True)
        os.environ.update(wandb_variables(self._folder))
        timeout_s = float(os.environ.pop("WANDB_INIT_TIMEOUT", "") or INIT_TIMEOUT_S)
        os.environ.pop(MONITOR_VARIABLE, None)
        import wandb

        settings = wandb.Settings(
            console="off",  # the sidecar's output is not the run's
            disable_code=True,
            disable_git=True,
            init_timeout=timeout_s,
            silent=True,
            x_disable_meta=True,  # would describe the sidecar; the keeper measures the run
            x_disable_stats=True,
            x_save_requirements=False,
            x_start_time=run_info.started_at or time.time(),
            x_transaction_log_flush_interval=FLUSH_S,
        )
        self._should_log_videos = run_info.has_videos
        self._run = wandb.init(
            mode="offline",
            id=run_info.run_id,
            name=run_info.name,
            project=run_info.project,
            entity=run_info.entity,
            group=run_info.group,
            tags=list(run_info.tags),
            notes=run_info.notes,
            job_type=run_info.job_type,
            config=run_info.config,
            settings=settings,
        )
        self._run.define_metric(STEP_METRIC)
        self._run.define_metric("*", step_metric=STEP_METRIC)

    def log_settings(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def log_scalars(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._run.log({**values, STEP_METRIC: step, "_timestamp": at})
        self.row_count += 1

    def log_hardware(self, at: float, values: Mapping[str, float]) -> None:
        """Writes what wandb's own monitor would write; there is no public API for it."""
        records: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
        interface = self._run._interface
        stats = records.StatsRecord(stats_type=records.StatsRecord.SYSTEM)
        stats.timestamp.FromNanoseconds(int(at * 1e9))
        for name, value in values.items():
            item = stats.item.add()
            item.key, item.value_json = name, repr(float(value))
        interface._publish(interface._make_record(stats=stats))

    def log_video(self, path: Path, step: int) -> None:
        if self._should_log_videos:
            import wandb

            name = "eval/video" if path.parent == self._folder.eval_videos else "videos"
            self._run.log({name: wandb.Video(str(path), format="mp4"), STEP_METRIC: step})

    def log_checkpoint(self, path: Path, step: int, aliases: tuple[str, ...]) -> None:
        import wandb

        artifact = wandb.Artifact(f"checkpoint-{self._run.id}", "model", metadata={"step": step})
        artifact.add_dir(str(path))
        self._run.log_artifact(artifact, aliases=[*aliases, f"step-{step}"])

    def finish(self, outcome: str | None) -> None:
        if outcome is not None:
            self._run.summary["outcome"] = outcome
        self._run.finish(exit_code=1 if outcome == "failed" else 0)
