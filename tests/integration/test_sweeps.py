"""Sweeps through a real daemon: trials are groups of runs, which survive the death of the sweep and of the daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.helpers.commands import MOSAIC, mosaic
from tests.helpers.daemons import running_daemon, wait_for
from tests.helpers.uninstalled import uninstalled

import mosaic as mosaic_api
from mosaic.base.user_presets import read_presets
from mosaic.contracts.folder import Workspace
from mosaic.features.train.window_model import draft_from_preset
from mosaic.trainer.client.connect import connect, read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient

EXAMPLE = Path(__file__).parents[2] / "examples" / "sweep.yaml"
SMALL = """
algorithm: ppo
environments: [CartPole-v1]
settings: {total_timesteps: 20000, num_envs: 2}
search: {learning_rate: {low: 1e-4, high: 1e-2, log: true}, num_steps: {values: [64, 128]}}
sampler: random
trials: 3
parallel: 1
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A workspace with a daemon for all tests that do not kill it."""
    folder = tmp_path_factory.mktemp("sweeps")
    with running_daemon(Workspace(folder / "a user's var"), folder / "plugins", "--max-runs", "2") as (live, trainer):
        # It would otherwise start during a test, which would take it for a process of its own.
        trainer.ask_worker("cleanrl", {"ask": "ping"})
        yield live.workspace


@pytest.fixture
def trainer(shared: Workspace) -> Iterator[TrainerClient]:
    with connect(shared, may_start=False) as connected:
        yield connected


def write_file(folder: Path, name: str, text: str = SMALL) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\n{text}")
    return path


@contextmanager
def started(workspace: Workspace, file: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [MOSAIC, "sweep", str(file), "--json"],
        env={**os.environ, "MOSAIC_VAR": str(workspace.root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(300)
def test_the_example_runs_and_its_best_settings_are_a_preset_of_the_train_form(
    shared: Workspace, trainer: TrainerClient, tmp_path: Path
) -> None:
    """R10.2: a sweep's file is run, and its best settings can be trained with."""
    done = mosaic(shared, "sweep", str(EXAMPLE), "--json")
    assert done.code == 0, done.err
    assert sum(done.json["counts"].values()) == 4
    best = done.json["best"]
    assert best["score"] == max(one["score"] or 0.0 for one in done.json["trials"])
    assert done.json["preset"] == "first-sweep"
    views = trainer.runs(group="first-sweep")
    assert len(views) == 8
    assert {view.seed for view in views} == {1, 2}

    draft = draft_from_preset(read_presets()["first-sweep"])
    assert (draft.algorithm, draft.rest) == ("ppo", {})
    assert float(draft.texts.get("learning_rate", 0.00025)) == best["params"]["learning_rate"]
    without_qt = uninstalled(tmp_path / "without", "PySide6")
    saved = mosaic(shared, "sweep", "save-preset", "first-sweep", "--as", "mine", **without_qt)
    assert (saved.code, "Train with it: mosaic train ppo --preset mine\n" in saved.out) == (0, True)
    assert read_presets()["mine"] == read_presets()["first-sweep"]
    checked = mosaic(shared, "check", "ppo", "--preset", "mine", "--json").json
    assert checked["summary"]["settings"]["learning_rate"] == best["params"]["learning_rate"]

    again = mosaic(shared, "sweep", str(EXAMPLE))
    assert again.code == 0
    assert "first-sweep: 4 of 4 trials ended" in again.out
    assert len(trainer.runs(group="first-sweep")) == 8
    assert mosaic(shared, "sweep", "status", str(EXAMPLE), "--json").json["best"] == best
    assert [one["name"] for one in mosaic(shared, "sweeps", "--json").json] == ["first-sweep"]
    variables = {"PATH": "/nowhere"}
    dashboard = mosaic(shared, "sweep", "dashboard", "first-sweep", **variables)
    assert (dashboard.code, "pip install optuna-dashboard" in dashboard.err) == (2, True)
    figure = tmp_path / "figure.svg"
    drawn = mosaic(shared, "sweep", "plot", "first-sweep", "--out", str(figure))
    assert drawn.code == 0, drawn.err
    assert "<svg" in figure.read_text()
    unknown = mosaic(shared, "sweep", "status", "frist-sweep")
    assert (unknown.code, "Did you mean 'first-sweep'?" in unknown.err) == (2, True)


@pytest.mark.timeout(300)
def test_a_killed_sweep_and_a_killed_daemon_lose_no_trial_and_repeat_none(workspace: Workspace, tmp_path: Path) -> None:
    """R10.2: a sweep survives."""
    file = write_file(tmp_path, "killed")
    assert mosaic(workspace, "daemon", "start").code == 0
    with connect(workspace, may_start=False) as trainer, started(workspace, file) as process:
        wait_for(lambda: trainer.runs(group="killed"), "the first run")
        process.kill()  # SIGKILL
        process.wait()
        status = mosaic(workspace, "sweep", "status", "killed", "--json").json
        assert (status["counts"], status["is_running"]) == ({"running": 1}, False)
        first = {view.run_id for view in trainer.runs(group="killed")}

    with started(workspace, file) as process:
        with connect(workspace, may_start=False) as trainer:
            wait_for(lambda: len(trainer.runs(group="killed")) > 2, "the second trial")
        address = read_daemon_address(workspace)
        assert address is not None
        os.kill(address.process["pid"], signal.SIGKILL)  # the sweep starts another
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert json.loads(out)["counts"] == {"done": 3}
    with connect(workspace, may_start=False) as trainer:
        views = trainer.runs(group="killed")
    members = [view.experiment for view in views if view.experiment is not None]
    assert len({(member.key, member.attempt) for member in members}) == len(views) == 6
    assert first <= {view.run_id for view in views}
    assert {member.setting for member in members} == {"trial 0", "trial 1", "trial 2"}


