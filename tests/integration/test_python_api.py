"""The Python API against a real daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from tests.helpers.commands import mosaic as command
from tests.helpers.daemons import LiveDaemon, scripted, wait_for

import mosaic
from mosaic.contracts.folder import WORKSPACE_VARIABLE, Workspace
from mosaic.contracts.play import PlaySummary
from mosaic.trainer.client.connect import read_daemon_address


@pytest.fixture
def client(daemon: LiveDaemon) -> Iterator[mosaic.Client]:
    with mosaic.connect(daemon.workspace.root) as connected:
        yield connected


def test_training_waiting_curves_evaluation_and_policy(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """R11.1: Python API."""
    monkeypatch.setenv(WORKSPACE_VARIABLE, str(workspace.root))
    run = mosaic.train(
        "ppo", "CartPole-v1", seed=3, total_timesteps=6_000, learning_rate=1e-3, group="ours", tags=["first"]
    )
    assert run.status in ("queued", "starting", "running")
    assert run.wait(progress=True) is run
    assert "succeeded" in capsys.readouterr().err
    assert (run.status, run.is_finished, run.view.seed, run.view.tags) == ("succeeded", True, 3, ("first",))
    assert run.settings["learning_rate"] == 1e-3
    assert run.config["metadata"]["group"] == "ours"
    assert run.folder.is_dir()
    assert run.id[-6:] in repr(run)
    assert "CartPole-v1" in run._repr_html_()

    curve = run.metrics("charts/episodic_return")
    assert [str(part.dtype) for part in (curve.steps, curve.times, curve.values)] == ["int64", "float64", "float64"]
    episodes = run.episodes()
    assert len(curve) == len(episodes) == run.view.episodes
    np.testing.assert_allclose(curve.values, episodes.returns)
    assert set(run.metrics()) >= {"charts/episodic_return", "charts/learning_rate"}
    with pytest.raises(mosaic.UnknownName, match="Did you mean 'charts/learning_rate'"):
        run.metrics("charts/lerning_rate")

    result = run.evaluate(episodes=8, record=True)
    assert (result.episodes, len(result.returns)) == (8, 8)
    replayed = result.run.replay()
    assert [(one.total_reward, one.is_identical) for one in replayed] == [(value, True) for value in result.returns]
    from_command = command(workspace, "eval", run.id, "--episodes", "2", "--record-episodes", "--json").json
    reports = json.loads(command(workspace, "replay", from_command["run_id"], "--json").out)
    assert reports["identical"] is True
    assert [one["total_reward"] for one in reports["episodes"]] == from_command["returns"]
    assert result.mean == pytest.approx(result.returns.mean())
    assert result.ci95 is not None
    assert result.ci95[0] <= result.mean <= result.ci95[1]

    policy = run.load_policy()
    env = gymnasium.make("CartPole-v1")
    first_seed = result.summary.seeds[0]
    total, is_done = 0.0, False
    observation, _ = env.reset(seed=first_seed)
    while not is_done:
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
        total, is_done = total + float(reward), terminated or truncated
    env.close()
    assert total == result.returns[0], "The loaded policy acts as the evaluated one."
    batch = np.stack([observation] * 5)
    assert policy.act(batch).shape == (5,)
    assert policy.act(batch).tolist() == [policy.act(observation)] * 5
    drawn = []
    for seed in (4, 4, 5):
        policy.reset(seed)
        drawn.append([policy.act(batch, deterministic=False).tolist() for _ in range(20)])
    assert drawn[0] == drawn[1] != drawn[2], "An actor that samples plays the same episode again."
    with pytest.raises(mosaic.BadInput, match=r"shape \(3,\); CartPole-v1 needs \(4,\)"):
        policy.act([1.0, 2.0, 3.0])
    model = next(run.folder.rglob("*.cleanrl_model"))
    loaded = mosaic.load_policy(run), mosaic.load_policy("last"), mosaic.load_policy(model), result.run.load_policy()
    for other in loaded:
        assert other.act(batch).tolist() == policy.act(batch).tolist()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    address = read_daemon_address(workspace)
    assert address is not None
    with mosaic.connect(address.address, token=address.token) as remote:
        for run_id in (run.id, result.run.id):
            copied = remote.get_run(run_id).load_policy()
            assert copied.path.is_relative_to(tmp_path / "cache")
            assert copied.act(batch).tolist() == policy.act(batch).tolist()
        assert remote.get_run(run.id).evaluate(episodes=2).episodes == 2

    assert [one.id for one in mosaic.runs(group="ours")] == [run.id]
    comparison = mosaic.compare("ours")
    printed = json.loads(command(workspace, "compare", "ours", "--json").out)
    assert [group.final_return.point for group in comparison.statistics.groups] == [printed["groups"][0]["mean"]]
    for shown in (comparison, comparison.statistics, comparison.entries, comparison.scored_groups):
        assert "array" not in repr(shown)
    assert command(workspace, "daemon", "stop").code == 0
    assert mosaic.get_run(run.id).tag("second", remove=["first"]).note("well").view.tags == ("second",)


def test_a_session_is_played_and_simulated_again(client: mosaic.Client) -> None:
    """R9.6: from Python, an actor plays episodes of known seeds, which can be replayed exactly."""
    run = client.play(
        "FrozenLake-v1", episodes=3, seed=5, env_kwargs={"is_slippery": False}, tags=["chance"], wait=True
    )
    summary = run.summary
    assert isinstance(summary, PlaySummary)
    assert [episode.seed for episode in summary.episodes] == [5, 6, 7]
    assert summary.agents["*"].actor == "random"
    assert run.returns.tolist() == list(summary.agents["*"].returns)
    assert (run.view.kind, run.view.tags, run.status) == ("play", ("chance",), "succeeded")
    assert run.recording == run.folder / "recording.bin"
    assert [(report.episode, report.is_identical) for report in run.replay()] == [(0, True), (1, True), (2, True)]
    assert [report.episode for report in run.replay(1)] == [1]

    unrecorded = client.play("CartPole-v1", record=False, max_steps=5, wait=True)
    assert (unrecorded.recording, len(unrecorded.returns)) == (None, 1)
    with pytest.raises(mosaic.NotAllowed, match="recorded no episodes"):
        unrecorded.replay()
    with pytest.raises(mosaic.BadInput, match="only a window sends them"):
        client.play("CartPole-v1", "human")
    with pytest.raises(mosaic.BadInput, match="need an opponent"):
        client.play("CartPole-v1", opponent_options={"stochastic": True})
    with pytest.raises(mosaic.UnknownName, match=r"No actor 'radom'.*Did you mean 'random'"):
        client.play("CartPole-v1", "radom")
    assert len(client.runs()) == 2


def test_to_frame_names_the_missing_pandas(client: mosaic.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    run = client.submit(scripted(steps=5)).wait()
    frame = client.runs().to_frame()
    assert frame["run_id"].tolist() == [run.id]
    assert list(run.metrics().to_frame().columns) == ["tag", "step", "time", "value"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(mosaic.MissingExtra, match=r"pip install 'mosaic-rl\[pandas\]'"):
        client.runs().to_frame()


def test_a_refused_submission_raises_and_starts_nothing(client: mosaic.Client) -> None:
    with pytest.raises(mosaic.UnknownName, match="Did you mean 'ppo'"):
        client.train("pppo", "CartPole-v1")
    with pytest.raises(mosaic.ConfigRefused, match="learning_rate") as refused:
        client.train("ppo", "CartPole-v1", lerning_rate=1)
    assert refused.value.log_code == "LOG705"
    assert client.check("ppo", "CartPole-v1", total_timesteps=999).summary.total_timesteps == 999
    assert len(client.runs()) == 0
    with pytest.raises(mosaic.BadInput, match="'nowhere' is not known"):
        mosaic.connect(trainer="nowhere")


def test_a_failed_run_raises_its_reason(client: mosaic.Client) -> None:
    run = client.submit(scripted(exit=3))
    with pytest.raises(mosaic.RunEnded, match="exit code 3"):
        run.wait()
    assert run.status == "failed"


def test_ctrl_c_detaches_and_the_run_continues(client: mosaic.Client, capsys: pytest.CaptureFixture[str]) -> None:
    run = client.submit(scripted(steps=100_000, dt=0.01))
    wait_for(lambda: run.refresh().status == "running", "the run to start")
    with pytest.raises(TimeoutError, match="It continues"):
        run.wait(timeout=0.2)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert run.wait(timeout=60) is run
    assert "Detached from run" in capsys.readouterr().err
    assert run.refresh().status == "running"
    run.pause()
    wait_for(lambda: run.refresh().status == "paused", "the pause")
    run.resume()
    assert run.cancel().wait().status == "cancelled"
    run.delete()
    with pytest.raises(mosaic.UnknownName):
        run.refresh()


def test_a_client_finds_the_daemon_by_address_and_token(client: mosaic.Client, daemon: LiveDaemon) -> None:
    """R10.3: a trainer on another host."""
    said = json.loads(daemon.workspace.daemon_file.read_text())
    with mosaic.connect(said["address"], token=said["token"]) as remote:
        assert remote.status.pid == client.status.pid


def test_a_users_loop_is_a_run_with_curves_checkpoints_and_frames(client: mosaic.Client) -> None:
    """R11.2: a loop of the user's."""
    others = [client.submit(scripted(steps=100_000, dt=0.01)) for _ in range(4)]  # every slot is taken
    settings = {"env_id": "CartPole-v1", "seed": 0, "total_timesteps": 100, "lr": 0.1}
    with client.start_run("mine", settings, group="own", tags=["x"]) as run:
        assert (run.status, run.view.seed, run.view.env_id) == ("running", 0, "CartPole-v1")
        for step in range(1, 101):
            run.log({"loss": 1 / step}, step=step)
            if step % 10 == 0:
                run.log_episode(step, length=10, step=step)
            run.show_frame(np.zeros((8, 8, 3), np.uint8))
        path = run.save_checkpoint({"w": np.ones(3)}, step=100)
        wait_for(lambda: len(client.get_run(run.id).metrics("loss")) == 100, "the points to arrive")
    assert (run.status, run.view.global_step, run.view.episodes) == ("succeeded", 100, 10)
    assert path == run.folder / "checkpoints" / "100"
    assert {name: run.settings[name] for name in settings} == settings
    assert not [name for name in run.settings if "argv" in name]
    assert client.status.slots.busy == 4
    with pytest.raises(mosaic.NotAllowed, match="has been finished"):
        run.log({"loss": 0.0}, step=101)
    with pytest.raises(mosaic.NotAllowed, match=r"mosaic\.start_run"):
        run.resume(total_timesteps=200)
    for other in others:
        other.cancel().wait()


