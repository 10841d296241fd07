"""The envpool algorithms with the real run handle and tiny networks.

Their games are those of a fake envpool that ends, resets and counts in the same way, and of envpool if it is installed.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.helpers import fake_envpool
from tests.helpers.algorithm_cases import Killed, assert_same_checkpoint, events, latest_checkpoint, train_run

from cleanrl_worker.algorithms import ppo_rnd_envpool
from cleanrl_worker.environments.envpool_games import EnvpoolGame, EnvpoolTask
from cleanrl_worker.evaluation.loading import env_maker
from cleanrl_worker.learners import ppo_kernels, value_kernels
from cleanrl_worker.learners.conv_network import ConvNetworkSizes
from cleanrl_worker.registry import load_algorithm
from mosaic.contracts.errors import MosaicError
from mosaic.worker.torch_files import save_state_dict

NAMES = ("ppo_atari_envpool", "pqn_atari_envpool", "ppo_rnd_envpool")
EACH = pytest.mark.parametrize("name", NAMES)
SMALL: dict[str, Any] = {
    "env_id": "Breakout-v5", "total_timesteps": 128, "checkpoint_every": 64, "num_envs": 2, "num_steps": 16,
    "num_minibatches": 2, "update_epochs": 2, "num_iterations_obs_norm_init": 1, "cuda": False,
}  # fmt: skip
TAGS = {
    "ppo_atari_envpool": (
        "value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "explained_variance",
    ),
    "pqn_atari_envpool": ("td_loss", "q_values"),
    "ppo_rnd_envpool": ("value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl", "fwd_loss"),
}  # fmt: skip
KINDS = {
    "ppo_atari_envpool": ["network", "actor", "critic"],
    "pqn_atari_envpool": ["network"],
    "ppo_rnd_envpool": ["network", "extra_layer", "actor", "critic_ext", "critic_int"],
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setattr(load_algorithm(name), "SIZES", ConvNetworkSizes((4, 4, 4), (8,)))
    monkeypatch.setattr(ppo_rnd_envpool, "FEATURES", 5)


@pytest.fixture(params=["fake", "envpool"])
def games(request: pytest.FixtureRequest) -> Iterator[str]:
    """The module that runs the games: the fake, or envpool itself."""
    if request.param == "fake":
        with fake_envpool.fake_envpool():
            yield request.param
        return
    if importlib.util.find_spec("envpool") is None:
        pytest.skip("envpool is not installed: pip install 'mosaic-rl[envpool]'")
    yield request.param


@pytest.fixture
def fake_pools() -> Iterator[list[fake_envpool.FakePool]]:
    with fake_envpool.fake_envpool() as pools:
        yield pools


def config_of(name: str, **changes: Any) -> Any:
    kind = load_algorithm(name).Config
    return kind(**{key: value for key, value in (SMALL | changes).items() if key in kind.model_fields})


@EACH
def test_equal_seeds_give_equal_weights_and_saving_changes_nothing(name: str, games: str, place: Path) -> None:
    train_run(place / "often", name, config_of(name))
    train_run(place / "once", name, config_of(name, checkpoint_every=10**6))
    train_run(place / "other", name, config_of(name, seed=2))
    assert_same_checkpoint(latest_checkpoint(place / "often"), latest_checkpoint(place / "once"))
    weights, other_weights = latest_checkpoint(place / "once").weights, latest_checkpoint(place / "other").weights
    assert any(weights[key].tobytes() != other_weights[key].tobytes() for key in weights)


@EACH
def test_a_killed_run_resumes_with_new_games_and_warns(name: str, games: str, place: Path) -> None:
    config = config_of(name, total_timesteps=192)
    uninterrupted = train_run(place / "straight", name, config)
    ended = []
    for number in range(2):
        path = place / f"killed {number}"
        with pytest.raises(Killed):
            train_run(path, name, config, kill_at=150)
        checkpoint = latest_checkpoint(path)
        assert checkpoint.step == 128
        run = train_run(path, name, config, checkpoint)
        ended.append((latest_checkpoint(path), run.episodes))
        (warning,) = events(path, "warning")
        assert warning["code"] == "resumed_inexactly"
        assert "envpool cannot restore games, so all 2 of them started again" in warning["text"]
    assert_same_checkpoint(ended[0][0], ended[1][0])
    assert ended[0][1] == ended[1][1]
    # Everything but the games is restored: the schedule, the optimizer, the random numbers.
    facts, complete = ended[0][0].facts, latest_checkpoint(place / "straight").facts
    for key in ("iteration", "learning_rate", "adam_count", "rng"):
        assert facts[key] == complete[key], key
    assert uninterrupted.global_step == 192


@EACH
def test_with_identical_games_a_resumed_run_equals_an_uninterrupted_one(
    name: str, fake_pools: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_envpool, "MAX_STEPS", 10**6)
    monkeypatch.setattr(fake_envpool, "MIN_LIFE_STEPS", 10**6)
    monkeypatch.setattr(fake_envpool.FakeGame, "_random_frame", lambda _: np.full((84, 84), 9, np.uint8))
    config = config_of(name)
    train_run(place / "straight", name, config)
    with pytest.raises(Killed):
        train_run(place / "killed", name, config, kill_at=100)
    train_run(place / "killed", name, config, latest_checkpoint(place / "killed"))
    uninterrupted, resumed = latest_checkpoint(place / "straight"), latest_checkpoint(place / "killed")
    for checkpoint in (uninterrupted, resumed):
        checkpoint.facts.pop("environments")
    assert_same_checkpoint(uninterrupted, resumed)


@EACH
@pytest.mark.parametrize("stop_at", [70, 96])
def test_a_stopped_run_resumes_from_before_the_interrupted_rollout(
    name: str, stop_at: int, fake_pools: Any, place: Path
) -> None:
    run = train_run(place / "stopped", name, config_of(name, checkpoint_every=10**6), stop_at=stop_at)
    assert run.global_step == latest_checkpoint(place / "stopped").step == 64


@EACH
def test_a_stop_during_an_update_abandons_it_even_the_last_one(name: str) -> None:
    updates = []

    class Learner:
        def compute_target_features(self, first: int) -> None:
            pass

        def update(self, *rows: Any) -> None:
            updates.append(rows)

    class Stopping:
        stop_requested = False

        def update(self, step: int) -> None:
            self.stop_requested = bool(updates)

    module = load_algorithm(name)
    games = SimpleNamespace(action_space=gymnasium.spaces.Discrete(3), shape=(4, 84, 84))
    training: Any = module.Training(config_of(name), Stopping(), games, module.Agent(3))
    training.learner, training.global_step = Learner(), 64
    assert not training.update()
    assert len(updates) == 1
    training.global_step = 128
    assert not training.update()
    assert len(updates) <= 2


def test_rnd_can_be_stopped_before_its_initial_statistics_are_collected(fake_pools: Any, place: Path) -> None:
    config = config_of("ppo_rnd_envpool")
    train_run(place / "run", "ppo_rnd_envpool", config, stop_at=0)
    first = latest_checkpoint(place / "run")
    assert first.step == 0
    assert first.facts["looks"] < 1
    train_run(place / "run", "ppo_rnd_envpool", config, first)
    # The initial random actions, and then the frames seen in training.
    assert latest_checkpoint(place / "run").facts["looks"] == pytest.approx(32 + 128, abs=0.01)


@EACH
def test_everything_is_logged_under_cleanrls_tags(name: str, games: str, place: Path) -> None:
    # Long enough for a whole game.
    run = train_run(place / "run", name, config_of(name, total_timesteps=640, num_steps=160))
    series = {tag for event in events(place / "run", "metrics") for tag in event["series"]}
    expected = {
        "charts/learning_rate",
        "charts/SPS",
        "charts/avg_episodic_return",
        *(f"losses/{t}" for t in TAGS[name]),
    }
    assert expected <= series
    assert {tag for tag in series if tag.startswith("losses/")} == {f"losses/{tag}" for tag in TAGS[name]}
    assert ("charts/episode_curiosity_reward" in series) == (name == "ppo_rnd_envpool")
    assert run.episodes != []
    assert all(length > 5 for *_, length in run.episodes)


@EACH
def test_a_truncated_game_is_bootstrapped_and_a_terminated_one_is_not(
    name: str, fake_pools: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    kernels, function = (
        (value_kernels, "q_lambda_returns") if name == "pqn_atari_envpool" else (ppo_kernels, "gae_advantages")
    )
    original = getattr(kernels, function)

    def record_advantages(rewards: Any, values: Any, dones: Any, *more: Any) -> Any:
        calls.append((rewards.copy(), dones.copy()))
        return original(rewards, values, dones, *more)

    monkeypatch.setattr(kernels, function, record_advantages)
    monkeypatch.setattr(fake_envpool, "MAX_STEPS", 6)
    monkeypatch.setattr(fake_envpool, "MIN_LIFE_STEPS", 100)
    changes = {"num_steps": 16, "total_timesteps": 32, "gamma": 1.0, "num_iterations_obs_norm_init": 3}
    train_run(place / "run", name, config_of(name, **changes))
    rewards, dones = calls[0]
    assert dones.any(0).all()
    assert all(reward not in (0.0, 1.0) for reward in rewards[dones]), "the value of what would have followed is there"
    assert set(rewards[~dones]) <= {0.0, 1.0}
    if name == "ppo_rnd_envpool":
        _, no_ends = calls[1]
        assert not no_ends.any(), "intrinsic returns continue through all games"


@EACH
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    name: str, fake_pools: Any, place: Path
) -> None:
    config = config_of(name, total_timesteps=10_000)
    train_run(place / "run", name, config, stop_at=64)
    checkpoint = latest_checkpoint(place / "run")
    arrays = {**checkpoint.weights, "network.0.weight": np.full_like(checkpoint.weights["network.0.weight"], 3e38)}
    broken = dataclasses.replace(checkpoint, weights=arrays)
    with pytest.raises(MosaicError, match="became infinite or NaN"):
        train_run(place / "run", name, config, broken)
    assert latest_checkpoint(place / "run").step == checkpoint.step
    assert {event["step"] for event in events(place / "run", "anomaly")} == {checkpoint.step + 32}


@EACH
def test_a_reward_that_is_not_finite_is_reported_at_its_step(
    name: str, fake_pools: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, earlier_calls = fake_envpool.FakePool._results, 16 if name == "ppo_rnd_envpool" else 0
    calls = []

    def nan_once(pool: Any, chosen: Any, rewards: Any) -> Any:
        observations, clipped, *rest = original(pool, chosen, rewards)
        if len(chosen) == 2 and len(rewards) == 2:
            calls.append(1)
            if len(calls) == 1 + earlier_calls + 10 + _resets(pool):
                clipped = clipped * np.nan
        return observations, clipped, *rest

    def _resets(pool: Any) -> int:
        """Count the extra calls for games that ended in the same step."""
        return len(calls) - 1 - len(pool.games[0].actions)

    monkeypatch.setattr(fake_envpool.FakePool, "_results", nan_once)
    with pytest.raises(MosaicError, match=f"{name} stopped at step 20: reward became infinite"):
        train_run(place / "run", name, config_of(name))
    assert [(event["tag"], event["step"]) for event in events(place / "run", "anomaly")] == [("reward", 20)]


@EACH
def test_a_checkpoint_is_evaluated_in_whole_games_and_saved_as_cleanrl_would(
    name: str, games: str, place: Path
) -> None:
    import torch

    module = load_algorithm(name)
    train_run(place / "run", name, config_of(name, total_timesteps=64))
    checkpoint = latest_checkpoint(place / "run")
    game = env_maker(name)("Breakout-v5")
    assert isinstance(game, EnvpoolGame)
    assert game._task == EnvpoolTask("Breakout-v5", module.STICKINESS)
    policy = module.load_policy(checkpoint)
    observation, _ = game.reset(seed=1)
    for deterministic in (True, False):
        chosen = policy.act(np.stack([observation] * 8), deterministic, np.random.default_rng(0))
        assert chosen.shape == (8,)
        assert set(chosen.tolist()) <= set(range(4))
    assert len(set(policy.act(np.stack([observation] * 8), True, np.random.default_rng(0)).tolist())) == 1
    with pytest.raises(ValueError, match="expected"):
        policy.act(np.zeros((1, 210, 160, 3), np.uint8), True, np.random.default_rng(0))
    game.close()

    model = place / f"{name}.cleanrl_model"
    save_state_dict(model, module.state_dict_of(checkpoint))
    state = torch.load(model, weights_only=True)
    assert list(dict.fromkeys(key.partition(".")[0] for key in state)) == KINDS[name]
    # The model that is saved for CleanRL is enough to act.
    alone = dataclasses.replace(checkpoint, weights={key: part.numpy() for key, part in state.items()})
    observations = np.stack([observation] * 8)
    rngs = np.random.default_rng(0), np.random.default_rng(0)
    assert (
        module.load_policy(alone).act(observations, False, rngs[0]) == policy.act(observations, False, rngs[1])
    ).all()


@EACH
def test_the_dry_run_lists_what_the_run_will_use(name: str, games: str) -> None:
    module = load_algorithm(name)
    game = module.make_env("Breakout-v5")
    facts = module.check(config_of(name), game)
    game.close()
    assert (facts["actions"], facts["observations"], facts["backend"]) == (4, [4, 84, 84], "torch")


def test_an_update_stops_at_the_target_kl(fake_pools: Any, place: Path) -> None:
    for name in ("ppo_atari_envpool", "ppo_rnd_envpool"):
        changes = {"total_timesteps": 32, "target_kl": 1e-12, "learning_rate": 0.01}
        train_run(place / name, name, config_of(name, **changes))
        assert latest_checkpoint(place / name).facts["adam_count"] == 2


def test_envpool_behaves_like_the_fake() -> None:
    pytest.importorskip("envpool", reason="envpool is not installed: pip install 'mosaic-rl[envpool]'")
    next_values = {}
    for ignored in (0, 3):
        pool, rng = EnvpoolTask("Breakout-v5", 0.0).make_pool([1, 2], 1), np.random.default_rng(0)
        observations, _ = pool.reset()
        ends = np.zeros(2, bool)
        while not ends.any():
            previous = observations
            observations, rewards, ends, cuts, info = pool.step(rng.integers(4, size=2))
            assert not cuts.any()
            assert (rewards == np.sign(info["reward"])).all()
        ended = np.flatnonzero(ends).astype(np.int32)
        assert (observations[ended, :3] == previous[ended, 1:]).all(), (
            "what is seen at an end belongs to what has ended"
        )
        assert set(info["lives"][ended]) == {4}
        assert not info["terminated"].any(), "a life ends, and the game continues"
        after, _, ends, _, info = pool.step(np.full(len(ended), ignored), ended)
        assert len(after) == len(ended), "only the games that are named are stepped"
        assert not ends.any()
        assert (after[:, :3] == observations[ended, 1:]).all()
        assert info["lives"].tolist() == [4] * len(ended)
        next_values[ignored] = after.tobytes()
        pool.reset(ended)
    assert next_values[0] == next_values[3], "the action of a step that resets counts for nothing"
