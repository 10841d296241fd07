"""Experiments through a real daemon: one group of runs from a file, each submitted once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import MOSAIC, mosaic
from tests.helpers.daemons import LiveDaemon, ended, running_daemon, wait_for

import mosaic as api
from mosaic.contracts.errors import NoDaemon
from mosaic.contracts.folder import Workspace
from mosaic.features.experiments.api import follow_runs, read_experiment, submit_missing
from mosaic.features.experiments.core import plan_experiment
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient

EXAMPLE = Path(__file__).parents[2] / "examples" / "experiment.yaml"
SMALL = """
algorithms: [ppo, {name: dqn, learning_starts: 100}]
environments: [CartPole-v1]
seeds: 1-2
settings: {total_timesteps: 512}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    folder = tmp_path_factory.mktemp("experiments")
    with running_daemon(Workspace(folder / "var"), folder / "plugins", "--max-runs", "2") as (_, trainer):
        # It would otherwise start during a test, which would take it for a process of its own.
        trainer.ask_worker("cleanrl", {"ask": "ping"})
        yield Workspace(folder / "var")


@pytest.fixture
def trainer(workspace: Workspace) -> Iterator[TrainerClient]:
    with connect(workspace, may_start=False) as connected:
        yield connected


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, text: str = SMALL) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"name: {name}\n{text}")
        return path

    return write


def keys(trainer: TrainerClient, group: str) -> list[tuple[str, int]]:
    views = trainer.runs(group=group, include_archived=True)
    return sorted((view.experiment.key, view.experiment.attempt) for view in views if view.experiment is not None)


@pytest.mark.timeout(300)
def test_the_example_is_checked_run_and_not_run_again(workspace: Workspace, trainer: TrainerClient) -> None:
    """R10.4: an experiment file is checked, submitted once as a group, followed, and listed."""
    checked = mosaic(workspace, "experiment", "check", str(EXAMPLE))
    assert checked.code == 0, checked.err
    assert "12 runs in group first-steps with 49,152 steps in total; 12 would be submitted." in checked.out
    assert trainer.runs(group="first-steps") == []

    done = mosaic(workspace, "experiment", "run", str(EXAMPLE), "--json")
    assert done.code == 0, done.err
    assert "12 of 12 done" in done.err
    assert done.json["counts"] == {"succeeded": 12}
    assert {run["setting"] for run in done.json["runs"]} == {"ppo", "dqn"}
    before = keys(trainer, "first-steps")
    assert len(set(before)) == 12
    assert {view.tags for view in trainer.runs(group="first-steps")} == {("example",)}

    again = mosaic(workspace, "experiment", "run", str(EXAMPLE))
    assert again.code == 0
    assert "All runs of group first-steps were submitted before." in again.err
    assert keys(trainer, "first-steps") == before
    status = mosaic(workspace, "experiment", "status", "first-steps")
    assert "first-steps: 12 of 12 done" in status.out
    listed = mosaic(workspace, "experiments", "--json").json
    assert {"name": "first-steps", "counts": {"succeeded": 12}} in listed


def test_a_combination_that_does_not_fit_is_named_before_anything_is_submitted(
    workspace: Workspace, trainer: TrainerClient, write_file: Callable[..., Path]
) -> None:
    file = write_file("misfit", "algorithms: [ppo, dqn]\nenvironments: [CartPole-v1, Pendulum-v1]\n")
    refused = mosaic(workspace, "experiment", "run", str(file))
    assert refused.code == 2
    assert "ppo on Pendulum-v1: " in refused.err
    assert "dqn on Pendulum-v1: " in refused.err
    assert "on CartPole-v1" not in refused.err
    assert trainer.runs(group="misfit") == []


def test_a_key_that_is_submitted_twice_at_the_same_time_is_one_run(
    trainer: TrainerClient, write_file: Callable[..., Path]
) -> None:
    payload = plan_experiment(read_experiment(write_file("twice"))).runs[0].build_payload()
    with ThreadPoolExecutor(4) as pool:
        views = list(pool.map(lambda _: trainer.submit(payload), range(4)))
    assert len({view.run_id for view in views}) == len(trainer.runs(group="twice")) == 1
    second = trainer.submit(plan_experiment(read_experiment(write_file("twice"))).runs[0].build_payload(attempt=2))
    assert second.run_id != views[0].run_id
    copied = trainer.submit(trainer.config(views[0].run_id))
    assert copied.experiment is None, "A run that is submitted again by hand is a run of its own."
    for view in trainer.runs(group="twice"):
        ended(trainer, view.run_id)