def test_a_metric_is_unknown_only_when_its_run_has_ended(client: mosaic.Client) -> None:
    run = client.submit(scripted(steps=100_000, dt=0.01))
    wait_for(lambda: len(run.metrics("scripted/step")) > 0, "the first point")
    assert len(run.metrics("scripted/later")) == 0, "An active run may still log it."
    run.cancel().wait()
    with pytest.raises(mosaic.UnknownName, match="scripted/step"):
        run.metrics("scripted/later")


def test_a_loop_that_raises_is_a_failed_run_and_a_cancelled_one_stops(client: mosaic.Client) -> None:
    with pytest.raises(ZeroDivisionError), client.start_run("bad") as failing:
        failing.log({"x": 1 / 0}, step=1)
    assert failing.status == "failed"
    assert "ZeroDivisionError: division by zero" in str(failing.view.reason)
    with client.start_run("stopped") as run:
        other = client.get_run(run.id)
        other.pause()
        wait_for(lambda: other.refresh().status == "paused", "the pause")
        other.resume()
        wait_for(lambda: other.refresh().status == "running", "the run to continue")
        other.cancel()
        wait_for(lambda: run.should_stop, "the request to stop")
    assert run.status == "cancelled"


def test_a_process_that_dies_ends_its_run(client: mosaic.Client, daemon: LiveDaemon) -> None:
    code = "import mosaic, os; mosaic.start_run('dies').log({'a': 1}, step=1); os._exit(0)"
    environment = {**os.environ, WORKSPACE_VARIABLE: str(daemon.workspace.root)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    with pytest.raises(mosaic.RunEnded, match="ended without finishing it"):
        client.get_run("last").wait()
