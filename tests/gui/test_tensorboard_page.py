"""The page of a real TensorBoard, of a real run, in a real window; in a process of its own, as Chromium leaves some."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.daemons import ended

from mosaic.client import TrainerClient
from mosaic.contracts.folder import Workspace
from mosaic.gui.models import tensorboard_process
from mosaic.gui.views import web

HELPER = Path(__file__).parents[1] / "helpers" / "tensorboard_window.py"
TAGS = ("charts/episodic_return", "charts/SPS", "losses/entropy")


def small() -> dict[str, object]:
    config = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": 1,
        "total_timesteps": 2048,
        "extras": {"algo_params": {"num_envs": 2, "num_steps": 64}},
    }
    return {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}


@pytest.mark.skipif(not web.is_installed(), reason="Qt WebEngine is not installed")
@pytest.mark.skipif(not tensorboard_process.is_installed(), reason="TensorBoard is not installed")
def test_the_page_shows_the_scalars_of_the_run(
    trainer: TrainerClient, workspace: Workspace, settings_path: Path
) -> None:
    run = trainer.submit(small())
    assert ended(trainer, run.run_id).outcome == "succeeded"
    done = subprocess.run(
        [sys.executable, str(HELPER), str(workspace.root), str(settings_path), run.run_id, *TAGS],
        env={**os.environ, "QT_QPA_PLATFORM": "offscreen"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode == 77 or (done.returncode < 0 and "WebEngine" in done.stderr):
        pytest.skip(f"WebEngine cannot start here: {done.stderr[-300:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["state"] == "ready", told["problem"]
    assert all(tag in told["text"] for tag in TAGS), told["text"][:2000]
    assert done.returncode == 0, done.stderr[-2000:]
