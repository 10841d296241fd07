"""The user's own CleanRL, unmodified, on a newer gymnasium than it was written for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import ended
from tests.helpers.probe_cleanrl import make_checkout
from tests.helpers.probe_scripts import caller_environment, episodes, events, write_script

from mosaic.contracts.errors import ConfigRefused, MissingExtra
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.features.runs.api import connect
from mosaic.trainer.client.trainer_client import TrainerClient


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "their own cleanrl")


def payload(checkout: Path, **extras: object) -> dict[str, object]:
    config = {"algo": "cleanrl:walk", "seed": 2, "extras": {"cleanrl": str(checkout), **extras}}
    return {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}}


def own_returns(run: RunFolder) -> list[tuple[int, float]]:
    """Return the returns in the script's own event file."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = run.tensorboard.glob("runs/*")
    event_file = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    event_file.Reload()
    return [(event.step, event.value) for event in event_file.Scalars("charts/episodic_return")]


def test_its_script_trains_with_the_given_settings(trainer: TrainerClient, checkout: Path) -> None:
    """R3.5: registry; a CleanRL of the user's."""
    request = payload(checkout, algo_params={"total_timesteps": 1600, "anneal": False})
    assert trainer.check(request, caller_environment()).summary.settings["num_envs"] == 4
    view = ended(trainer, trainer.submit(request, caller_environment()).run_id)
    assert view.outcome == "succeeded", view.reason
    assert (view.algo, view.env_id, view.seed) == ("cleanrl:walk", "CartPole-v1", 2)
    assert view.total_timesteps == 1600
    run = RunFolder(view.run_dir)
    assert "('anneal', False)" in (run.models / "walk.flags").read_text()
    returns = own_returns(run)
    (series,) = trainer.metrics(view.run_id, ["charts/episodic_return"])
    assert list(zip(series.steps, series.values, strict=True)) == returns
    assert view.episodes == len(returns) > 20
    assert {row[1] for row in episodes(run)} == {0, 1, 2, 3}
    assert not events(run, "warning")


def test_an_unknown_setting_is_rejected_before_a_run_is_created(trainer: TrainerClient, checkout: Path) -> None:
    with pytest.raises(ConfigRefused, match="Did you mean 'num_envs'"):
        trainer.submit(payload(checkout, algo_params={"num_env": 3}), caller_environment())
    script = checkout / "cleanrl" / "walk.py"
    script.write_text("import no_such_package\n" + script.read_text())
    with pytest.raises(MissingExtra, match="no_such_package"):
        trainer.submit(payload(checkout), caller_environment())
    assert trainer.runs() == []


def test_the_command_line_has_the_flags_of_the_script(
    trainer: TrainerClient, workspace: Workspace, checkout: Path
) -> None:
    arguments = ("cleanrl:walk", "--cleanrl", str(checkout), "--cleanrl-python", sys.executable)
    help_page = mosaic(workspace, "train", *arguments, "--help")
    assert "--target-kl" in help_page.out
    assert "--save-model" not in help_page.out, "only flags that exist"
    result = mosaic(workspace, "train", *arguments, "--total-timesteps", "800", "--no-anneal", "--json")
    assert result.code == 0, result.err
    assert (result.json["outcome"], result.json["total_timesteps"]) == ("succeeded", 800)
    assert "pppo" in mosaic(workspace, "train", "cleanrl:pppo", "--cleanrl", str(checkout)).err
    assert "--cleanrl PATH" in mosaic(workspace, "train", "cleanrl:walk").err


