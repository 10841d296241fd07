"""Without wandb, tensorboard and huggingface_hub everything else works, and says what is missing when asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.commands import CommandResult, mosaic
from tests.helpers.daemons import ended
from tests.helpers.probe_scripts import script_payload
from tests.helpers.run_folders import tensorboard_points
from tests.helpers.uninstalled import uninstalled

from mosaic.client import connect
from mosaic.contracts.errors import FieldProblem, MissingExtra
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.submission.caller_environment import caller_environment

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


@pytest.mark.usefixtures("bare")
def test_what_needs_no_extra_works_and_what_does_names_it(workspace: Workspace) -> None:
    """F23: training writes event files and curves without TensorBoard."""
    python(f"import importlib.util as u; assert not any(u.find_spec(name) for name in {GONE!r})")
    trained = good(mosaic(workspace, "train", "ppo", *SMALL, "--capture-video", "--json")).json
    assert trained["outcome"] == "succeeded"
    folder = RunFolder(trained["run_dir"])
    assert tensorboard_points(folder.tensorboard)["charts/episodic_return"]
    assert list(folder.videos.glob("*.mp4"))

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


REFUSALS = {
    "wandb": "Tracking needs wandb, which is not installed: pip install 'mosaic-rl[wandb]', or leave out --track.",
    "trackio": "Tracking needs trackio, which is not installed: pip install 'mosaic-rl[trackio]', or turn it off.",
    "model": "Uploading needs huggingface_hub, which is not installed: pip install 'mosaic-rl[hub]', or leave out "
    "--upload-model and push the policy after the training: mosaic push RUN.",
}


@pytest.mark.usefixtures("bare")
def test_tracking_and_uploads_that_lack_their_package_are_refused_before_a_run_is_created(workspace: Workspace) -> None:
    """By the commands and, as the daemon's Python is the sidecar's, by the daemon for every payload."""
    for command in ("train", "check"):
        for flag, section in (("--track", "wandb"), ("--upload-model", "model")):
            result = mosaic(workspace, command, "ppo", *SMALL, flag)
            assert (result.code, result.err.splitlines()[-1]) == (2, REFUSALS[section])
    sections = {"wandb": {"enabled": True}, "trackio": {"enabled": True}, "model": {"upload": True}}
    with connect(workspace, may_start=False) as trainer:
        for section, choices in sections.items():
            worker = {"id": "cleanrl", "config": {"algo": "ppo", "env_id": "CartPole-v1"}}
            payload = {"metadata": {"worker": worker}, "artifacts": {section: choices}}
            for call in (trainer.submit, trainer.check):
                with pytest.raises(MissingExtra) as refused:
                    call(payload)
                path = f"artifacts.{section}.{next(iter(choices))}"
                assert refused.value.problems == (FieldProblem(path, REFUSALS[section]),)
        assert list(trainer.runs()) == []
        # A program of the user's tracks itself, and its Python may have wandb.
        script = script_payload([sys.executable, "-c", "print(1)"], workspace.root)
        accepted = trainer.submit(script | {"artifacts": {"wandb": {"enabled": True}}}, caller_environment())
        assert ended(trainer, accepted.run_id).outcome == "succeeded"


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
