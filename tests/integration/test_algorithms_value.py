"""DQN, C51, QR-DQN and PQN with the real run handle: common checks for each, then special ones."""

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

from cleanrl_worker.algorithms import c51, dqn, pqn, qrdqn
from cleanrl_worker.learners import value_kernels
from cleanrl_worker.learners.perceptron import Perceptron
from cleanrl_worker.replay import blocks as replay_blocks
from cleanrl_worker.replay import ring as replay_ring
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.folder import PENDING_PARTS_DIR

MODULES: dict[str, Any] = {"dqn": dqn, "c51": c51, "pqn": pqn, "qrdqn": qrdqn}
_REPLAY = {
    "total_timesteps": 1280, "checkpoint_every": 256, "buffer_size": 400, "batch_size": 32, "learning_starts": 100,
    "train_frequency": 8, "target_network_frequency": 40,
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "dqn": _REPLAY,
    "c51": {**_REPLAY, "n_atoms": 21},
    "qrdqn": {**_REPLAY, "n_quantiles": 7, "cuda": False},
    "pqn": {"num_steps": 32, "num_envs": 2, "total_timesteps": 1280, "checkpoint_every": 256},
}
EACH = pytest.mark.parametrize("name", sorted(MODULES))
WITH_KERNEL = pytest.mark.parametrize("name", ["c51", "dqn", "pqn"])
FROM_REPLAY = pytest.mark.parametrize("name", ["c51", "dqn"])


def config_of(name: str, **changes: Any) -> Any:
    return MODULES[name].Config(**{**SMALL[name], **changes})


def series_of(path: Path) -> dict[str, list[int]]:
    """Return the steps at which each tag was logged."""
    series: dict[str, list[int]] = {}
    for event in events(path, "metrics"):
        for tag, points in event["series"].items():
            series.setdefault(tag, []).extend(step for step, _, _ in points)
    return series


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dqn", {}),
        ("dqn", {"num_envs": 3, "tau": 0.3}),
        ("dqn", {"env_id": "FrozenLake-v1", "backend": "torch", "cuda": False}),
        ("c51", {}),
        ("c51", {"backend": "torch", "cuda": False}),
        ("qrdqn", {}),
        ("pqn", {}),
        ("pqn", {"backend": "torch", "cuda": False}),
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
    assert 512 <= checkpoint.step < 540

    resumed = train_run(place / "killed", name, config, checkpoint)

    assert_same_checkpoint(latest_checkpoint(place / "straight"), latest_checkpoint(place / "killed"))
    assert latest_checkpoint(place / "killed").step == 1280 - 1280 % config.num_envs
    assert resumed.episodes == [episode for episode in uninterrupted.episodes if episode[1] > checkpoint.step] != []
    assert resumed.mean_return == uninterrupted.mean_return
    assert events(place / "killed", "warning") == []


@FROM_REPLAY
def test_a_run_whose_buffer_is_saved_in_blocks_resumes_exactly(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_ring, "MIN_BLOCKED_SIZE_MB", 0)
    monkeypatch.setattr(replay_blocks, "BLOCK_BYTES", 1000)
    config = config_of(name)
    train_run(place / "straight", name, config)
    with pytest.raises(Killed):
        train_run(place / "killed", name, config, kill_at=1100)
    checkpoint = latest_checkpoint(place / "killed")
    assert len(checkpoint.parts) > 10
    train_run(place / "killed", name, config, checkpoint)
    assert_same_checkpoint(latest_checkpoint(place / "straight"), latest_checkpoint(place / "killed"))
    assert events(place / "killed", "warning") == []
    assert not (place / "killed" / "checkpoints" / PENDING_PARTS_DIR).exists()


@WITH_KERNEL
def test_equal_seeds_give_equal_weights_and_saving_changes_nothing(name: str, place: Path) -> None:
    often = train_run(place / "often", name, config_of(name))
    once = train_run(place / "once", name, config_of(name, checkpoint_every=10**6))
    second = train_run(place / "other", name, config_of(name, seed=2))
    assert_same_checkpoint(latest_checkpoint(place / "often"), latest_checkpoint(place / "once"))
    assert often.episodes == once.episodes != second.episodes
    assert [int(path.name) for path in (place / "once" / "checkpoints").glob("[0-9]*")] == [1280]


