"""Runs through the daemon with the real wandb: our worker with videos, and a script that tracks itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers.daemons import ended, running_daemon, wait_for
from tests.helpers.probe_scripts import caller_environment, start_script
from tests.helpers.sidecar_runs import environment
from tests.helpers.wandb_server import KEY, WandbServer, files_with
from tests.helpers.worker_runs import small

from mosaic.base.journal import read_all
from mosaic.base.processes import is_alive
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.features.tracking.sidecar import sync_state
from mosaic.trainer.client.trainer_client import TrainerClient

TRACKS_ITSELF = """
    import gymnasium as gym
    import wandb
    run = wandb.init(project="theirs", id="their-run", config={"lr": 0.5}, monitor_gym=True)
    for step in range(7):
        run.log({"losses/own": step / 2, "global_step": step})
    print(run.settings.mode, hasattr(gym.wrappers.RecordVideo, "orig_close"), flush=True)
    run.finish()
"""


def sidecar_ended(folder: RunFolder) -> None:
    process = next(body["process"] for body in read_all(folder.keeper) if body["kind"] == "sidecar_started")
    wait_for(lambda: not is_alive(process), "the sidecar's end", 90.0)


def synced(trainer: TrainerClient, run_id: str) -> RunFolder:
    assert ended(trainer, run_id).outcome == "succeeded"
    folder = RunFolder(trainer.get_run(run_id).run_dir)
    sidecar_ended(folder)
    state = sync_state.read(folder)
    assert state is not None, (folder.logs / "sidecar.log").read_text()
    assert (state.state, state.error) == ("synced", None)
    return folder


def test_a_tracked_run_is_uploaded_with_videos_and_without_errors(
    workspace: Workspace, plugins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F22: a run of ours with videos, and a script that tracks itself with W&B's own video hook."""
    with WandbServer() as server:
        for name, value in environment(server.url, tmp_path / "home", WANDB_INIT_TIMEOUT="60").items():
            monkeypatch.setenv(name, value)
        with running_daemon(workspace, plugins, "--max-runs", "2") as (_, trainer):
            config = small(extras={"track_wandb": True, "capture_video": True, "num_envs": 1})
            submission = {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}
            ours = trainer.submit(submission).run_id
            theirs = start_script(trainer, tmp_path / "script", TRACKS_ITSELF, environment=caller_environment())

            folder = synced(trainer, ours)
            errors = (folder.stderr_log("cleanrl").read_text(), (folder.logs / "sidecar.log").read_text())
            assert not [text for text in errors if "Traceback" in text]
            assert list(folder.videos.rglob("*.mp4"))
            assert [name for name in server.files if name.endswith(".mp4")]

            folder = synced(trainer, theirs)
            # Offline, although it did not ask for that; and W&B's hook, which breaks `close`, was left out.
            assert folder.stdout_log("script").read_text().splitlines()[-1] == "offline False"
            assert [row["losses/own"] for row in server.history("their-run")] == [step / 2 for step in range(7)]
            assert ours in server.runs, "and no run was recorded twice"
            assert set(server.runs) == {ours, "their-run"}
        assert files_with(workspace.root, KEY) == []
