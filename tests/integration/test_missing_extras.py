"""Without the packages of an extra everything else works, and what needs one names the extra."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import CommandResult, mosaic
from tests.helpers.daemons import ended
from tests.helpers.probe_scripts import script_payload
from tests.helpers.run_folders import tensorboard_points
from tests.helpers.uninstalled import uninstalled
from tests.helpers.worker_runs import small, train_here

from mosaic.base.caller_environment import caller_environment
from mosaic.contracts.errors import FieldProblem, MissingExtra
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.trainer.client.connect import connect

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
        "import mosaic.window.app, mosaic.window.panels\n"
        "from mosaic.features.tracking.window_tensorboard import is_installed\n"
        "assert not is_installed()"
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


TORCH = "needs torch, which is not installed: pip install 'mosaic-rl[torch]'"
TORCH_REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "algo": ({"algo": "qrdqn"}, f"qrdqn {TORCH}."),
    "backend": ({"backend": "torch"}, f"backend = torch {TORCH}, or leave backend out."),
    "activation": ({"activation": "elu"}, f"activation = elu {TORCH}, or choose tanh or relu."),
    "network": ({"network": "nets:Body"}, f"network = nets:Body {TORCH}, or leave network out."),
    "env_id": (
        {"algo": "ppo_continuous_action", "env_id": "CarRacing-v3"},
        f"The convolutional network for the images of CarRacing-v3 {TORCH}.",
    ),
}


@pytest.fixture
def numpy_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in uninstalled(tmp_path / "without", "torch", "av", "matplotlib", "tensorboard").items():
        monkeypatch.setenv(name, value)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("numpy_only")
def test_without_torch_numpy_trains_resumes_and_evaluates(workspace: Workspace) -> None:
    python("import importlib.util as u; assert u.find_spec('torch') is None")
    run = good(mosaic(workspace, "train", "ppo", *SMALL, "--json")).json["run_id"]
    resumed = good(mosaic(workspace, "resume", run, "--total-timesteps", "512", "--follow", "--json"))
    assert resumed.json["global_step"] == 512
    assert good(mosaic(workspace, "eval", run, "--episodes", "2", "--json")).json["episodes"] == 2
    good(mosaic(workspace, "play", "CartPole-v1", "--actor", f"policy:{run}", "--episodes", "1"))
    listing = mosaic(workspace, "algorithms")
    assert "Those that compute with torch alone need it: pip install 'mosaic-rl[torch]'" in listing.err
    doctor = {check["name"]: check for check in json.loads(mosaic(workspace, "doctor", "--json").out)["checks"]}
    assert doctor["extra: torch"]["todo"] == "pip install 'mosaic-rl[torch]'"
    assert "mosaic-rl[plot]" in mosaic(workspace, "plot", run, "--out", str(workspace.root / "curve.pdf")).err


@pytest.mark.usefixtures("numpy_only")
def test_what_needs_torch_or_a_video_is_refused_in_the_dry_run(workspace: Workspace) -> None:
    with connect(workspace) as trainer:

        def check(artifacts: dict[str, Any] | None = None, **settings: Any) -> Any:
            config = {"algo": settings.pop("algo", "ppo"), "env_id": settings.pop("env_id", "CartPole-v1")}
            worker = {"id": "cleanrl", "config": {**config, "algo_params": settings}}
            return trainer.check({"metadata": {"worker": worker}, "artifacts": artifacts or {}}).summary

        for field, (settings, sentence) in TORCH_REFUSALS.items():
            with pytest.raises(MissingExtra) as refused:
                check(**settings)
            assert str(refused.value) == sentence
            assert [problem.path.rpartition(".")[2] for problem in refused.value.problems] == [field]
        with pytest.raises(MissingExtra, match=r"Saving a video needs av, .*\[video\]', or turn it off"):
            check({"video": {"capture": True}})
        # torch would be faster for wide layers, and could use a GPU; numpy computes both.
        wide = check(algo="td3_continuous_action", env_id="Pendulum-v1", hidden_sizes=[300])
        assert wide.backend == "numpy"
        assert [text for text in wide.warnings if "torch is faster for 300 units" in text]
        assert [text for text in check(cuda=True).warnings if text.startswith("cuda: only torch")]
        assert check().warnings == ()


def test_a_policy_that_torch_computes_says_so_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cleanrl_worker.evaluation.loading import load_acting_policy
    from cleanrl_worker.learners import devices
    from cleanrl_worker.shell.launcher import check_training
    from cleanrl_worker.shell.worker_config import parse_request

    folder = RunFolder(tmp_path / "run")
    train_here(folder, small(algo="ppo_lstm", extras={"num_minibatches": 1}))
    checkpoint = folder.checkpoints / "last"
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"The policy .* of ppo_lstm needs torch, .*mosaic-rl\[torch\]"):
        load_acting_policy(checkpoint)
    config, *_ = check_training(parse_request({"algo": "sac_continuous_action", "env_id": "Pendulum-v1"}))
    assert devices.choose_backend(config) == "numpy"
    with pytest.raises(MissingExtra, match=r"This run has been computed by torch\. Resuming it needs torch"):
        devices.choose_backend(config, "torch")
