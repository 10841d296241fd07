"""The Atari algorithms with a replay buffer, with the real run handle and tiny networks and buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.helpers.algorithm_cases import Killed, assert_same_checkpoint, events, latest_checkpoint, train_run

pytest.importorskip("ale_py")

from cleanrl_worker.learners import torch_replay
from cleanrl_worker.learners.conv_network import ConvNetworkSizes
from cleanrl_worker.registry import load_algorithm
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.worker.envs.atari import AtariEnv

SMALL: dict[str, Any] = {
    "total_timesteps": 240, "checkpoint_every": 64, "buffer_size": 120, "batch_size": 4, "learning_starts": 60,
    "target_network_frequency": 40, "cuda": False,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "c51_atari": {"n_atoms": 11, "exploration_fraction": 0.5},
    "dqn_atari": {"exploration_fraction": 0.5, "tau": 0.9},
    "rainbow_atari": {"n_atoms": 11},
    "sac_atari": {"env_id": "BreakoutNoFrameskip-v4"},
}
TAGS = {
    "dqn_atari": {"losses/td_loss", "losses/q_values", "charts/SPS"},
    "c51_atari": {"losses/loss", "losses/q_values", "charts/SPS"},
    "rainbow_atari": {"losses/td_loss", "losses/q_values", "charts/SPS", "charts/beta"},
    "sac_atari": {
        *(f"losses/{tag}" for tag in ("qf1_values", "qf2_values", "qf1_loss", "qf2_loss", "qf_loss", "actor_loss")),
        "losses/alpha", "losses/alpha_loss", "charts/SPS",
    },
}  # fmt: skip
EACH = pytest.mark.parametrize("name", sorted(MORE))


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MORE:
        monkeypatch.setattr(load_algorithm(name), "SIZES", ConvNetworkSizes((4, 4, 4), (8,)))


def config_of(name: str, **changes: Any) -> Any:
    return load_algorithm(name).Config(**{**SMALL, **MORE[name], **changes})


@EACH
def test_a_killed_run_that_is_resumed_ends_as_if_it_had_not_been(name: str, place: Path) -> None:
    config = config_of(name)
    uninterrupted = train_run(place / "straight", name, config)
    with pytest.raises(Killed):
        train_run(place / "killed", name, config, kill_at=170)
    checkpoint = latest_checkpoint(place / "killed")
    assert checkpoint.step == 128
    assert checkpoint.facts["adam_count"] > 10

    resumed = train_run(place / "killed", name, config, checkpoint)

    assert_same_checkpoint(latest_checkpoint(place / "straight"), latest_checkpoint(place / "killed"))
    assert latest_checkpoint(place / "killed").step == 240
    assert resumed.episodes == [episode for episode in uninterrupted.episodes if episode[1] > checkpoint.step]
    assert events(place / "killed", "warning") == []


@EACH
def test_it_logs_cleanrls_tags_and_stops_on_request(name: str, place: Path) -> None:
    config = config_of(name, checkpoint_every=10**6)
    train_run(place / "run", name, config, stop_at=206)
    last = latest_checkpoint(place / "run")
    assert 206 <= last.step <= 208
    tags = {tag for event in events(place / "run", "metrics") for tag in event["series"]}
    assert tags >= TAGS[name]
    assert all(np.isfinite(weight).all() for weight in last.weights.values())


@EACH
def test_a_policy_acts_on_images_and_the_model_equals_the_checkpoint(name: str, place: Path) -> None:
    train_run(place / "run", name, config_of(name, total_timesteps=80))
    checkpoint = latest_checkpoint(place / "run")
    policy = load_algorithm(name).load_policy(checkpoint)
    rng = np.random.default_rng(0)
    observations = rng.integers(256, size=(5, 4, 84, 84), dtype=np.uint8)
    first = policy.act(observations, True, rng)
    assert first.shape == (5,)
    assert (policy.act(observations, True, rng) == first).all()
    assert set(policy.act(observations, False, rng).tolist()) <= set(range(4))
    with pytest.raises(ValueError, match="expected"):
        policy.act(observations[:, :3], True, rng)
    checkpoint.facts["algorithm"] = "another"
    with pytest.raises(BadInput, match="was saved by 'another'"):
        load_algorithm(name).load_policy(checkpoint)


@EACH
def test_a_loss_that_is_not_finite_is_reported_and_never_saved(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = torch_replay.ReplayFeed.stage_columns, []

    def poison(self: Any) -> None:
        calls.append(self)
        if len(calls) == 8:
            self.batch.rewards[0] = np.nan
        original(self)

    monkeypatch.setattr(torch_replay.ReplayFeed, "stage_columns", poison)
    with pytest.raises(MosaicError, match=r"stopped at step 92: losses/.*learning_rate"):
        train_run(place / "run", name, config_of(name, checkpoint_every=4))
    assert {event["step"] for event in events(place / "run", "anomaly")} == {92}
    last = latest_checkpoint(place / "run")
    assert last.step == 88
    assert all(np.isfinite(weight).all() for weight in last.weights.values())


@EACH
def test_a_replay_buffer_that_was_not_saved_is_filled_again(name: str, place: Path) -> None:
    config = config_of(name, checkpoint_replay_mb=0.001)
    train_run(place / "run", name, config, stop_at=100)
    stopped = latest_checkpoint(place / "run")
    assert not any(key.startswith("replay.") for key in stopped.arrays)
    train_run(place / "run", name, config, stopped)
    (warning,) = events(place / "run", "warning")
    assert "checkpoint_replay_mb" in warning["text"]
    assert latest_checkpoint(place / "run").step == 240


@EACH
def test_unsupported_spaces_are_refused(name: str) -> None:
    cartpole = gymnasium.make("CartPole-v1")
    with pytest.raises(BadInput, match=f"{name} needs an Atari game; CartPole-v1 is not one. These fit: ppo, dqn"):
        load_algorithm(name).check(config_of(name), cartpole)
    game = gymnasium.make("BreakoutNoFrameskip-v4")
    facts = load_algorithm(name).check(config_of(name), game)
    assert facts["actions"] == 4
    assert facts["backend"] == "torch"
    with pytest.raises(BadInput, match=r"needs .* GB for its replay buffer"):
        load_algorithm(name).check(config_of(name, buffer_size=10**12, total_timesteps=10**12), game)
    game.close()


@EACH
def test_the_bootstrap_value_of_a_truncated_game_uses_its_last_images(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames show the age of a game, which is truncated after 9 steps; no next observation may be a first frame."""
    played: dict[Any, int] = {}

    def reset(self: AtariEnv, **options: Any) -> Any:
        played[self] = 1
        self._is_game_over = False
        return np.full((4, 84, 84), 1, np.uint8), {}

    def step(self: AtariEnv, action: Any) -> Any:
        played[self] += 1
        self._is_game_over = is_cut = played[self] == 10
        ages = np.maximum(played[self] - np.arange(3, -1, -1), 1)
        return np.broadcast_to(ages[:, None, None], (4, 84, 84)).astype(np.uint8), 1.0, False, is_cut, {}

    monkeypatch.setattr(AtariEnv, "reset", reset)
    monkeypatch.setattr(AtariEnv, "step", step)
    original, drawn = torch_replay.ReplayFeed.stage_columns, set()

    def watched(self: Any) -> None:
        batch = self.batch
        assert not batch.terminals.any()
        for now, later in zip(batch.observations[:, -1, 0, 0], batch.next_observations[:, -1, 0, 0], strict=True):
            drawn.add((int(now), int(later)))
        original(self)

    monkeypatch.setattr(torch_replay.ReplayFeed, "stage_columns", watched)
    train_run(place / "run", name, config_of(name, batch_size=16))
    ahead = 3 if name == "rainbow_atari" else 1
    expected = {(age, min(age + ahead, 10)) for age in range(1, 10)}
    # The latest steps have shorter n-step returns.
    latest_steps = {(age, later) for age in range(1, 10) for later in range(age + 1, age + ahead)}
    assert expected <= drawn <= expected | latest_steps