@WITH_KERNEL
def test_a_stop_saves_where_it_is_and_can_be_resumed(name: str, place: Path) -> None:
    config = config_of(name, checkpoint_every=10**6)
    train_run(place / "straight", name, config)
    run = train_run(place / "stopped", name, config, stop_at=300)
    stopped = latest_checkpoint(place / "stopped")
    assert run.global_step == stopped.step
    assert stopped.step <= 320 if name == "pqn" else stopped.step == 300
    train_run(place / "stopped", name, config, stopped)
    assert_same_checkpoint(latest_checkpoint(place / "straight"), latest_checkpoint(place / "stopped"))


@WITH_KERNEL
def test_a_finished_run_is_extended(name: str, place: Path) -> None:
    short, longer = config_of(name, total_timesteps=644), config_of(name, total_timesteps=1280)
    train_run(place / "run", name, short)
    finished = latest_checkpoint(place / "run")
    assert finished.step == (640 if name == "pqn" else 644)
    assert train_run(place / "run", name, short, finished).episodes == []
    assert_same_checkpoint(latest_checkpoint(place / "run"), finished)
    train_run(place / "run", name, longer, finished)
    assert latest_checkpoint(place / "run").step == 1280


@WITH_KERNEL
def test_each_backend_resumes_from_the_others_checkpoint(name: str, place: Path) -> None:
    backends: list[dict[str, Any]] = [{"backend": "numpy"}, {"backend": "torch", "cuda": False}]
    for previous, after in itertools.product(backends, backends):
        path = place / f"{previous['backend']} to {after['backend']}"
        train_run(path, name, config_of(name, **previous), stop_at=512)
        train_run(path, name, config_of(name, **after), latest_checkpoint(path))
    numpys, torchs = latest_checkpoint(place / "numpy to numpy"), latest_checkpoint(place / "torch to torch")
    for path in (place / "numpy to torch", place / "torch to numpy"):
        mixed = latest_checkpoint(path)
        assert mixed.facts["adam_count"] == numpys.facts["adam_count"] == torchs.facts["adam_count"]
        for key, weight in mixed.weights.items():
            np.testing.assert_allclose(weight, numpys.weights[key], atol=2e-3)
            np.testing.assert_allclose(weight, torchs.weights[key], atol=2e-3)


@EACH
def test_everything_that_cleanrl_logs_is_logged(name: str, place: Path) -> None:
    run = train_run(place / "run", name, config_of(name))
    series = series_of(place / "run")
    tags = ["loss" if name in ("c51", "qrdqn") else "td_loss", "q_values"]
    # With a replay buffer: at the first update after each hundred steps.
    expected = list(range(64, 1281, 64)) if name == "pqn" else [104, 200, 304, 400, 504]
    for tag in ["charts/SPS", *(f"losses/{tag}" for tag in tags)]:
        assert series[tag][: len(expected)] == expected, tag
    rows = [row for event in events(place / "run", "episodes") for row in event["rows"]]
    played = [(env, step, float(np.float32(earned)), length) for env, step, earned, length in run.episodes]
    assert [(env, step, earned, length) for _, env, step, _, earned, length in rows] == played


@WITH_KERNEL
def test_a_reward_that_is_not_finite_stops_the_training_at_its_step(name: str, place: Path) -> None:
    few = {"num_steps": 8, "num_minibatches": 2} if name == "pqn" else {}
    with register_env(limit=None, kind=NanRewardEnv) as env_id:
        config = config_of(name, env_id=env_id, num_envs=1, checkpoint_every=8, **few)
        with pytest.raises(MosaicError, match="step 10: reward became infinite or NaN"):
            train_run(place / "run", name, config)
    assert [(event["tag"], event["step"]) for event in events(place / "run", "anomaly")] == [("reward", 10)]
    assert latest_checkpoint(place / "run").step == 8


