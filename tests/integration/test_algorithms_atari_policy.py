"""PPO for Atari games, without and with an LSTM, with the real run handle and tiny networks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.helpers.algorithm_cases import Killed, assert_same_checkpoint, events, latest_checkpoint, train_run

pytest.importorskip("ale_py")

from cleanrl_worker.algorithms import ppo_atari_lstm
from cleanrl_worker.environments import atari as atari_envs
from cleanrl_worker.learners import ppo_kernels
from cleanrl_worker.learners.conv_network import ConvNetworkSizes
from cleanrl_worker.registry import load_algorithm
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.worker.envs import make
from mosaic.worker.envs.atari import AtariEnv
from mosaic.worker.evaluation import evaluate
from mosaic.worker.torch_files import save_state_dict

NAMES = ("ppo_atari", "ppo_atari_lstm")
EACH = pytest.mark.parametrize("name", NAMES)
SMALL: dict[str, Any] = {
    "total_timesteps": 128, "checkpoint_every": 64, "num_envs": 2, "num_steps": 16, "num_minibatches": 2,
    "update_epochs": 2, "cuda": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setattr(load_algorithm(name), "SIZES", ConvNetworkSizes((4, 4, 4), (8,)))
    monkeypatch.setattr(ppo_atari_lstm, "LSTM_UNITS", 6)


def config_of(name: str, **changes: Any) -> Any:
    return load_algorithm(name).Config(**{**SMALL, **changes})


@EACH
def test_a_killed_run_that_is_resumed_ends_as_if_it_had_not_been(name: str, place: Path) -> None:
    # Long enough for whole games before and after the kill.
    config = config_of(name, total_timesteps=832, checkpoint_every=256)
    uninterrupted = train_run(place / "straight", name, config)
    with pytest.raises(Killed):
        train_run(place / "killed", name, config, kill_at=600)
    checkpoint = latest_checkpoint(place / "killed")
    assert checkpoint.step == 512

    resumed = train_run(place / "killed", name, config, checkpoint)

    assert_same_checkpoint(latest_checkpoint(place / "straight"), latest_checkpoint(place / "killed"))
    assert latest_checkpoint(place / "killed").step == 832
    assert resumed.episodes == [episode for episode in uninterrupted.episodes if episode[1] > checkpoint.step] != []
    assert all(length > 400 for _, _, _, length in uninterrupted.episodes), "a length is in frames, of a whole game"
    assert events(place / "killed", "warning") == []


@EACH
def test_equal_seeds_give_equal_weights_and_saving_changes_nothing(name: str, place: Path) -> None:
    train_run(place / "often", name, config_of(name))
    train_run(place / "once", name, config_of(name, checkpoint_every=10**6))
    train_run(place / "other", name, config_of(name, seed=2))
    assert_same_checkpoint(latest_checkpoint(place / "often"), latest_checkpoint(place / "once"))
    weights, other_weights = latest_checkpoint(place / "once").weights, latest_checkpoint(place / "other").weights
    assert any(weights[key].tobytes() != other_weights[key].tobytes() for key in weights)


@EACH
@pytest.mark.parametrize("stop_at", [70, 96])
def test_a_stopped_run_resumes_from_before_the_interrupted_rollout(name: str, stop_at: int, place: Path) -> None:
    config = config_of(name, checkpoint_every=10**6)
    train_run(place / "straight", name, config)
    run = train_run(place / "stopped", name, config, stop_at=stop_at)
    stopped = latest_checkpoint(place / "stopped")
    assert run.global_step == stopped.step == 64
    train_run(place / "stopped", name, config, stopped)
    assert_same_checkpoint(latest_checkpoint(place / "straight"), latest_checkpoint(place / "stopped"))


@EACH
def test_a_stop_during_an_update_abandons_it_even_the_last_one(name: str, place: Path) -> None:
    module = load_algorithm(name)
    config = config_of(name)
    updates = []

    class Learner:
        def update(self, rows: Any) -> None:
            updates.append(rows)

    class Stopping:
        stop_requested = False

        def update(self, step: int) -> None:
            self.stop_requested = True

    games = SimpleNamespace(action_space=gymnasium.spaces.Discrete(3), shape=(1, 84, 84))
    training: Any = module.Training(config, Stopping(), games, module.Agent(3))
    training.learner, training.global_step = Learner(), 64
    assert not training.update()
    assert len(updates) == 1
    training.global_step = 128
    assert not training.update()
    assert len(updates) == 2


@EACH
def test_everything_is_logged_under_cleanrls_tags(name: str, place: Path) -> None:
    config = config_of(name, total_timesteps=64)
    train_run(place / "run", name, config)
    series = {tag for event in events(place / "run", "metrics") for tag in event["series"]}
    losses = ("value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "explained_variance")
    assert {"charts/learning_rate", "charts/SPS", *(f"losses/{name}" for name in losses)} <= series


@EACH
def test_an_update_stops_at_the_target_kl(name: str, place: Path) -> None:
    train_run(place / "all", name, config_of(name, total_timesteps=32))
    train_run(place / "some", name, config_of(name, total_timesteps=32, target_kl=1e-12, learning_rate=0.01))
    assert latest_checkpoint(place / "all").facts["adam_count"] == 4
    assert latest_checkpoint(place / "some").facts["adam_count"] == 2


@EACH
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(name: str, place: Path) -> None:
    config = config_of(name, total_timesteps=10_000, learning_rate=0.9, max_grad_norm=1e30, ent_coef=10, vf_coef=100)
    train_run(place / "run", name, config, stop_at=64)
    checkpoint = latest_checkpoint(place / "run")
    arrays = {**checkpoint.weights, "network.0.weight": np.full_like(checkpoint.weights["network.0.weight"], 3e38)}
    broken = dataclasses.replace(checkpoint, weights=arrays)
    with pytest.raises(MosaicError, match="became infinite or NaN"):
        train_run(place / "run", name, config, broken)
    assert latest_checkpoint(place / "run").step == checkpoint.step
    assert events(place / "run", "anomaly") != []


@EACH
def test_a_truncated_game_is_bootstrapped_and_a_terminated_one_is_not(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(name, total_timesteps=32, num_envs=2, gamma=1.0, gae_lambda=1.0)
    calls: list[Any] = []
    original = ppo_kernels.gae_advantages
    steps = {"count": 0}
    step = AtariEnv.step

    def truncate_sixth_step(game: AtariEnv, action: Any) -> Any:
        observation, reward, is_terminal, is_truncated, info = step(game, action)
        steps["count"] += 1
        if steps["count"] == 11:  # the sixth step of the first game
            game._is_game_over = True
            return observation, reward, False, True, info
        return observation, reward, is_terminal, is_truncated, info

    def record_advantages(rewards: Any, values: Any, dones: Any, *more: Any) -> Any:
        calls.append((rewards.copy(), values.copy(), dones.copy()))
        return original(rewards, values, dones, *more)

    monkeypatch.setattr(AtariEnv, "step", truncate_sixth_step)
    monkeypatch.setattr(ppo_kernels, "gae_advantages", record_advantages)
    train_run(place / "run", name, config)
    rewards, values, dones = calls[0]
    assert dones[5, 0]
    # The value of the true next observation, near that of the previous step; not that of the next game's start.
    assert rewards[5, 0] == pytest.approx(values[5, 0], abs=0.05)
    assert rewards[5, 0] not in (0.0, 1.0)


@EACH
def test_a_checkpoint_is_evaluated_in_whole_games_and_saved_as_cleanrl_would(name: str, place: Path) -> None:
    import torch

    module = load_algorithm(name)
    train_run(place / "run", name, config_of(name, total_timesteps=64))
    checkpoint = latest_checkpoint(place / "run")

    def evaluate_policy(deterministic: bool) -> list[float]:
        policy = module.load_policy(checkpoint)
        maker: Any = lambda: atari_envs.make_evaluation_env("PongNoFrameskip-v4")  # noqa: E731
        limit = iter(range(40))
        seen: list[float] = []

        class RecordingPolicy:
            def act(self, observations: Any, is_deterministic: bool, rng: Any) -> Any:
                chosen = policy.act(observations, is_deterministic, rng)
                seen.extend(chosen.tolist())
                return chosen

        evaluate(RecordingPolicy(), maker, [1, 2], deterministic, on_step=lambda _: next(limit, None) is not None)
        return seen

    assert evaluate_policy(True) == evaluate_policy(True)
    assert set(evaluate_policy(False)) <= set(range(4))
    with pytest.raises(ValueError, match="expected"):
        module.load_policy(checkpoint).act(np.zeros((1, 210, 160, 3), np.uint8), True, np.random.default_rng(0))
    model = place / f"{name}.cleanrl_model"
    save_state_dict(model, module.state_dict_of(checkpoint))
    state = torch.load(model, weights_only=True)
    kinds = list(dict.fromkeys(key.partition(".")[0] for key in state))
    assert kinds == (["network", "actor", "critic"] if name == "ppo_atari" else ["network", "lstm", "actor", "critic"])
    assert list(state)[:2] == ["network.0.weight", "network.0.bias"]


@EACH
def test_only_atari_games_are_accepted(name: str) -> None:
    module = load_algorithm(name)
    with pytest.raises(BadInput, match=rf"{name} needs an Atari game; CartPole-v1 is not one. These fit: ppo"):
        module.check(config_of(name), gymnasium.make("CartPole-v1"))
    env = make("BreakoutNoFrameskip-v4")
    facts = module.check(config_of(name), env)
    env.close()
    assert facts["actions"] == 4
    assert facts["backend"] == "torch"


def test_recurrent_ppo_requires_environments_divisible_by_minibatches() -> None:
    with pytest.raises(ValueError, match="cannot be split into num_minibatches = 4"):
        ppo_atari_lstm.Config(num_envs=6)
    assert ppo_atari_lstm.Config().minibatch_size == 256
