"""Run folders for a sidecar, and its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.wandb_server import KEY
from tests.helpers.worker_runs import small, train_here

from mosaic.base.files import write_json
from mosaic.base.journal import Journal
from mosaic.base.processes import own_identity
from mosaic.contracts.folder import RunFolder, Workspace

RUN_ID = "01K0000000SIDECAR000000001"
SETTINGS = {"track_wandb": True, "wandb_project_name": "a project", "checkpoint_every": 32}


def payload(config: dict[str, Any] | None = None, worker: str = "cleanrl", **artifacts: Any) -> dict[str, Any]:
    metadata = {"tags": ["one", "two"], "notes": "It's a note.", "group": "seeds", "ui": None}
    choice = {"id": worker, "config": small(extras=SETTINGS) if config is None else config}
    return {"metadata": {**metadata, "worker": choice}, "artifacts": artifacts}


def create_run(root: Path, config: dict[str, Any] | None = None, run_id: str = RUN_ID) -> RunFolder:
    """Creates the folder as the daemon does, with nothing but its config."""
    folder = Workspace(root / "it's a workspace" / "var").run(run_id)
    folder.path.mkdir(parents=True)
    write_json(folder.config, payload() if config is None else config)
    return folder


def train_run(root: Path) -> RunFolder:
    """Trains a run with a resumed attempt, a video and a hardware sample."""
    folder = create_run(root)
    train_here(folder, small(total_timesteps=128, extras={"checkpoint_every": 32}))
    train_here(folder, small(total_timesteps=256, extras={"checkpoint_every": 32}), is_resume=True)
    folder.videos.mkdir(exist_ok=True)
    (folder.videos / "rl-video-episode-0.mp4").write_bytes(b"\0\0\0\x18ftypmp42 not a real video")
    keeper = Journal(folder.keeper)
    keeper.append("keeper_started", process=own_identity())
    keeper.append("sample", cpu_percent=81.5, rss_mb=64.0, processes=1, gpus=[])
    keeper.append("exited", code=0)
    keeper.close()
    return folder


def recorded_run(factory: pytest.TempPathFactory) -> RunFolder:
    """Returns a run recorded for W&B, created once per session: work on a copy."""
    root = factory.getbasetemp() / "recorded"
    folder = RunFolder(root / "it's a workspace" / "var" / "trainer" / "runs" / RUN_ID)
    if not root.exists():
        record(train_run(root), environment("http://127.0.0.1:1", root / "home"))
    return folder


def environment(url: str, home: Path, **more: str) -> dict[str, str]:
    """Returns the environment of a sidecar: ours, a key, and an empty home folder."""
    home.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    own = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
    return {**inherited, **own, "WANDB_BASE_URL": url, "WANDB_API_KEY": KEY, "WANDB_INIT_TIMEOUT": "1", **more}


def record(folder: RunFolder, env: dict[str, str]) -> None:
    command = [sys.executable, "-m", "mosaic.features.tracking.sidecar", "record", str(folder.path)]
    process = subprocess.run(
        command, env=env | {"WANDB_INIT_TIMEOUT": "60"}, capture_output=True, text=True, timeout=100
    )
    assert process.returncode == 0, process.stderr


def read_events(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in folder.sidecar.read_text().splitlines()] if folder.sidecar.exists() else []
