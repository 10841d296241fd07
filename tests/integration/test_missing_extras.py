"""Without wandb, tensorboard and huggingface_hub everything else works, and says what is missing when asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.commands import CommandResult, mosaic
from tests.helpers.daemons import wait_for
from tests.helpers.run_folders import tensorboard_points
from tests.helpers.uninstalled import uninstalled

from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.journal import read_all

GONE = ("wandb", "tensorboard", "trackio", "huggingface_hub", "keyring")
SMALL = ("--env-id", "CartPole-v1", "--total-timesteps", "256", "--num-envs", "2", "--num-steps", "32")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in uninstalled(tmp_path / "without", *GONE).items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100, env=os.environ)


def good(result: CommandResult) -> CommandResult:
    assert result.code == 0, result.err
    assert "Traceback" not in result.err
    return result


def warnings(folder: RunFolder) -> str:
    paths = (*folder.journals(), folder.sidecar)
    return " ".join(event["text"] for path in paths for event in read_all(path) if event["kind"] == "warning")


@pytest.mark.usefixtures("bare")
def test_what_needs_no_extra_works_and_what_does_names_it(workspace: Workspace) -> None:
    """F23: training writes event files and curves without TensorBoard."""
    python(f"import importlib.util as u; assert not any(u.find_spec(name) for name in {GONE!r})")
    wishes = ("--track", "--upload-model", "--capture-video")
    checked = good(mosaic(workspace, "check", "ppo", *SMALL, *wishes, "--json")).json
    assert "mosaic-rl[wandb]" in json.dumps(checked)
    assert "mosaic-rl[hub]" in json.dumps(checked)
    trained = good(mosaic(workspace, "train", "ppo", *SMALL, *wishes, "--json")).json
    assert trained["outcome"] == "succeeded"
    folder = RunFolder(trained["run_dir"])
    assert tensorboard_points(folder.tensorboard)["charts/episodic_return"]
    assert list(folder.videos.glob("*.mp4"))
    # By the sidecar, which goes on for a while.
    wait_for(lambda: "mosaic-rl[wandb]" in warnings(folder), "what W&B needs")
    wait_for(lambda: "mosaic-rl[hub]" in warnings(folder), "what the Hub needs")

    run = trained["run_id"]
    assert good(mosaic(workspace, "eval", run, "--episodes", "3", "--json")).json["episodes"] == 3
    good(mosaic(workspace, "show", run))
    extras = json.loads(mosaic(workspace, "doctor", "--json").out)
    assert "hub" in json.dumps(extras)

    pushed = mosaic(workspace, "push", run, "--repo", "me/cart")
    assert (pushed.code, pushed.err.splitlines()[-1]) == (
        2,
        "The Hugging Face Hub needs huggingface_hub: pip install 'mosaic-rl[hub]'.",
    )
    assert "mosaic-rl[hub]" in mosaic(workspace, "pull", "me/cart").err
    good(mosaic(workspace, "wandb", "status"))
    synced = mosaic(workspace, "wandb", "sync", run)
    assert synced.code != 0
    assert "mosaic-rl[wandb]" in synced.out
    assert "Traceback" not in synced.err


@pytest.mark.usefixtures("bare")
def test_without_tensorboard_the_window_names_the_extra() -> None:
    pytest.importorskip("PySide6")
    python(
        "import mosaic.gui.app, mosaic.gui.panels\n"
        "from mosaic.gui.models import tensorboard_process\n"
        "assert not tensorboard_process.is_installed()"
    )


def test_without_the_train_extra_every_command_that_needs_it_names_it(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in uninstalled(tmp_path / "without", "gymnasium").items():
        monkeypatch.setenv(name, value)
    for arguments in (("train", "ppo", *SMALL), ("check", "ppo", *SMALL), ("envs",)):
        result = mosaic(workspace, *arguments)
        assert result.code == 2
        assert result.err.splitlines()[-1] == (
            "The worker 'cleanrl' needs gymnasium, which is not installed: pip install 'mosaic-rl[train]'"
        )
        assert "Traceback" not in result.err
    assert not list(workspace.runs.glob("*"))