SUBMIT_SOME = """
import os, signal, sys
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.cli.main import main
submit, left = TrainerClient.submit, int(sys.argv[1])
def submit_and_die(self, *args, **kwargs):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)  # before it is sent
    view = submit(self, *args, **kwargs)
    if left == 0 and sys.argv[2] == "answered":
        os.kill(os.getpid(), signal.SIGKILL)  # the run exists, and its submitter does not know
    return view
TrainerClient.submit = submit_and_die
sys.exit(main(["experiment", "run", sys.argv[3], "--detach"]))
"""


@pytest.mark.timeout(300)
def test_a_command_that_is_killed_anywhere_loses_nothing_and_repeats_nothing(
    workspace: Workspace, trainer: TrainerClient, write_file: Callable[..., Path]
) -> None:
    """R10.4: the submission of an experiment can be killed at any moment."""
    file = write_file("killed")
    environment = {**os.environ, "MOSAIC_VAR": str(workspace.root)}
    counts = []
    for left, moment in ((0, "sent"), (1, "answered"), (1, "sent"), (1, "answered")):
        died = subprocess.run(
            [sys.executable, "-c", SUBMIT_SOME, str(left), moment, str(file)], env=environment, capture_output=True
        )
        assert died.returncode == -signal.SIGKILL, died.stderr.decode()
        counts.append(len(keys(trainer, "killed")))
    assert counts == [0, 1, 2, 3]
    done = mosaic(workspace, "experiment", "run", str(file), "--json")
    assert done.json["counts"] == {"succeeded": 4}, done.err
    assert len(set(keys(trainer, "killed"))) == len(trainer.runs(group="killed")) == 4


