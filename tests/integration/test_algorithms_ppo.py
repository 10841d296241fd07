"""PPO and RPO with the real run handle: common checks for each, then special ones."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.helpers.algorithm_cases import (
    Corridor,
    Killed,
    NanRewardEnv,
    assert_same_checkpoint,
    events,
    latest_checkpoint,
    open_run,
    register_env,
    train_run,
)

from cleanrl_worker import registry
from cleanrl_worker.algorithms import a2c, ppo, ppo_continuous_action, ppo_lstm, ppo_trxl, rpo_continuous_action
from cleanrl_worker.environments.normalization import RewardNormalizer
from cleanrl_worker.learners import ppo_kernels
from cleanrl_worker.learners.ppo_network import PpoActor, PpoNetwork
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.folder import RunFolder
from mosaic.worker.checkpoints import load_checkpoint

MODULES: dict[str, Any] = {
    "ppo": ppo,
    "ppo_continuous_action": ppo_continuous_action,
    "rpo_continuous_action": rpo_continuous_action,
    "a2c": a2c,
    "ppo_lstm": ppo_lstm,
    "ppo_trxl": ppo_trxl,
}
SMALL: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 32, "num_envs": 2, "total_timesteps": 1280, "checkpoint_every": 256},
    "ppo_continuous_action": {
        "env_id": "Pendulum-v1", "num_steps": 64, "num_envs": 2, "num_minibatches": 4, "update_epochs": 3,
        "total_timesteps": 1280, "checkpoint_every": 256,
    },
}  # fmt: skip
SMALL["a2c"] = SMALL["ppo"]
SMALL["ppo_lstm"] = {**SMALL["ppo"], "num_minibatches": 2, "lstm_units": 8, "cuda": False}
SMALL["ppo_trxl"] = {
    **SMALL["ppo"], "env_id": "CartPole-v1", "trxl_dim": 8, "trxl_num_layers": 2, "trxl_memory_length": 40,
    "anneal_steps": 1000, "num_minibatches": 2, "update_epochs": 1, "cuda": False,
}  # fmt: skip
SMALL["rpo_continuous_action"] = SMALL["ppo_continuous_action"]
EACH = pytest.mark.parametrize("name", sorted(MODULES.keys() - {"a2c", "ppo_lstm", "ppo_trxl"}))


def config_of(name: str, **changes: Any) -> Any:
    return MODULES[name].Config(**{**SMALL[name], **changes})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo", {}),
        ("ppo", {"backend": "torch", "cuda": False}),
        ("ppo", {"env_id": "FrozenLake-v1", "num_envs": 1, "num_steps": 64, "target_kl": 0.01}),
        ("ppo_continuous_action", {}),
        ("ppo_continuous_action", {"num_envs": 1, "num_steps": 128, "clip_vloss": False, "ent_coef": 0.01}),
        ("ppo_continuous_action", {"backend": "torch", "cuda": False}),
        ("rpo_continuous_action", {}),
        ("a2c", {}),
        ("a2c", {"env_id": "Pendulum-v1", "num_steps": 64}),
        ("a2c", {"backend": "torch", "cuda": False}),
        ("ppo_lstm", {}),
        ("ppo_lstm", {"env_id": "Pendulum-v1", "num_steps": 64, "update_epochs": 1}),
        ("ppo_trxl", {}),
        ("ppo_trxl", {"trxl_positional_encoding": "learned", "trxl_memory_length": 10}),
    ],
)
def test_a_killed_run_that_is_resumed_ends_as_if_it_had_not_been(
    name: str, settings: dict[str, Any], place: Path
) -> None:
    config = config_of(name, **settings)
    uninterrupted = train_run(place / "straight", name, config)
    with pytest.raises(Killed):
        train_run(place / "killed", name, config, kill_at=700)
    checkpoint = latest_checkpoint(place / "killed")
    assert checkpoint.step == 512

    resumed = train_run(place / "killed", name, config, checkpoint)

    assert_same_checkpoint(latest_checkpoint(place / "straight"), latest_checkpoint(place / "killed"))
    assert latest_checkpoint(place / "killed").step == 1280
    assert resumed.episodes == [episode for episode in uninterrupted.episodes if episode[1] > 512]
    assert resumed.episodes or name != "ppo"
    assert resumed.mean_return == uninterrupted.mean_return
    assert events(place / "killed", "warning") == []


@EACH
def test_equal_seeds_give_equal_weights_and_saving_changes_nothing(name: str, place: Path) -> None:
    often = train_run(place / "often", name, config_of(name))
    once = train_run(place / "once", name, config_of(name, checkpoint_every=10**6))
    second = train_run(place / "other", name, config_of(name, seed=2))
    assert_same_checkpoint(latest_checkpoint(place / "often"), latest_checkpoint(place / "once"))
    assert often.episodes == once.episodes != second.episodes
    assert [int(path.name) for path in (place / "once" / "checkpoints").glob("[0-9]*")] == [1280]


@EACH
def test_a_stop_saves_what_the_last_update_left_and_can_be_resumed(name: str, place: Path) -> None:
    config = config_of(name, checkpoint_every=10**6)
    train_run(place / "straight", name, config)
    run = train_run(place / "stopped", name, config, stop_at=300)
    stopped = latest_checkpoint(place / "stopped")
    assert run.global_step == stopped.step <= (320 if name == "ppo" else 384)
    train_run(place / "stopped", name, config, stopped)
    assert_same_checkpoint(latest_checkpoint(place / "straight"), latest_checkpoint(place / "stopped"))


@EACH
def test_a_finished_run_is_extended_with_the_schedule_of_its_new_length(name: str, place: Path) -> None:
    train_run(place / "run", name, config_of(name, total_timesteps=640))
    finished = latest_checkpoint(place / "run")
    assert train_run(place / "run", name, config_of(name, total_timesteps=640), finished).episodes == []
    assert_same_checkpoint(latest_checkpoint(place / "run"), finished)

    longer = config_of(name, total_timesteps=1280)
    train_run(place / "run", name, longer, finished)
    facts = latest_checkpoint(place / "run").facts
    assert facts["global_step"] == 1280
    assert facts["learning_rate"] == pytest.approx(longer.learning_rate / longer.num_iterations)


@EACH
def test_each_backend_resumes_from_the_others_checkpoint(name: str, place: Path) -> None:
    backends: list[dict[str, Any]] = [{"backend": "numpy"}, {"backend": "torch", "cuda": False}]
    for previous, after in itertools.product(backends, backends):
        path = place / f"{previous['backend']} to {after['backend']}"
        half = config_of(name, total_timesteps=1280, **previous)
        train_run(path, name, half, stop_at=512)
        train_run(path, name, config_of(name, total_timesteps=1280, **after), latest_checkpoint(path))
    numpys, torchs = latest_checkpoint(place / "numpy to numpy"), latest_checkpoint(place / "torch to torch")
    for path in (place / "numpy to torch", place / "torch to numpy"):
        mixed = latest_checkpoint(path)
        assert mixed.facts["adam_count"] == numpys.facts["adam_count"]
        for key, weight in mixed.weights.items():
            np.testing.assert_allclose(weight, numpys.weights[key], atol=2e-3)
            np.testing.assert_allclose(weight, torchs.weights[key], atol=2e-3)


@EACH
def test_everything_that_cleanrl_logs_is_logged_at_its_step(name: str, place: Path) -> None:
    run = train_run(place / "run", name, config_of(name))
    series: dict[str, list[int]] = {}
    for event in events(place / "run", "metrics"):
        for tag, points in event["series"].items():
            series.setdefault(tag, []).extend(step for step, _, _ in points)
    batch = config_of(name).batch_size
    expected = list(range(batch, 1281, batch))
    tags = ["value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "explained_variance"]
    for tag in ["charts/learning_rate", "charts/SPS", *(f"losses/{tag}" for tag in tags)]:
        assert series[tag] == expected, tag
    rows = [row for event in events(place / "run", "episodes") for row in event["rows"]]
    # The journal stores single precision, as TensorBoard does.
    played = [(env, step, float(np.float32(earned)), length) for env, step, earned, length in run.episodes]
    assert [(env, step, earned, length) for _, env, step, _, earned, length in rows] == played


@EACH
def test_a_reward_that_is_not_finite_stops_the_training_at_its_step(name: str, place: Path) -> None:
    actions = "discrete" if name == "ppo" else "box"
    with register_env(limit=None, kind=NanRewardEnv, actions=actions) as env_id:
        config = config_of(name, env_id=env_id, num_envs=1, num_steps=8, num_minibatches=2, checkpoint_every=8)
        with pytest.raises(MosaicError, match="step 10: reward became infinite or NaN"):
            train_run(place / "run", name, config)
        rare = config.model_copy(update={"checkpoint_every": 100, "num_steps": 16})
        with pytest.raises(MosaicError, match=r"computes its rewards\. There is no checkpoint yet\.$"):
            train_run(place / "other run", name, rare)
    assert [(event["tag"], event["step"]) for event in events(place / "run", "anomaly")] == [("reward", 10)]
    assert latest_checkpoint(place / "run").step == 8


@EACH
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_loss_that_is_not_finite_is_reported_and_never_saved(
    name: str, backend: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = ppo_kernels.gae_advantages, []

    def poison(*args: Any) -> Any:
        calls.append(args)
        return original(*args) * (np.nan if len(calls) == 4 else 1)

    monkeypatch.setattr(ppo_kernels, "gae_advantages", poison)
    config = config_of(name, backend=backend, cuda=False, checkpoint_every=1)
    with pytest.raises(MosaicError, match=r"losses/value_loss.*learning_rate"):
        train_run(place / "run", name, config)
    flagged = {(event["tag"], event["step"]) for event in events(place / "run", "anomaly")}
    assert ("losses/value_loss", 4 * config.batch_size) in flagged
    last = latest_checkpoint(place / "run")
    assert last.step == 3 * config.batch_size
    assert all(np.isfinite(weight).all() for weight in last.weights.values())


@EACH
def test_the_bootstrap_value_at_a_time_limit_uses_the_last_observation(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[ppo_kernels.RolloutBatch] = []
    kernel = ppo_kernels.CategoricalKernel if name == "ppo" else ppo_kernels.GaussianKernel
    monkeypatch.setattr(kernel, "run_epoch", lambda self, batch, order: batches.append(batch))
    monkeypatch.setattr(kernel, "losses", lambda self: ppo_kernels.PpoLosses(0, 0, 0, 0, 0, 0))
    seen: list[Any] = []
    original = PpoNetwork.critic_values

    def record(network: PpoNetwork, observations: Any) -> Any:
        values = original(network, observations)
        seen.append((observations.copy(), values))
        return values

    monkeypatch.setattr(PpoNetwork, "critic_values", record)
    actions = "discrete" if name == "ppo" else "box"
    with register_env(limit=5, actions=actions) as env_id:
        config = config_of(
            name, env_id=env_id, num_envs=1, num_steps=8, num_minibatches=1, gae_lambda=0.0, gamma=0.5,
            total_timesteps=8, update_epochs=1,
        )  # fmt: skip
        train_run(place / "run", name, config)
    (_, values), (last, (after,)) = seen
    returns = batches[0].returns
    assert last.shape == (1, 2)
    rewards = np.ones((8, 1))
    if name != "ppo":
        rewards = RewardNormalizer(1, gamma=0.5)(rewards, np.zeros((8, 1), bool))
    assert returns[3] == pytest.approx(rewards[3, 0] + 0.5 * values[4], abs=1e-5)
    assert returns[4] == pytest.approx(rewards[4, 0] + 0.5 * after, abs=1e-5)
    # Not from the observation after the reset.
    assert abs(after - values[5]) > 1e-4
    assert (last[0] != batches[0].observations[5]).any()


@EACH
@pytest.mark.parametrize("observation", ["box", "image", "dict", "number"])
def test_observations_and_actions_of_every_fitting_kind_are_trained_on(
    name: str, observation: str, place: Path
) -> None:
    actions = "discrete" if name == "ppo" else "box"
    envs: list[Corridor] = []

    class RecordingEnv(Corridor):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            envs.append(self)

    with register_env(kind=RecordingEnv, observation=observation, actions=actions) as env_id:
        config = config_of(name, env_id=env_id, total_timesteps=256)
        env = gymnasium.make(env_id)
        facts = MODULES[name].check(config, env)
        envs.clear()
        train_run(place / "run", name, config)
        policy = MODULES[name].load_policy(latest_checkpoint(place / "run"))
        if name == "ppo":
            assert facts["actions"] == 3
            assert {action for env in envs for action in env.received} == {-1, 0, 1}
        else:
            assert facts["actions"] == [2, 1]
            sent = np.array([action for env in envs for action in env.received])
            assert sent.shape == (256, 2, 1)
            assert sent.min() == -0.5
            assert sent.max() == 0.5
        if observation != "dict":
            observations = np.array([env.observation_space.sample() for _ in range(3)])
            rng = np.random.default_rng(1)
            for is_deterministic in (True, False):
                chosen = policy.act(observations, is_deterministic, rng)
                assert all(env.action_space.contains(action) for action in chosen)
        env.close()


def test_a_stochastic_policy_samples_with_the_actors_probabilities(place: Path) -> None:
    train_run(place / "run", "ppo", config_of("ppo", total_timesteps=256))
    checkpoint = latest_checkpoint(place / "run")
    checkpoint.weights["actor.4.bias"][:] = [0.0, 1.0]
    checkpoint.weights["actor.4.weight"][:] = 0
    policy = ppo.load_policy(checkpoint)
    observations = np.zeros((20_000, 4), np.float32)
    assert policy.act(observations, False, np.random.default_rng(0)).mean() == pytest.approx(0.731, abs=0.02)
    assert policy.act(observations[:5], True, np.random.default_rng(0)).tolist() == [1] * 5


def test_a_continuous_policy_normalizes_as_the_training_did(place: Path) -> None:
    name = "ppo_continuous_action"
    train_run(place / "run", name, config_of(name, num_envs=1, num_steps=64))
    checkpoint = latest_checkpoint(place / "run")
    raw = checkpoint.arrays["env.0.observation"]
    module: Any = ppo_continuous_action.Agent(3, 1)
    module.load_state_dict(checkpoint.weights)
    actor = PpoActor(module.network, 1)
    actor.refresh()
    mean = np.empty((1, 1), np.float32)
    actor(checkpoint.arrays["inputs"], mean)
    action = ppo_continuous_action.load_policy(checkpoint).act(raw[None], True, np.random.default_rng(0))
    np.testing.assert_allclose(action, np.clip(mean, -2, 2), atol=1e-5)


@EACH
def test_a_policy_builds_its_actor_once(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_run(place / "run", name, config_of(name))
    policy = MODULES[name].load_policy(latest_checkpoint(place / "run"))
    built: list[int] = []
    build = PpoActor.__init__

    def count_and_build(actor: PpoActor, network: PpoNetwork, rows: int) -> None:
        built.append(rows)
        build(actor, network, rows)

    monkeypatch.setattr(PpoActor, "__init__", count_and_build)
    observations = np.zeros((1, 4 if name == "ppo" else 3), np.float32)
    for _ in range(3):
        policy.act(observations, True, np.random.default_rng(0))
    assert built == [1]


def test_spaces_that_do_not_fit_are_refused_with_what_does() -> None:
    pendulum, cartpole = gymnasium.make("Pendulum-v1"), gymnasium.make("CartPole-v1")
    with pytest.raises(BadInput) as refusal:
        ppo.check(config_of("ppo"), pendulum)
    assert str(refusal.value) == (
        "ppo needs a discrete action space; Pendulum-v1 has Box(1,). "
        f"These fit: {', '.join(registry.suitable_algorithms('Box', is_atari=False))}."
    )
    for name in ("ppo_continuous_action", "rpo_continuous_action"):
        with pytest.raises(BadInput) as refusal:
            MODULES[name].check(config_of(name), cartpole)
        assert str(refusal.value) == (
            f"{name} needs a continuous (Box) action space; CartPole-v1 has Discrete(2). "
            "These fit: ppo, dqn, c51, pqn, qrdqn, a2c, ppo_lstm, ppo_trxl."
        )
    cartpole.observation_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2))
    with pytest.raises(BadInput, match="CartPole-v1 has Sequence"):
        ppo.check(config_of("ppo"), cartpole)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_minibatches": 3}, "cannot be split into"),
        ({"total_timesteps": 63}, "less than one rollout"),
        ({"num_minibatches": 64}, "at least 2 rows"),
        ({"learning_rate": 3}, "less than 1"),
        ({"gamma": 1.1}, "less than or equal to 1"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_a_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of("ppo", **settings)


def test_a_checkpoint_of_another_kind_is_refused_by_name(place: Path) -> None:
    """F12: another algorithm, environment or shape."""
    train_run(place / "run", "ppo", config_of("ppo"))
    checkpoint = latest_checkpoint(place / "run")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("ppo", {"env_id": "Acrobot-v1"}, "its env_id is 'CartPole-v1', but the run's is 'Acrobot-v1'"),
        ("ppo", {"num_envs": 4}, "its num_envs is 2, but the run's is 4"),
        ("ppo_continuous_action", {}, "its algorithm is 'ppo', but the run's is 'ppo_continuous_action'"),
    ]
    for index, (name, settings, message) in enumerate(cases):
        config = config_of(name, **settings)
        with open_run(place / str(index), config) as run, pytest.raises(BadInput, match=message):
            MODULES[name].train(config, run, checkpoint)
    with pytest.raises(BadInput, match="was saved by 'ppo'"):
        ppo_continuous_action.load_policy(checkpoint)


def test_an_environment_that_cannot_be_restored_is_reported(place: Path) -> None:
    with register_env(noise="foreign") as env_id:
        config = config_of("ppo", env_id=env_id, num_steps=33, num_envs=2, num_minibatches=2)
        train_run(place / "run", "ppo", config, stop_at=200)
        train_run(place / "run", "ppo", config, latest_checkpoint(place / "run"))
    (warning,) = events(place / "run", "warning")
    assert warning["code"] == "resumed_inexactly"
    assert "environment 0" in warning["text"]
    assert "environment 1" in warning["text"]


def test_an_update_stops_early_at_the_target_kl(place: Path) -> None:
    train_run(place / "free", "ppo", config_of("ppo"))
    train_run(place / "held", "ppo", config_of("ppo", target_kl=1e-7))
    free, held = (
        latest_checkpoint(place / "free").facts["adam_count"],
        latest_checkpoint(place / "held").facts["adam_count"],
    )
    assert free == 20 * 4 * 4
    assert held < free / 2


def test_rpo_draws_new_mean_noise_in_each_epoch(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "rpo_continuous_action"
    batches: list[ppo_kernels.RolloutBatch] = []
    original = ppo_kernels.GaussianKernel.run_epoch

    def record(kernel: Any, batch: ppo_kernels.RolloutBatch, order: Any) -> None:
        batches.append(batch)
        original(kernel, batch, order)

    monkeypatch.setattr(ppo_kernels.GaussianKernel, "run_epoch", record)
    train_run(place / "moved", name, config_of(name, total_timesteps=128, rpo_alpha=0.2))
    first, second, third = (batch.actions for batch in batches)
    for one, other in ((first, second), (second, third)):
        assert 0.3 < np.abs(one - other).max() <= 0.4
        assert abs((one - other).mean()) < 0.05
    assert batches[0].log_probs is batches[1].log_probs


@EACH
def test_the_checkpoints_weights_are_the_model_that_cleanrl_would_save(name: str, place: Path) -> None:
    train_run(place / "run", name, config_of(name))
    checkpoint = load_checkpoint(RunFolder(place / "run").last_checkpoint)
    shape = checkpoint.facts["shape"]
    module = MODULES[name].Agent(shape["observation_size"], shape["actions"]).module()
    import torch

    state = {key: torch.from_numpy(part) for key, part in MODULES[name].state_dict_of(checkpoint).items()}
    assert module.load_state_dict(state).missing_keys == []
    assert list(state) == list(module.state_dict())


def test_a_small_run_imports_neither_torch_nor_tensorboard(place: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from cleanrl_worker.algorithms import ppo, ppo_continuous_action\n"
        "from tests.helpers.algorithm_cases import open_run\n"
        "config = ppo.Config(total_timesteps=512)\n"
        "with open_run(Path(sys.argv[1]), config) as run:\n"
        "    ppo.train(config, run)\n"
        "print(sorted({'torch', 'tensorboard', 'scipy'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(place / "run")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


class PositionsOnly(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole without velocities."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1").unwrapped)
        self.observation_space = gymnasium.spaces.Box(-5, 5, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]


def test_an_lstm_balances_a_pole_without_seeing_velocities(place: Path) -> None:
    gymnasium.register("PositionsOnly-v0", entry_point=PositionsOnly, max_episode_steps=100)  # type: ignore[arg-type]
    try:
        config = ppo_lstm.Config(
            env_id="PositionsOnly-v0", total_timesteps=16384, num_envs=16, num_steps=32, learning_rate=3e-3,
            lstm_units=32, hidden_sizes=(32,), cuda=False,
        )  # fmt: skip
        run = train_run(place / "run", "ppo_lstm", config)
        policy: Any = ppo_lstm.load_policy(latest_checkpoint(place / "run"))
    finally:
        del gymnasium.registry["PositionsOnly-v0"]
    returns = [episode[2] for episode in run.episodes]
    assert np.mean(returns[-20:]) > 2 * np.mean(returns[:50])

    # The state is part of what it acts by, each row has its own, and a reset forgets it.
    rng, seen = np.random.default_rng(0), np.array([[0.01, 0.02], [0.01, 0.02]], np.float32)
    first = policy._step(seen)
    np.testing.assert_allclose(first[0], first[1], atol=1e-6)
    second = policy._step(seen)
    assert (second != first).any()
    policy.reset_state(1)
    third = policy._step(seen)
    np.testing.assert_allclose(third[1], first[1], atol=1e-6)
    assert (third[0] != third[1]).any()
    policy.reset_state(0)
    assert policy.act(seen, True, rng).shape == policy.sample(seen, [rng, rng]).shape == (2,)
