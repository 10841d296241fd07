"""Starts the CleanRL worker as the daemon would, and makes checkpoints without training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cleanrl_worker.shell.launcher import build_job
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.base.journal import read_all
from mosaic.contracts.folder import RUN_DIR_VARIABLE, WORKSPACE_VARIABLE, RunFolder

COMMAND = (sys.executable, "-m", "cleanrl_worker.cli")
SMALL: dict[str, Any] = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 64, "seed": 3}
SMALL_SETTINGS: dict[str, Any] = {"num_envs": 2, "num_steps": 16}


def small(**changes: Any) -> dict[str, Any]:
    """Return a config whose training takes milliseconds."""
    return {**SMALL, "extras": {**SMALL_SETTINGS, **changes.pop("extras", {})}, **changes}


def train_here(folder: RunFolder, config: dict[str, Any], is_resume: bool = False) -> RunFolder:
    """Run the worker's job in this process."""
    build_job(parse_request(config))(folder, is_resume)
    return folder


def run_worker(
    workspace: Path, config: dict[str, Any], *options: str, run_dir: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    workspace.mkdir(parents=True, exist_ok=True)
    path = workspace / "config.json"
    path.write_text(json.dumps(config))
    environment = {**os.environ, WORKSPACE_VARIABLE: str(workspace), **variables}
    environment.pop(RUN_DIR_VARIABLE, None)
    if run_dir is not None:
        environment[RUN_DIR_VARIABLE] = str(run_dir)
    return subprocess.run(
        [*COMMAND, "--config", str(path), *options],
        env=environment, cwd=workspace, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def events(folder: RunFolder, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_all(folder.journal) if event["kind"] == kind]