def test_ctrl_c_detaches_and_failed_runs_are_submitted_again_only_on_request(
    workspace: Workspace, trainer: TrainerClient, write_file: Callable[..., Path]
) -> None:
    long = (
        SMALL.replace("512", "100000000")
        .replace("seeds: 1-2", "seeds: 1")
        .replace(", {name: dqn, learning_starts: 100}", "")
    )
    file = write_file("detached", long)
    with subprocess.Popen(
        [MOSAIC, "experiment", "run", str(file)],
        env={**os.environ, "MOSAIC_VAR": str(workspace.root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_for(lambda: trainer.runs(group="detached", status=["running"]), "the run")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert "mosaic cancel detached" in err
    assert "0 of 1 done, 1 running" in out
    assert [view.stage for view in trainer.runs(group="detached")] == ["running"]

    cancelled = mosaic(workspace, "cancel", "detached")
    assert cancelled.code == 0, cancelled.err
    again = mosaic(workspace, "experiment", "run", str(file))
    assert again.code == 3, "a cancelled run did not succeed"
    assert "--retry" in again.err
    assert len(trainer.runs(group="detached")) == 1
    retried = mosaic(workspace, "experiment", "run", str(file), "--retry", "--detach", "--json")
    assert [run["attempt"] for run in retried.json["runs"]] == [2]
    assert len(trainer.runs(group="detached")) == 2
    assert mosaic(workspace, "cancel", "detached").code == 0
    assert keys(trainer, "detached")[0][0] == keys(trainer, "detached")[1][0]


def test_the_keys_survive_a_rebuilt_index(tmp_path: Path, write_file: Callable[..., Path]) -> None:
    plan = plan_experiment(read_experiment(write_file("rebuilt")))
    daemon = LiveDaemon(Workspace(tmp_path / "a user's var"), tmp_path / "plugins", "--max-runs", "2")
    trainer = daemon.start()
    first = trainer.submit(plan.runs[0].build_payload())
    ended(trainer, first.run_id)
    trainer.close()
    daemon.stop()
    for path in daemon.workspace.trainer.glob("index.sqlite*"):
        path.unlink()
    trainer = daemon.start()
    try:
        assert trainer.submit(plan.runs[0].build_payload()).run_id == first.run_id
        assert len(trainer.runs()) == 1
    finally:
        trainer.close()
        daemon.end()


def test_a_daemon_that_dies_during_the_submission_is_given_the_rest(
    tmp_path: Path, write_file: Callable[..., Path]
) -> None:
    plan = plan_experiment(read_experiment(write_file("survived")))
    daemon = LiveDaemon(Workspace(tmp_path / "a user's var"), tmp_path / "plugins", "--max-runs", "2")
    connections = [daemon.start()]

    def call(ask: Callable[[TrainerClient], Any]) -> Any:
        try:
            return ask(connections[-1])
        except NoDaemon:
            connections.append(daemon.start())
            return ask(connections[-1])

    def kill_after_two(line: str) -> None:
        if line.startswith("2 of 4"):
            daemon.kill()

    try:
        report = submit_missing(call, plan, show=kill_after_two)
        assert len(connections) == 2
        assert [run.view is not None for run in report.runs] == [True] * 4
        assert len(connections[-1].runs()) == 4
        runs = follow_runs(call, plan)
        assert [run.status for run in runs] == ["succeeded"] * 4
    finally:
        for connection in connections:
            connection.close()
        daemon.end()


@pytest.mark.timeout(300)
def test_a_group_is_evaluated_run_after_run_and_shown_by_setting(
    workspace: Workspace, trainer: TrainerClient, write_file: Callable[..., Path]
) -> None:
    """R10.4: eval takes a group."""
    file = write_file("evaluated")
    assert mosaic(workspace, "experiment", "run", str(file)).code == 0
    evaluated = mosaic(workspace, "eval", "evaluated", "--episodes", "2", "--json")
    assert evaluated.code == 0, evaluated.err
    assert [(one["setting"], one["environment"], one["seed"], one["episodes"]) for one in evaluated.json] == [
        *(("ppo", "CartPole-v1", 1, 2), ("dqn", "CartPole-v1", 1, 2)),
        *(("ppo", "CartPole-v1", 2, 2), ("dqn", "CartPole-v1", 2, 2)),
    ]
    trained = {view.run_id for view in trainer.runs(group="evaluated")}
    assert {one["trained_run_id"] for one in evaluated.json} == trained, "evaluations are not part of the group"
    table = mosaic(workspace, "eval", "evaluated", "--episodes", "1").out.splitlines()
    assert [line.split()[:4] for line in table[1:]] == [
        ["ppo", "CartPole-v1", "2", "2"],
        ["dqn", "CartPole-v1", "2", "2"],
    ]
    refused = mosaic(workspace, "eval", "evaluated", "--repeat")
    assert (refused.code, "not for a group" in refused.err) == (2, True)


@pytest.mark.timeout(300)
def test_an_experiment_is_run_waited_for_compared_and_drawn_in_python(
    workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R10.4: the same in Python; a second process continues with the same runs."""
    config = {
        "name": "python",
        "algorithms": ["ppo"],
        "variants": {"fast": {"learning_rate": 1e-2}, "slow": {"learning_rate": 1e-5}},
        "environments": [
            "CartPole-v1",
            {"id": "CartPole-v1", "label": "short", "wrappers": ["time-limit(max_episode_steps=20)"]},
        ],
        "seeds": [1, 2],
        "settings": {"total_timesteps": 1024},
    }
    with api.connect(workspace.root) as client:
        study = client.experiment(config)
        assert study.status.counts == {"missing": 8}
        with pytest.raises(api.BadInput, match="has no runs yet"):
            study.compare()
        assert study.check().run().wait(progress=True) is study
        assert "8 of 8 done" in capsys.readouterr().err
        assert str(study.status) == "8 of 8 done"
        assert study.status.is_done
        assert len(study.runs) == 8
        assert {run.status for run in study.runs} == {"succeeded"}
        result = study.compare(last=5)
        assert result.by == "setting"
        assert sorted(result.environments) == ["CartPole-v1", "short"]
        assert {group.name for group in result.statistics.groups} == {"ppo, fast", "ppo, slow"}
        assert result.aggregates is not None
        by_reference = study.compare(reference_scores={"CartPole-v1": (0, 500), "short": (0, 20)})
        assert by_reference.aggregates is not None
        assert by_reference.aggregates.is_reference
        for kind in ("curves", "efficiency", "aggregates"):
            assert study.plot(tmp_path / f"{kind}.pdf", kind=kind, width="column").stat().st_size > 1000
        with pytest.raises(api.UnknownName, match="Did you mean 'curves'"):
            study.plot(tmp_path / "x.pdf", kind="curve")
    with api.connect(workspace.root) as client:
        again = client.experiment(config).run()
        assert [run.id for run in again.runs] == [run.id for run in study.runs]
        more = client.experiment({**config, "seeds": [1, 2, 3]})
        assert str(more.status) == "8 of 12 done, 4 missing"
        with pytest.raises(api.ConfigRefused, match=r"algorithms\.0: No algorithm 'pppo'"):
            client.experiment({**config, "algorithms": ["pppo"]})