@pytest.mark.timeout(200)
def test_ctrl_c_detaches_and_cancel_ends_the_running_trials(
    shared: Workspace, trainer: TrainerClient, tmp_path: Path
) -> None:
    file = write_file(tmp_path, "detached", SMALL.replace("20000", "100000000"))
    with started(shared, file) as process:
        wait_for(lambda: len(trainer.runs(group="detached", status=["running"])) == 2, "both runs")
        refused = mosaic(shared, "sweep", str(file))
        assert (refused.code, f"in process {process.pid}" in refused.err) == (2, True)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    assert f"{file} --cancel" in err
    assert {view.stage for view in trainer.runs(group="detached")} == {"running"}
    cancelled = mosaic(shared, "sweep", str(file), "--cancel")
    assert (cancelled.code, "1 running trial cancelled" in cancelled.out) == (0, True)
    wait_for(lambda: {view.outcome for view in trainer.runs(group="detached")} == {"cancelled"}, "their end")
    assert all(view.checkpoint_step is not None for view in trainer.runs(group="detached"))
    assert mosaic(shared, "sweep", "status", "detached", "--json").json["counts"] == {"cancelled": 1}


@pytest.mark.timeout(200)
def test_cancel_ends_the_process_that_runs_the_sweep_and_the_study_continues(
    shared: Workspace, trainer: TrainerClient, tmp_path: Path
) -> None:
    """R10.2: a sweep is cancelled from another process."""
    file = write_file(tmp_path, "elsewhere", SMALL.replace("20000", "100000000"))
    with started(shared, file) as process:
        wait_for(lambda: len(trainer.runs(group="elsewhere", status=["running"])) == 2, "both runs")
        cancelled = mosaic(shared, "sweep", str(file), "--cancel")
        assert (cancelled.code, "1 running trial cancelled" in cancelled.out) == (0, True), cancelled.err
        _, err = process.communicate(timeout=100)
    assert process.returncode == 3, err
    assert f"Another process has cancelled the sweep. Continue: mosaic sweep {file}" in err
    wait_for(lambda: {view.outcome for view in trainer.runs(group="elsewhere")} == {"cancelled"}, "their end")
    with started(shared, file) as process:
        wait_for(lambda: len(trainer.runs(group="elsewhere", status=["running"])) == 2, "the runs of another trial")
        assert process.poll() is None, "the request to end does not last"
        assert mosaic(shared, "sweep", str(file), "--cancel").code == 0
        process.wait(timeout=100)
    assert mosaic(shared, "sweep", "status", "elsewhere", "--json").json["counts"] == {"cancelled": 2}


def test_nothing_starts_if_a_setting_or_its_bounds_do_not_fit(
    shared: Workspace, trainer: TrainerClient, tmp_path: Path
) -> None:
    refused = mosaic(shared, "sweep", str(write_file(tmp_path, "misfit", SMALL.replace("high: 1e-2", "high: 7"))))
    assert (refused.code, "search.learning_rate: 7" in refused.err) == (2, True)
    refused = mosaic(shared, "sweep", str(write_file(tmp_path, "misfit", SMALL.replace("CartPole-v1", "Pendulum-v1"))))
    assert (refused.code, "Pendulum-v1" in refused.err) == (2, True)
    assert trainer.runs(group="misfit") == []
    unknown = mosaic(shared, "sweep", "status", "misfit")
    assert (unknown.code, "No sweep 'misfit'" in unknown.err) == (2, True)


def test_nothing_but_the_study_imports_optuna() -> None:
    code = (
        "import sys, mosaic.features.sweeps.core_loop, mosaic.features.sweeps.core_figure, mosaic.features.sweeps.cli, "
        "mosaic.features.sweeps.cli, mosaic.base.user_presets; print('optuna' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_missing_optuna_is_named_with_the_command_that_installs_it() -> None:
    code = "import sys; sys.modules['optuna'] = None; import mosaic.features.sweeps.core_study"
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Sweeps need Optuna: pip install 'mosaic-rl[sweep]'" in refused.stderr


def test_a_sweep_in_python_returns_its_trials_and_continues(
    shared: Workspace, trainer: TrainerClient, tmp_path: Path
) -> None:
    config = {
        "name": "in-python",
        "algorithm": "ppo",
        "environments": ["CartPole-v1"],
        "settings": {"total_timesteps": 1024},
        "search": {"num_steps": {"values": [64, 128]}},
        "sampler": "grid",
        "seeds_per_trial": 1,
    }
    with mosaic_api.connect(shared.root) as client:
        result = client.sweep(config)
        assert [row.params for row in result.trials] == [{"num_steps": 64}, {"num_steps": 128}]
        assert result.best is not None
        assert result.best_settings == result.best.params
        assert client.sweep(config).trials == result.trials
    assert len(trainer.runs(group="in-python")) == 2
