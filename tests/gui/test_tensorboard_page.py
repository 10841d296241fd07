"""The page of a real TensorBoard, of a real run, in a real window; in a process of its own, as Chromium leaves some."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.daemons import ended

from mosaic.contracts.folder import Workspace
from mosaic.features.tracking import window_tensorboard as tensorboard_process
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import web

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


def large_screen(folder: Path) -> tuple[list[str], str]:
    """What starts a program on a large screen, and Qt's platform there.

    The window stays inside of its screen, and TensorBoard creates the cards that are visible only. With X11 it is
    tested, too, that the window is not replaced: the platform `offscreen` has no OpenGL, for which Qt does that.
    """
    if shutil.which("xvfb-run"):
        return ["xvfb-run", "-a", "-s", "-screen 0 1920x2000x24"], "xcb"
    screen = {"name": "large", "x": 0, "y": 0, "width": 1920, "height": 2000, "logicalDpi": 96, "dpr": 1}
    screens = folder / "screens.json"
    screens.write_text(json.dumps({"screens": [screen]}))
    return [], f"offscreen:configfile={screens}"


@pytest.mark.skipif(not web.is_installed(), reason="Qt WebEngine is not installed")
@pytest.mark.skipif(not tensorboard_process.is_installed(), reason="TensorBoard is not installed")
def test_the_page_shows_the_scalars_of_the_run_in_the_same_native_window(
    trainer: TrainerClient, workspace: Workspace, settings_path: Path, tmp_path: Path
) -> None:
    display, platform = large_screen(tmp_path)
    run = trainer.submit(small())
    assert ended(trainer, run.run_id).outcome == "succeeded"
    done = subprocess.run(
        [*display, sys.executable, str(HELPER), str(workspace.root), str(settings_path), run.run_id, *TAGS],
        env={**os.environ, "QT_QPA_PLATFORM": platform},
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
    before, after = told["windows"]
    assert before == after, "Qt replaced the window of the system, which is black until the next one is drawn"
    assert done.returncode == 0, done.stderr[-2000:]