def test_python_trains_a_script_of_an_installed_cleanrl(
    trainer: TrainerClient, workspace: Workspace, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.syspath_prepend(str(checkout))
    client = connect(workspace.root)
    assert client.check("cleanrl:walk", "CartPole-v1").summary.settings["num_envs"] == 4
    run = client.train("cleanrl:walk", "CartPole-v1", total_timesteps=800, num_envs=2, wait=True)
    assert (run.view.outcome, run.view.algo, run.view.total_timesteps) == ("succeeded", "cleanrl:walk", 800)


SAVING_ARGS = """
    save_model: bool = False
    \"""whether to save the model\"""
    batch_size: int = 0
"""
SAVE = """
    if args.save_model:
        import torch
        torch.save({"weight": torch.zeros(2)}, f"runs/{args.exp_name}.cleanrl_model")
        from cleanrl_utils.evals.walk_eval import evaluate
        returns = evaluate(f"runs/{args.exp_name}.cleanrl_model", args.env_id, 2, run_name="walk-eval", device="cpu")
        with open("returns", "w") as file:
            file.write(repr(len(returns)))
"""
EVALUATION = """
import gymnasium as gym

def evaluate(model_path, env_id, eval_episodes, run_name, device, epsilon=0.05, capture_video=True):
    env = gym.make(env_id, render_mode="rgb_array" if capture_video else None)
    if capture_video:
        env = gym.wrappers.RecordVideo(env, f"videos/{run_name}")
    env = gym.vector.SyncVectorEnv([lambda: gym.wrappers.RecordEpisodeStatistics(env)])
    env.reset()
    returns = []
    while len(returns) < eval_episodes:
        if any(any(done) for done in env.step(env.action_space.sample())[2:4]):
            returns.append(0.0)
    env.close()
    return returns
"""


@pytest.fixture
def saving_checkout(checkout: Path) -> Path:
    """A checkout whose script saves a model and evaluates it, as those of CleanRL do, with a video by default."""
    script = checkout / "cleanrl" / "walk.py"
    text = script.read_text().replace("    batch_size: int = 0\n", SAVING_ARGS.lstrip("\n"))
    script.write_text(text + SAVE)
    write_script(checkout / "cleanrl_utils" / "evals", "", "__init__.py")
    write_script(checkout / "cleanrl_utils" / "evals", EVALUATION, "walk_eval.py")
    return checkout


def test_the_scripts_own_evaluation_records_only_on_request_and_cannot_fail_the_training(
    trainer: TrainerClient, saving_checkout: Path
) -> None:
    """R3.11: without moviepy, gymnasium can record no video."""
    few: dict[str, object] = {"algo_params": {"total_timesteps": 400}}
    silent = payload(saving_checkout, save_model=True, **few)
    filmed = payload(saving_checkout, eval_capture_video=True, **few)
    assert not trainer.check(silent, caller_environment()).summary.warnings
    (foretold,) = trainer.check(filmed, caller_environment()).summary.warnings
    assert "lacks the package moviepy" in foretold
    views = [ended(trainer, trainer.submit(one, caller_environment()).run_id) for one in (silent, filmed)]
    assert [view.outcome for view in views] == ["succeeded", "succeeded"], views
    first, second = (RunFolder(view.run_dir) for view in views)
    assert ((first.path / "returns").read_text(), events(first, "warning")) == ("2", [])
    assert (second.path / "returns").read_text() == "0"
    assert (second.models / "walk.cleanrl_model").is_file(), "a video was asked for, so the model was saved"
    (warning,) = events(second, "warning")
    assert (warning["code"], "moviepy" in warning["text"]) == ("evaluation_failed", True)
    assert "moviepy" in second.stderr_log("cleanrl").read_text()


def test_the_command_line_records_the_scripts_own_evaluation(
    trainer: TrainerClient, workspace: Workspace, saving_checkout: Path
) -> None:
    arguments = ("cleanrl:walk", "--cleanrl", str(saving_checkout), "--cleanrl-python", sys.executable)
    result = mosaic(workspace, "check", *arguments, "--eval-capture-video", "--json")
    assert result.code == 0, result.err
    assert "moviepy" in result.json["summary"]["warnings"][0]
    assert "--save-model" in result.json["summary"]["command"]


def test_a_video_of_an_evaluation_that_does_not_happen_is_refused(
    trainer: TrainerClient, checkout: Path, saving_checkout: Path
) -> None:
    contradictory = payload(saving_checkout, eval_capture_video=True, save_model=False)
    with pytest.raises(ConfigRefused, match=r"extras\.eval_capture_video: records .*extras\.save_model is false"):
        trainer.check(contradictory, caller_environment())
    make_checkout(checkout)
    with pytest.raises(ConfigRefused, match=r"extras\.eval_capture_video: No setting 'save_model'"):
        trainer.check(payload(checkout, eval_capture_video=True), caller_environment())


OLD = os.environ.get("MOSAIC_TEST_VENV_029", "")


@pytest.mark.skipif(not OLD, reason="MOSAIC_TEST_VENV_029 is not set to an environment with gymnasium 0.29")
def test_the_compatibility_layer_gives_the_same_episodes_as_the_older_gymnasium(
    trainer: TrainerClient, checkout: Path
) -> None:
    runs = []
    for python in (f"{OLD}/bin/python", sys.executable):
        request = payload(checkout, cleanrl_python=python, algo_params={"total_timesteps": 4000})
        runs.append(trainer.submit(request, caller_environment()).run_id)
    views = [ended(trainer, run_id) for run_id in runs]
    assert [view.outcome for view in views] == ["succeeded", "succeeded"], views
    old, new = (own_returns(RunFolder(view.run_dir)) for view in views)
    assert old == new
    assert [view.episodes for view in views] == [len(old), len(new)]
