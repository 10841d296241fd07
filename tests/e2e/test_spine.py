"""One command trains an agent, through daemon, keeper and worker."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.helpers.commands import mosaic
from tests.helpers.daemons import ended, wait_for

from mosaic.base.journal import read_all
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.views import RunView
from mosaic.trainer.client.connect import connect
from mosaic.worker.checkpoints import last_good_checkpoint

Points = dict[str, list[tuple[int, float, float]]]


def tensorboard_points(folder: RunFolder) -> Points:
    """As TensorBoard's own reader sees them."""
    events = EventAccumulator(str(folder.tensorboard), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(point.step, point.wall_time, point.value) for point in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def metrics_points(workspace: Workspace, run_id: str) -> Points:
    said = mosaic(workspace, "metrics", run_id, "--csv")
    assert said.code == 0, said.err
    rows = list(csv.reader(io.StringIO(said.out)))
    assert rows[0] == ["tag", "step", "at", "value"]
    found: Points = defaultdict(list)
    for tag, step, at, value in rows[1:]:
        found[tag].append((int(step), float(at), float(value)))
    return dict(found)


def test_a_training_run_leaves_every_file_and_all_of_them_agree(workspace: Workspace) -> None:
    """R1.2: files of workspace and run."""
    said = mosaic(
        workspace, "train", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "20000", "--tag", "first", "--json"
    )
    assert said.code == 0, said.err
    view = RunView.model_validate(said.json)
    wanted = {
        "run_id", "stage", "outcome", "reason", "algo", "env_id", "seed", "run_dir", "pid", "global_step", "sps",
        "total_timesteps", "episodic_return", "started_at", "finished_at", "tags",
    }  # fmt: skip
    assert wanted <= set(said.json)
    assert (view.stage, view.outcome, view.algo, view.seed) == ("finished", "succeeded", "ppo", 1)
    assert (view.pid, view.tags, view.total_timesteps) == (None, ("first",), 20000)

    run_id, folder = view.run_id, RunFolder(view.run_dir)
    assert workspace.payload_copy(run_id).exists()
    assert workspace.worker_config(run_id, 1).exists()
    for path in (
        folder.config, folder.record, folder.inbox, folder.keeper, folder.journal, folder.analytics,
        folder.stdout_log("cleanrl"), folder.stderr_log("cleanrl"), folder.last_checkpoint / "manifest.json",
        folder.best_checkpoint / "weights.safetensors",
    ):  # fmt: skip
        assert path.exists(), path
    (model,) = folder.models.glob("CartPole-v1__ppo__1__*/ppo.cleanrl_model")
    state = torch.load(model, weights_only=True)
    assert {"actor.0.weight", "critic.4.bias"} <= set(state)
    for name, value in load_file(folder.last_checkpoint / "weights.safetensors").items():
        assert np.array_equal(state[name].numpy(), value)

    written = tensorboard_points(folder)
    assert metrics_points(workspace, run_id) == written
    assert {"charts/episodic_return", "charts/episodic_length", "charts/learning_rate", "charts/SPS"} <= set(written)
    assert {f"losses/{name}" for name in ("value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl",
            "clipfrac", "explained_variance")} <= set(written)  # fmt: skip
    told = json.loads(folder.analytics.read_text())["scalars"]
    assert {tag: (last["step"], last["at"], last["value"]) for tag, last in told.items()} == {
        tag: points[-1] for tag, points in written.items()
    }
    times = [at for _, at, _ in written["charts/episodic_return"]]
    assert times == sorted(times)
    assert len(set(times)) > len(times) // 2  # when each was logged, not when a batch was written


def curve(workspace: Workspace, run_id: str) -> dict[str, list[tuple[int, float]]]:
    """What two runs must share: everything but the speed and the clock."""
    points = metrics_points(workspace, run_id)
    return {tag: [(step, value) for step, _, value in some] for tag, some in points.items() if tag != "charts/SPS"}


@pytest.mark.parametrize(
    "settings",
    [
        ("ppo", "--env-id", "CartPole-v1", "--total-timesteps", "40960", "--checkpoint-every", "10240"),
        (
            "ppo_continuous_action",
            "--env-id",
            "Pendulum-v1",
            "--total-timesteps",
            "40960",
            "--checkpoint-every",
            "8192",
        ),
    ],
    ids=["ppo", "ppo_continuous_action"],
)
def test_a_killed_run_resumes_to_the_same_weights_and_the_same_curve(
    workspace: Workspace, settings: tuple[str, ...]
) -> None:
    """F3, R3.12: the reason names the signal, and a resumed run equals one that was not killed."""
    straight = RunView.model_validate(mosaic(workspace, "train", *settings, "--seed", "3", "--json").json)
    begun = mosaic(workspace, "train", *settings, "--seed", "3", "--detach", "--json").json
    with connect(workspace) as trainer:
        run_id = begun["run_id"]
        wait_for(lambda: (trainer.get_run(run_id).checkpoint_step or 0) >= 8192, "a checkpoint")
        pid = trainer.get_run(run_id).pid
        assert pid is not None, "it ended before it could be killed"
        os.kill(pid, signal.SIGKILL)
        killed = ended(trainer, run_id)
        assert (killed.outcome, "SIGKILL" in (killed.reason or "")) == ("failed", True)
        trainer.resume(run_id)
        view = ended(trainer, run_id)
    assert (view.outcome, len(view.attempts), view.run_id) == ("succeeded", 2, run_id)
    events = read_all(RunFolder(view.run_dir).journal)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["kind"] == "finished"
    assert not [event for event in events if event.get("code") == "resumed_inexactly"]
    resumed_from = [event["resumed_from"] for event in events if event["kind"] == "hello"][-1]
    assert resumed_from is not None
    assert 0 < resumed_from < (view.global_step or 0)

    weights = [load_file(Path(run.run_dir) / "checkpoints/last/weights.safetensors") for run in (straight, view)]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        assert np.array_equal(value, weights[1][name]), name
    assert curve(workspace, run_id) == curve(workspace, straight.run_id)
    assert metrics_points(workspace, run_id) == tensorboard_points(RunFolder(view.run_dir))


def test_a_cancelled_run_keeps_a_checkpoint_that_resumes(workspace: Workspace) -> None:
    view = RunView.model_validate(
        mosaic(workspace, "train", "ppo", "--total-timesteps", "5000000", "--detach", "--json").json
    )
    run_id = view.run_id
    with connect(workspace) as trainer:
        wait_for(lambda: (trainer.get_run(run_id).global_step or 0) > 1000, "some steps")
        pid = trainer.get_run(run_id).pid
    said = mosaic(workspace, "cancel", run_id)
    assert said.code == 0, said.err
    assert not Path(f"/proc/{pid}").exists()
    view = RunView.model_validate(mosaic(workspace, "show", run_id, "--json").json)
    assert (view.outcome, view.pid) == ("cancelled", None)
    reached = view.global_step or 0
    assert (Path(view.run_dir) / "checkpoints" / str(reached) / "manifest.json").exists()
    said = mosaic(workspace, "resume", run_id, "--total-timesteps", str(reached + 2048))
    assert said.code == 0, said.err
    with connect(workspace) as trainer:
        view = ended(trainer, run_id)
    assert view.outcome == "succeeded"
    assert reached < (view.global_step or 0) <= reached + 2048


@pytest.mark.may_log("call_refused")  # by a client whose daemon had the same port before it was killed
def test_a_daemon_killed_in_the_middle_is_replaced_by_the_next_command(workspace: Workspace) -> None:
    """F1: the next command finds the run with the same process."""
    run_id = mosaic(workspace, "train", "ppo", "--total-timesteps", "5000000", "--detach", "--json").json["run_id"]
    with connect(workspace) as trainer:
        wait_for(lambda: (trainer.get_run(run_id).global_step or 0) > 1000, "some steps")
    before = mosaic(workspace, "show", run_id, "--json").json
    first = mosaic(workspace, "daemon", "status", "--json").json
    os.kill(first["pid"], signal.SIGKILL)
    after = mosaic(workspace, "show", run_id, "--json").json
    second = mosaic(workspace, "daemon", "status", "--json").json
    assert second["pid"] != first["pid"]
    assert {"pid", "address", "started_at"} <= set(second)
    assert (after["stage"], after["pid"]) == ("running", before["pid"])
    assert mosaic(workspace, "cancel", run_id).code == 0
    seqs = [event["seq"] for event in read_all(RunFolder(after["run_dir"]).journal)]
    assert seqs == list(range(1, len(seqs) + 1))


@pytest.mark.parametrize(
    ("algo", "options", "threads"),
    [
        ("ppo", (), 1),
        ("sac_continuous_action", (), 1),
        ("sac_continuous_action", ("--backend", "torch"), 2),
        ("sac_continuous_action", ("--backend", "torch", "--cpus", "1"), 1),
    ],
)
def test_a_run_gets_the_threads_that_are_worthwhile_and_uses_no_more(
    workspace: Workspace, algo: str, options: tuple[str, ...], threads: int
) -> None:
    env_id = "CartPole-v1" if algo == "ppo" else "Pendulum-v1"
    mosaic(workspace, "daemon", "start", "--max-runs", "2")
    verdict = mosaic(workspace, "check", algo, "--env-id", env_id, *options, "--json")
    assert verdict.json["summary"]["threads"] == threads
    said = mosaic(workspace, "train", algo, "--env-id", env_id, "--total-timesteps", "600", *options, "--json")
    assert said.code == 0, said.err
    folder = RunFolder(said.json["run_dir"])
    assert said.json["cpus"] == threads
    checkpoint = last_good_checkpoint(folder)
    assert checkpoint is not None
    assert checkpoint.facts.get("threads", 1) == threads
    config = json.loads((folder.path / "config.json").read_text())
    assert config.get("resources", {}).get("cpus", 1) == threads


def test_a_check_names_the_folders_of_this_workspace_and_starts_nothing(workspace: Workspace) -> None:
    said = mosaic(workspace, "check", "ppo", "--env-id", "CartPole-v1", "--json")
    assert said.code == 0, said.err
    assert str(workspace.runs) in said.out
    assert list(workspace.runs.iterdir()) == []


BAD_INPUT = (
    (("train", "nosuch"), "nosuch"),
    (("train", "pppo"), "Did you mean 'ppo'?"),
    (("train", "ppo", "--learning-rate", "banana"), "banana"),
    (("train", "ppo", "--learning-rate", "3"), "--learning-rate must be a number above 0 and below 1, not '3'."),
    (("train", "ppo", "--learnin-rate", "0.1"), "--learning-rate"),
    (("train", "ppo", "--env-id", "NoSuch-v9"), "NoSuch"),
    (("train", "ppo", "--env-id", "CartPole-v2"), "CartPole-v1"),
    (("train", "ppo", "--env-id", "phys2d/CartPole-v1"), "pip install gymnasium jax"),
    (
        ("train", "sac_continuous_action", "--env-id", "CartPole-v1"),
        "has Discrete(2). These fit: ppo, dqn, c51, pqn, qrdqn, a2c, ppo_lstm, ppo_trxl",
    ),
    (("train", "ppo", "--env-id", "../../etc"), "--env-id: expected an environment id such as"),
    (("train", "ppo", "--env-id", "Pendulum-v1"), "ppo_continuous_action"),
    (("train", "ppo", "--run-name", "../x"), "--run-name must be one line of text without / and"),
)


def test_bad_input_is_one_sentence_and_leaves_nothing(workspace: Workspace) -> None:
    for arguments, said in BAD_INPUT:
        answer = mosaic(workspace, *arguments)
        assert answer.code == 2, arguments
        assert said in answer.err
        assert "Traceback" not in answer.err
        assert answer.out == "", arguments
        assert not workspace.runs.exists() or list(workspace.runs.iterdir()) == [], arguments
