"""Wrappers through the life of a training: resumed, recorded, evaluated, played; wrappers of one's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.algorithm_cases import Killed, assert_same_checkpoint, events, latest_checkpoint, train_run
from tests.helpers.commands import mosaic
from tests.helpers.daemons import LiveDaemon, ended

import mosaic as mosaic_api
from cleanrl_worker.registry import load_algorithm
from mosaic.base.run_payloads import build_train_payload
from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import Workspace
from mosaic.features.evaluate.api import evaluation_payload
from mosaic.features.play.core import build_play_payload
from mosaic.features.replay.api import replay_episodes
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.evaluation_batches import first_evaluation_seed

EVERY_STATE = ["frame-stack(stack_size=2)", "flatten", "normalize-observation", "normalize-reward"]
OWN_WRAPPERS = """
import gymnasium

class Sticky(gymnasium.Wrapper):
    def __init__(self, env, probability):
        super().__init__(env)
        self._probability = probability

    def reset(self, **options):
        self._last = None
        return super().reset(**options)

    def step(self, action):
        if self._last is not None and self.np_random.random() < self._probability:
            action = self._last
        self._last = action
        return super().step(action)

class Cheer(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward + 100.0
"""
OWN_ENVS = """
import gymnasium
gymnasium.register("Own-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv", max_episode_steps=30)
"""
SETTINGS: dict[str, Any] = {"total_timesteps": 256, "seed": 1, "num_envs": 2, "num_steps": 32}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo", {"num_envs": 2, "num_steps": 32, "total_timesteps": 1280, "checkpoint_every": 256}),
        ("dqn", {"num_envs": 2, "total_timesteps": 1280, "checkpoint_every": 256, "learning_starts": 100}),
    ],
)
def test_a_run_with_wrappers_that_is_resumed_ends_as_if_it_had_not_been_killed(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Statistics of normalizing wrappers are restored, and the frames of a stack."""
    config = load_algorithm(name).Config(**settings, wrappers=EVERY_STATE)
    uninterrupted = train_run(tmp_path / "straight", name, config)
    with pytest.raises(Killed):
        train_run(tmp_path / "killed", name, config, kill_at=700)
    checkpoint = latest_checkpoint(tmp_path / "killed")
    assert 512 <= checkpoint.step < 700
    resumed = train_run(tmp_path / "killed", name, config, checkpoint)
    assert_same_checkpoint(latest_checkpoint(tmp_path / "straight"), latest_checkpoint(tmp_path / "killed"))
    assert resumed.episodes == [episode for episode in uninterrupted.episodes if episode[1] > checkpoint.step]
    assert all(earned == length for _, _, earned, length in uninterrupted.episodes), "rewards of CartPole itself"
    assert events(tmp_path / "killed", "warning") == []


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_wrappers_in_several_processes_give_equal_results(name: str, tmp_path: Path) -> None:
    """The learner's rewards come from the processes; what all environments share stays in one."""
    wrappers = ["frame-stack(stack_size=2)", "reward-scale(scale=0.1)"]
    settings: dict[str, Any] = {"num_envs": 3, "total_timesteps": 384, "wrappers": wrappers}
    settings |= {"num_steps": 32} if name == "ppo" else {"learning_starts": 100}
    for processes in (1, 2):
        train_run(tmp_path / f"{processes}", name, load_algorithm(name).Config(**settings, env_processes=processes))
    assert_same_checkpoint(latest_checkpoint(tmp_path / "1"), latest_checkpoint(tmp_path / "2"))


def test_an_environment_of_ones_own_is_trained_from_python(
    daemon: LiveDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.14: environments and wrappers in Python."""
    (tmp_path / "my_envs.py").write_text(OWN_ENVS)
    monkeypatch.delitem(sys.modules, "my_envs", raising=False)  # of another test in this process
    monkeypatch.chdir(tmp_path)
    with mosaic_api.connect(daemon.workspace.root) as client:
        run = client.train("ppo", "my_envs:Own-v0", wrappers=["frame-stack(stack_size=2)"], **SETTINGS).wait()
        assert (run.status, run.evaluate(episodes=2).episodes) == ("succeeded", 2)
        policy = run.load_policy()
    assert policy.observation_shape == (2, 4)


def test_wrappers_last_from_the_training_to_the_evaluation_and_the_replay(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.14: wrappers and an environment of one's own, found from the folder of the command, and frame-stack."""
    (tmp_path / "my_wrappers.py").write_text(OWN_WRAPPERS)
    (tmp_path / "my_envs.py").write_text(OWN_ENVS)
    monkeypatch.chdir(tmp_path)
    trained = mosaic(
        workspace, "train", "ppo", "--env-id", "my_envs:Own-v0", "--total-timesteps", "256", "--num-envs", "2",
        "--num-steps", "32", "--record-episodes", "--json", "--wrapper", "my_wrappers:Sticky(probability=0.25)",
        "--wrapper", "my_wrappers:Cheer, frame-stack(stack_size=2)", "--wrapper", "normalize-observation",
    )  # fmt: skip
    assert trained.code == 0, trained.err
    run_id = trained.json["run_id"]
    monkeypatch.chdir("/")

    episodes = list(trainer.episodes(run_id))
    assert episodes
    assert all(episode.episodic_return == episode.length for episode in episodes), "without the reward of Cheer"
    recording = trainer.open_file(run_id, "recording.bin")
    assert all(report.is_identical for report in replay_episodes(recording))

    trainer.resume(run_id, 512)
    assert ended(trainer, run_id).outcome == "succeeded"
    payload = evaluation_payload(trainer, run_id, {"eval_batch_size": 3, "record_episodes": True})
    evaluation = ended(trainer, trainer.submit(payload).run_id)
    assert evaluation.outcome == "succeeded", evaluation
    evaluated = list(trainer.episodes(evaluation.run_id))
    assert len(evaluated) == 3
    evaluated_seed = first_evaluation_seed(1)
    assert all(episode.episodic_return == episode.length for episode in evaluated)
    recording = trainer.open_file(evaluation.run_id, "recording.bin")
    assert all(report.is_identical for report in replay_episodes(recording))
    actors = {"*": f"policy:{run_id}"}
    session = build_play_payload(trainer, "my_envs:Own-v0", actors, {"episodes": 2, "seed": evaluated_seed})
    played = ended(trainer, trainer.submit(session).run_id)
    assert played.outcome == "succeeded", played
    lengths = [episode.length for episode in trainer.episodes(played.run_id)]
    assert lengths == [episode.length for episode in evaluated[:2]], "it acts as in the evaluation"
    session["metadata"]["worker"]["config"]["wrappers"] = []
    with pytest.raises(BadInput, match=r"was trained with other wrappers \(.*Sticky.*\) than the session has \(none"):
        trainer.check(session)
    # As it was trained: the statistics are those of the checkpoint, and equal seeds give equal episodes. Where its
    # modules are is known from its run, whoever asks.
    del payload["metadata"]["worker"]["imports"]
    again = ended(trainer, trainer.submit(payload).run_id)
    assert [episode.length for episode in trainer.episodes(again.run_id)] == [episode.length for episode in evaluated]


@pytest.mark.parametrize(
    ("algo", "settings", "problem"),
    [
        ("ppo", {"wrappers": ["frame-stak"]}, "wrappers: No wrapper 'frame-stak'. Did you mean 'frame-stack'"),
        ("ppo", {"wrappers": ["frame-stack(4)"]}, "wrappers.* expected arguments as name=value with plain values"),
        ("ppo", {"wrappers": "flatten"}, "wrappers"),
        (
            "ppo",
            {"wrappers": ["normalize-reward"], "env_processes": 2},
            "env_processes: normalizing wrappers need all environments in one process",
        ),
        ("ppo", {"wrappers": ["nothing_here:Own"]}, "wrappers: there is no module 'nothing_here'"),
        ("dqn", {"wrappers": ["rescale-action"]}, "wrappers: rescale-action cannot be put around CartPole-v1"),
        (
            "ppo_continuous_action",
            {"env_id": "Pendulum-v1", "wrappers": ["normalize-reward"]},
            "wrappers: ppo_continuous_action normalizes observations and rewards itself",
        ),
        (
            "ppo_atari",
            {"env_id": "ALE/Pong-v5", "wrappers": ["time-limit(max_episode_steps=9)"]},
            "have their own preprocessing",
        ),
    ],
)
def test_wrappers_that_do_not_fit_are_refused_before_the_start(
    trainer: TrainerClient, algo: str, settings: dict[str, Any], problem: str
) -> None:
    payload = build_train_payload("cleanrl", algo, {"env_id": "CartPole-v1", **settings}, {})
    with pytest.raises(BadInput, match=problem) as raised:
        trainer.check(json.loads(json.dumps(payload)))
    setting = raised.value.problems[0].path.removeprefix("metadata.worker.config.algo_params.")
    assert setting.startswith(("wrappers", "env_processes"))