@WITH_KERNEL
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_loss_that_is_not_finite_is_reported_and_never_saved(
    name: str, backend: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cleanrl_worker.learners import autograd_learners

    kernels = {
        "dqn": value_kernels.QKernel,
        "c51": value_kernels.DistributionKernel,
        "pqn": value_kernels.ReturnsKernel,
    }
    learner: Any = kernels[name] if backend == "numpy" else autograd_learners.ValueAutogradLearner
    original, calls = learner.update, []
    bad_call = 20 if name == "pqn" else 3

    def poison(self: Any, batch: Any, learning_rate: float) -> bool:
        calls.append(batch)
        if len(calls) == bad_call:
            batch.observations[0] = np.nan
        return bool(original(self, batch, learning_rate))

    monkeypatch.setattr(learner, "update", poison)
    config = config_of(name, backend=backend, cuda=False, checkpoint_every=64 if name == "pqn" else 56)
    with pytest.raises(MosaicError, match=r"losses/(td_)?loss.*learning_rate"):
        train_run(place / "run", name, config)
    step = 2 * 64 if name == "pqn" else 96 + 3 * 8
    flagged = {(event["tag"], event["step"]) for event in events(place / "run", "anomaly")}
    assert ("losses/q_values", step) in flagged
    last = latest_checkpoint(place / "run")
    assert last.step == step - (64 if name == "pqn" else 8)
    assert all(np.isfinite(weight).all() for weight in last.weights.values())


@FROM_REPLAY
def test_the_bootstrap_value_at_a_time_limit_uses_the_last_observation(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel: Any = value_kernels.QKernel if name == "dqn" else value_kernels.DistributionKernel
    original, jumps, rows = kernel.update, [], 0

    def record(self: Any, batch: Any, learning_rate: float) -> bool:
        nonlocal rows
        rows += len(batch.observations)
        assert not batch.terminals.any()
        # A step moves by at most 1 plus a little noise; a reset would lead back to the start.
        jumps.append(np.abs(batch.next_observations - batch.observations)[:, 0].max())
        return bool(original(self, batch, learning_rate))

    monkeypatch.setattr(kernel, "update", record)

    class ForwardEnv(Corridor):
        def step(self, action: Any) -> Any:
            return super().step(1)

    with register_env(limit=6, kind=ForwardEnv) as env_id:
        train_run(place / "run", name, config_of(name, env_id=env_id, total_timesteps=400))
    assert rows > 1000
    assert max(jumps) < 2


def test_pqn_bootstraps_at_a_time_limit_from_the_last_observation(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Any] = []

    def record_batch(self: Any, batch: Any, learning_rate: float) -> bool:
        batches.append(batch)
        return True

    monkeypatch.setattr(value_kernels.ReturnsKernel, "update", record_batch)
    monkeypatch.setattr(value_kernels.ReturnsKernel, "losses", lambda self: {"td_loss": 0.0})
    ends: list[Any] = []
    original = Perceptron.__call__

    def record(network: Any, observations: Any) -> Any:
        values = original(network, observations)
        ends.append((observations.copy(), values.copy()))
        return values

    monkeypatch.setattr(Perceptron, "__call__", record)
    with register_env(limit=5) as env_id:
        config = config_of(
            "pqn", env_id=env_id, num_envs=1, num_steps=8, num_minibatches=1, total_timesteps=8, update_epochs=1,
            q_lambda=0.0, gamma=0.5,
        )  # fmt: skip
        train_run(place / "run", "pqn", config)
    agent = pqn.Agent(2, 3)
    agent.load_state_dict(latest_checkpoint(place / "run").weights)
    (last, after), (batch,) = ends[0], batches
    assert last.shape == (1, 2)
    assert not (batch.observations == last[0]).all(1).any()
    # Seven of the eight look one step ahead, six of them at an observation of this batch, the other one at the
    # final observation of its episode.
    ahead = 1 + 0.5 * original(agent.network, batch.observations).max(1)
    assert sum(np.abs(ahead - result).min() < 1e-4 for result in batch.returns) == 6
    assert np.abs(batch.returns - (1 + 0.5 * after.max())).min() < 1e-5


@WITH_KERNEL
@pytest.mark.parametrize("observation", ["box", "image", "dict", "number"])
def test_observations_and_actions_of_every_fitting_kind_are_trained_on(
    name: str, observation: str, place: Path
) -> None:
    envs: list[Corridor] = []

    class RecordingEnv(Corridor):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            envs.append(self)

    with register_env(kind=RecordingEnv, observation=observation) as env_id:
        config = config_of(name, env_id=env_id, total_timesteps=256)
        env = gymnasium.make(env_id)
        facts = MODULES[name].check(config, env)
        assert facts["actions"] == 3
        envs.clear()
        train_run(place / "run", name, config)
        assert {action for env in envs for action in env.received} == {-1, 0, 1}
        policy = MODULES[name].load_policy(latest_checkpoint(place / "run"))
        if observation != "dict":
            observations = np.array([env.observation_space.sample() for _ in range(3)])
            rng = np.random.default_rng(1)
            for is_deterministic in (True, False):
                assert all(
                    env.action_space.contains(action) for action in policy.act(observations, is_deterministic, rng)
                )
        env.close()


@EACH
def test_a_policy_is_epsilon_greedy(name: str, place: Path) -> None:
    train_run(place / "run", name, config_of(name, total_timesteps=256, end_e=0.4))
    checkpoint = latest_checkpoint(place / "run")
    last = "network.6" if name == "pqn" else "network.4"
    checkpoint.weights[f"{last}.weight"][:] = 0
    bias = checkpoint.weights[f"{last}.bias"]
    bias[:] = 0
    bias[-1] = 1  # the highest atom or quantile of the last action, or its value
    policy = MODULES[name].load_policy(checkpoint)
    observations = np.zeros((20_000, 4), np.float32)
    assert policy.act(observations[:5], True, np.random.default_rng(0)).tolist() == [1] * 5
    assert policy.act(observations, False, np.random.default_rng(0)).mean() == pytest.approx(0.8, abs=0.02)


@WITH_KERNEL
def test_epsilon_follows_its_schedule(name: str) -> None:
    config = config_of(name, start_e=0.8, end_e=0.2, exploration_fraction=0.5, total_timesteps=1000)
    np.testing.assert_allclose(config.epsilons(np.array([0, 250, 500, 900])), [0.8, 0.5, 0.2, 0.2])
    none = config_of(name, exploration_fraction=0.0, end_e=0.0)
    assert none.epsilons(np.array([1])) == 0.0


@FROM_REPLAY
@pytest.mark.parametrize(("frequency", "expected"), [(16, "UF U UF U UF"), (12, "UF U FU UF U")])
def test_the_target_network_is_updated_at_its_frequency(
    name: str, frequency: int, expected: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Updates are due at 96, 104, 112, 120 and 128. If both are due, the update comes first."""
    calls: list[str] = []
    kernel: Any = value_kernels.QKernel if name == "dqn" else value_kernels.DistributionKernel
    original = kernel.update

    def record(self: Any, batch: Any, learning_rate: float) -> bool:
        calls.append("U")
        return bool(original(self, batch, learning_rate))

    monkeypatch.setattr(kernel, "update", record)
    monkeypatch.setattr(kernel, "update_target", lambda self, share: calls.append("F"))
    config = config_of(name, learning_starts=95, total_timesteps=128, target_network_frequency=frequency)
    train_run(place / "run", name, config)
    assert "".join(calls) == expected.replace(" ", "")


@FROM_REPLAY
def test_a_replay_buffer_that_was_too_large_to_save_is_reported_on_resume(name: str, place: Path) -> None:
    config = config_of(name, checkpoint_replay_mb=0.001)
    train_run(place / "run", name, config, stop_at=600)
    stopped = latest_checkpoint(place / "run")
    assert not any(key.startswith("replay.") for key in stopped.arrays)
    train_run(place / "run", name, config, stopped)
    (warning,) = events(place / "run", "warning")
    assert warning["code"] == "resumed_inexactly"
    assert "checkpoint_replay_mb" in warning["text"]
    last = latest_checkpoint(place / "run")
    assert last.step == 1280
    # It is filled as at the start before updates continue.
    assert last.facts["adam_count"] == stopped.facts["adam_count"] + len(range(704, 1281, 8))


@FROM_REPLAY
def test_an_environment_that_cannot_be_restored_is_reported_and_the_replay_buffer_kept(name: str, place: Path) -> None:
    with register_env(noise="foreign", limit=50) as env_id:
        config = config_of(name, env_id=env_id)
        train_run(place / "run", name, config, stop_at=300)
        stopped = latest_checkpoint(place / "run")
        train_run(place / "run", name, config.model_copy(update={"total_timesteps": 312}), stopped)
    (warning,) = events(place / "run", "warning")
    assert warning["code"] == "resumed_inexactly"
    assert "environment 0" in warning["text"]
    resumed = latest_checkpoint(place / "run")
    assert (stopped.step, resumed.step) == (300, 312)
    assert (stopped.facts["replay"]["count"], resumed.facts["replay"]["count"]) == (300, 312)
    # The step before the interruption counts as truncated: its true next observation is stored.
    assert 299 in resumed.arrays["replay.cut.spots"]
    assert resumed.facts["adam_count"] == stopped.facts["adam_count"] + 2


@FROM_REPLAY
def test_a_replay_buffer_that_does_not_fit_into_memory_is_refused(name: str) -> None:
    env = gymnasium.make("CartPole-v1")
    with pytest.raises(BadInput, match=rf"{name} needs .* GB for its replay buffer .* Lower buffer_size to"):
        MODULES[name].check(config_of(name, buffer_size=10**12), env)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("dqn", {"buffer_size": 3, "num_envs": 4}, "is too small for num_envs"),
        ("dqn", {"tau": 0.0}, "greater than 0"),
        ("c51", {"v_min": 5.0, "v_max": 5.0}, "v_min = 5 must be below v_max = 5"),
        ("c51", {"n_atoms": 1}, "greater than or equal to 2"),
        ("qrdqn", {"backend": "numpy"}, "numpy has no kernels for this algorithm"),
        ("pqn", {"num_minibatches": 3}, "cannot be split into"),
        ("pqn", {"total_timesteps": 63}, "less than one rollout"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_a_sentence(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of(name, **settings)


def test_continuous_actions_are_refused_with_what_fits() -> None:
    pendulum = gymnasium.make("Pendulum-v1")
    for name, module in MODULES.items():
        with pytest.raises(
            BadInput, match=f"{name} needs a discrete action space; Pendulum-v1 has Box.* These fit: ppo_"
        ):
            module.check(config_of(name), pendulum)


def test_a_checkpoint_of_another_kind_is_refused_by_name(place: Path) -> None:
    train_run(place / "run", "c51", config_of("c51"))
    checkpoint = latest_checkpoint(place / "run")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("c51", {"v_max": 50.0}, "its v_max is 100.0, but the run's is 50.0"),
        ("c51", {"env_id": "Acrobot-v1"}, "its env_id is 'CartPole-v1', but the run's is 'Acrobot-v1'"),
        ("dqn", {}, "its algorithm is 'c51', but the run's is 'dqn'"),
    ]
    for index, (name, settings, message) in enumerate(cases):
        config = config_of(name, **settings)
        with open_run(place / str(index), config) as run, pytest.raises(BadInput, match=message):
            MODULES[name].train(config, run, checkpoint)
    with pytest.raises(BadInput, match="was saved by 'c51'"):
        dqn.load_policy(checkpoint)


@EACH
def test_the_model_has_the_keys_of_cleanrls_in_its_order(name: str, place: Path) -> None:
    train_run(place / "run", name, config_of(name, total_timesteps=256))
    checkpoint = latest_checkpoint(place / "run")
    atoms = {key: SMALL[name][key] for key in ("n_atoms", "n_quantiles") if key in SMALL[name]}
    module = MODULES[name].Agent(4, 2, **atoms).module()
    state = MODULES[name].state_dict_of(checkpoint)
    if atoms:
        assert list(state) == ["model_weights", "args"]
        assert atoms.items() <= state["args"].items()
        state = state["model_weights"]
    assert list(state) == list(module.state_dict())
    import torch

    assert module.load_state_dict({key: torch.from_numpy(part) for key, part in state.items()}).missing_keys == []


def test_small_runs_do_not_import_torch(place: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from cleanrl_worker.algorithms import c51, dqn, pqn\n"
        "from tests.helpers.algorithm_cases import open_run\n"
        "for index, module in enumerate((c51, dqn, pqn)):\n"
        "    config = module.Config(total_timesteps=512)\n"
        "    with open_run(Path(sys.argv[1], str(index)), config) as run:\n"
        "        module.train(config, run)\n"
        "print(sorted({'torch', 'tensorboard', 'scipy'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(place / "run")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
