"""Writes analytics.json of a script's run: what it has produced, for people and programs that read its folder."""

from __future__ import annotations

import glob
import json
import os
import time
from typing import Any

from mosaic.contracts.names import EVAL_RETURN_TAG

_EVALUATION_PREFIX = "eval/"
_MAX_VIDEOS = 1000


class Analytics:
    """Collects what the file lists, apart from the progress."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._started_at = time.time()
        self.video_folders: set[str] = set()
        """Where the script's wrappers record videos."""
        self._evaluation: dict[str, Any] = {}
        """By tag: the newest point."""
        self.cut_evaluations = 0
        """Episodes of evaluations that the script has ended by a reset."""
        self._episodes = 0
        self._total = 0.0
        self._lowest, self._highest = float("inf"), float("-inf")

    def add_points(self, points: Any) -> None:
        """Note the points of evaluations among those that were written: source, tag, step, time and value."""
        for _, tag, step, _, value in points:
            if tag.startswith(_EVALUATION_PREFIX):
                self._evaluation[tag] = {"step": step, "value": value}
            if tag == EVAL_RETURN_TAG:
                self._episodes += 1
                self._total += value
                self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)

    def write(self, probe: Any) -> None:
        run_dir = self._run_dir
        saved = list(probe.saved_files.values())
        body = {
            "run_id": os.path.basename(run_dir),
            "updated_at": time.time(),
            "global_step": probe.global_step,
            "episodes": probe.episode_count,
            "episodes_cut_by_reset": probe.cut_count,
            "tensorboard": {
                "dir": "tensorboard" if probe.has_writer else None,
                "enabled": os.path.isdir(os.path.join(run_dir, "tensorboard")),
            },
            "wandb": "wandb" if os.path.isdir(os.path.join(run_dir, "wandb")) else None,
            "videos": self._list_videos(),
            "checkpoints": [self._relative_path(entry["path"]) for entry in saved],
            "evaluation": self._summarize_evaluation(),
            "saved_files": saved,
        }
        path = os.path.join(run_dir, "analytics.json")
        with open(f"{path}.{probe.pid}", "w", encoding="utf-8") as file:
            json.dump(body, file, indent=2)
        os.replace(f"{path}.{probe.pid}", path)

    def _list_videos(self) -> list[str]:
        """Return the videos of this run, oldest first: a folder may also hold those of earlier ones."""
        videos = []
        for folder in list(self.video_folders):
            for path in glob.glob(os.path.join(glob.escape(folder), "*.mp4")):
                written_at = os.path.getmtime(path)
                if written_at >= self._started_at - 1.0:
                    videos.append((written_at, self._relative_path(path)))
        return [path for _, path in sorted(videos)[-_MAX_VIDEOS:]]

    def _relative_path(self, path: str) -> str:
        """Make a path inside the run folder relative, so that it stays valid in a copy of the folder."""
        return os.path.relpath(path, self._run_dir) if path.startswith(self._run_dir + os.sep) else path

    def _summarize_evaluation(self) -> dict[str, Any] | None:
        if not self._evaluation:
            return None
        summary: dict[str, Any] = {"episodes": self._episodes, "scalars": self._evaluation}
        if self._episodes:
            mean = self._total / self._episodes
            summary.update(avg_return=mean, min_return=self._lowest, max_return=self._highest)
            summary["episodes_cut_by_reset"] = self.cut_evaluations
        return summary
