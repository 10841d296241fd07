"""The user's own CleanRL, unmodified, on a newer gymnasium than it was written for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import ended
from tests.helpers.probe_cleanrl import make_checkout
from tests.helpers.probe_scripts import caller_environment, episodes, events

from mosaic.api.workspace_client import connect
from mosaic.client import TrainerClient
from mosaic.contracts.errors import ConfigRefused, MissingExtra
from mosaic.contracts.folder import RunFolder, Workspace


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
