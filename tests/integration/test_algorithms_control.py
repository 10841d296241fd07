"""SAC, TD3 and DDPG with the real run handle: common checks for each, then special ones."""

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
    register_env,
    train_run,
)

from cleanrl_worker.algorithms import ddpg_continuous_action, sac_continuous_action, td3_continuous_action, tqc
from cleanrl_worker.evaluation.loading import load_acting_policy
from cleanrl_worker.learners import control_kernels, torch_control, torch_feeds
from cleanrl_worker.registry import load_algorithm
from cleanrl_worker.replay import buffers as replay
from cleanrl_worker.replay.buffers import Replay
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.worker.torch_files import save_state_dict

MODULES: dict[str, Any] = {
    "sac_continuous_action": sac_continuous_action,
    "td3_continuous_action": td3_continuous_action,
    "ddpg_continuous_action": ddpg_continuous_action,
}
SMALL = {
    "env_id": "Pendulum-v1", "total_timesteps": 640, "checkpoint_every": 128, "buffer_size": 400, "batch_size": 16,
    "learning_starts": 100, "hidden_sizes": (16, 16),
}  # fmt: skip
TORCH = {"backend": "torch", "cuda": False}
SHORT = {"total_timesteps": 448, "learning_starts": 330}
"""Few updates: small tensors cost torch far more than they cost numpy."""
EACH = pytest.mark.parametrize("name", sorted(MODULES))


def config_of(name: str, **changes: Any) -> Any:
    return load_algorithm(name).Config(**{**SMALL, **changes})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sac_continuous_action", {}),
        (
            "sac_continuous_action",
            {"num_envs": 2, "autotune": False, "policy_frequency": 3, "target_network_frequency": 2},
        ),
        ("sac_continuous_action", {**TORCH, **SHORT}),
        ("td3_continuous_action", {}),
        ("td3_continuous_action", {**TORCH, **SHORT, "num_envs": 2}),
        ("ddpg_continuous_action", {}),
        ("ddpg_continuous_action", {**TORCH, **SHORT}),
        ("tqc", {**TORCH, **SHORT, "n_critics": 3, "n_quantiles": 5}),
    ],
)
def test_a_killed_run_that_is_resumed_ends_as_if_it_had_not_been(
    name: str, settings: dict[str, Any], place: Path
) -> None:
    config = config_of(name, **settings)
    uninterrupted = train_run(place / "straight", name, config)
    with pytest.raises(Killed):
        train_run(place / "killed", name, config, kill_at=440)
    checkpoint = latest_checkpoint(place / "killed")
    assert checkpoint.step == 384

    resumed = train_run(place / "killed", name, config, checkpoint)

    assert_same_checkpoint(latest_checkpoint(place / "straight"), latest_checkpoint(place / "killed"))
    assert latest_checkpoint(place / "killed").step == config.total_timesteps
    assert resumed.episodes == [episode for episode in uninterrupted.episodes if episode[1] > 384] != []
    assert resumed.mean_return == uninterrupted.mean_return
    assert events(place / "killed", "warning") == []


@pytest.mark.parametrize("name", ["sac_continuous_action", "td3_continuous_action"])
def test_a_run_that_learns_while_its_environments_step_resumes_exactly(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU each update is launched before the environments step, and its sample is gathered on the device."""
    config = config_of(name, **TORCH, **SHORT)
    train_run(place / "one after the other", name, config)
    monkeypatch.setattr(torch_control.TorchActorCriticLearner, "is_asynchronous", True)
    train_run(place / "samples from the host", name, config)
    monkeypatch.setattr(torch_feeds.DeviceFeed, "fits", staticmethod(lambda *_: True))
    train_run(place / "straight", name, config)
    with pytest.raises(Killed):
        train_run(place / "killed", name, config, kill_at=440)
    train_run(place / "killed", name, config, latest_checkpoint(place / "killed"))

    straight = latest_checkpoint(place / "straight")
    assert_same_checkpoint(straight, latest_checkpoint(place / "killed"))
    assert_same_checkpoint(straight, latest_checkpoint(place / "samples from the host"))
    counts, other = (
        latest_checkpoint(place / path).facts["optimizer"]["counts"]["qf1"]
        for path in ("straight", "one after the other")
    )
    assert (counts, other) == (117, 118), "The update after the last step is not launched."


@EACH
def test_equal_seeds_give_equal_weights_and_saving_changes_nothing(name: str, place: Path) -> None:
    often = train_run(place / "often", name, config_of(name))
    once = train_run(place / "once", name, config_of(name, checkpoint_every=10**6))
    second = train_run(place / "other", name, config_of(name, seed=2))
    assert_same_checkpoint(latest_checkpoint(place / "often"), latest_checkpoint(place / "once"))
    assert often.episodes == once.episodes != second.episodes
    assert [int(path.name) for path in (place / "once" / "checkpoints").glob("[0-9]*")] == [640]


@EACH
def test_a_stop_saves_at_once_and_can_be_resumed(name: str, place: Path) -> None:
    config = config_of(name, checkpoint_every=10**6)
    train_run(place / "straight", name, config)
    run = train_run(place / "stopped", name, config, stop_at=301)
    stopped = latest_checkpoint(place / "stopped")
    assert run.global_step == stopped.step == 301
    train_run(place / "stopped", name, config, stopped)
    assert_same_checkpoint(latest_checkpoint(place / "straight"), latest_checkpoint(place / "stopped"))


@EACH
def test_a_finished_run_is_extended_and_keeps_its_replay_buffer(name: str, place: Path) -> None:
    short = config_of(name, total_timesteps=300)
    train_run(place / "run", name, short)
    finished = latest_checkpoint(place / "run")
    assert train_run(place / "run", name, short, finished).episodes == []
    train_run(place / "run", name, config_of(name, total_timesteps=450), finished)
    assert latest_checkpoint(place / "run").facts["global_step"] == 450
    assert latest_checkpoint(place / "run").facts["replay"]["count"] == 400
    assert events(place / "run", "warning") == []


@EACH
def test_each_backend_resumes_from_the_others_checkpoint(name: str, place: Path) -> None:
    backends: list[dict[str, Any]] = [{"backend": "numpy"}, TORCH]
    for previous, after in itertools.product(backends, backends):
        path = place / f"{previous['backend']} to {after['backend']}"
        short = {"learning_starts": 170, "total_timesteps": 230}
        train_run(path, name, config_of(name, **previous, **short), stop_at=200)
        train_run(path, name, config_of(name, **after, **short), latest_checkpoint(path))
    counts = latest_checkpoint(place / "numpy to numpy").facts["optimizer"]["counts"]
    assert counts["actor"] == (60 if name == "sac_continuous_action" else 30)
    for path in (place / "numpy to torch", place / "torch to numpy"):
        mixed = latest_checkpoint(path)
        assert mixed.facts["optimizer"]["counts"] == counts
        assert all(np.isfinite(weight).all() for weight in mixed.weights.values())


def test_a_resumed_run_keeps_its_backend(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_run(place / "run", "ddpg_continuous_action", config_of("ddpg_continuous_action"), stop_at=150)
    monkeypatch.setattr("cleanrl_worker.learners.devices.has_gpu", lambda: True)
    train_run(
        place / "run",
        "ddpg_continuous_action",
        config_of("ddpg_continuous_action"),
        latest_checkpoint(place / "run"),
        stop_at=200,
    )
    assert latest_checkpoint(place / "run").facts["backend"] == "numpy"


@EACH
def test_everything_that_cleanrl_logs_is_logged_every_hundred_updates(name: str, place: Path) -> None:
    run = train_run(place / "run", name, config_of(name))
    series: dict[str, list[int]] = {}
    for event in events(place / "run", "metrics"):
        for tag, points in event["series"].items():
            series.setdefault(tag, []).extend(step for step, _, _ in points)
    tags = {
        "sac_continuous_action": [
            "qf1_values",
            "qf2_values",
            "qf1_loss",
            "qf2_loss",
            "qf_loss",
            "actor_loss",
            "alpha",
            "alpha_loss",
        ],
        "td3_continuous_action": ["qf1_values", "qf2_values", "qf1_loss", "qf2_loss", "qf_loss", "actor_loss"],
        "ddpg_continuous_action": ["qf1_values", "qf1_loss", "actor_loss"],
    }[name]
    expected = {tag: [200, 300, 400, 500, 600] for tag in ("charts/SPS", *(f"losses/{tag}" for tag in tags))}
    assert {tag: steps for tag, steps in series.items() if not tag.startswith("charts/epi")} == expected
    assert [(env, step, length) for env, step, _, length in run.episodes] == [
        (0, 200, 200),
        (0, 400, 200),
        (0, 600, 200),
    ]


@EACH
def test_a_reward_that_is_not_finite_stops_the_training_at_its_step(name: str, place: Path) -> None:
    with register_env(limit=None, kind=NanRewardEnv, actions="box") as env_id:
        config = config_of(name, env_id=env_id, checkpoint_every=8)
        with pytest.raises(MosaicError, match="step 10: reward became infinite or NaN"):
            train_run(place / "run", name, config)
    assert [(event["tag"], event["step"]) for event in events(place / "run", "anomaly")] == [("reward", 10)]
    assert latest_checkpoint(place / "run").step == 8


@EACH
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_loss_that_is_not_finite_is_reported_and_never_saved(
    name: str, backend: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = Replay.sample, []

    def poison(self: Replay, batch: Any) -> None:
        original(self, batch)
        calls.append(batch)
        if len(calls) == 10:
            batch.rewards[3] = np.nan

    monkeypatch.setattr(Replay, "sample", poison)
    config = config_of(name, backend=backend, cuda=False, checkpoint_every=1, learning_starts=20)
    with pytest.raises(MosaicError, match=r"step 30: losses/qf1_loss.*learning_rate"):
        train_run(place / "run", name, config)
    assert ("losses/qf1_loss", 30) in {(event["tag"], event["step"]) for event in events(place / "run", "anomaly")}
    last = latest_checkpoint(place / "run")
    assert last.step == 29
    assert all(np.isfinite(weight).all() for weight in last.weights.values())


@EACH
def test_the_bootstrap_value_at_a_time_limit_uses_the_last_observation(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observations: list[tuple[Any, Any, Any]] = []
    original = Replay.sample

    def record(self: Replay, batch: Any) -> None:
        original(self, batch)
        observations.extend(
            zip(batch.observations.copy(), batch.next_observations.copy(), batch.terminals.copy(), strict=True)
        )

    class CountingEnv(Corridor):
        """Observations are the numbers of the episode and of the step."""

        episode = 0

        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            super().reset(**options)
            self.episode += 1
            self._position = 0.0
            return np.array([self.episode, 0.0]), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self._position += 1
            return np.array([self.episode, self._position]), 1.0, False, False, {}

    monkeypatch.setattr(Replay, "sample", record)
    with register_env(limit=5, kind=CountingEnv, actions="box") as env_id:
        train_run(place / "run", name, config_of(name, env_id=env_id, total_timesteps=150))
    assert len(observations) > 500
    for previous, after, is_terminal in observations:
        assert (after - previous).tolist() == [0, 1]
        assert not is_terminal
    assert {after[1] for _, after, _ in observations} == {1, 2, 3, 4, 5}


@EACH
@pytest.mark.parametrize("observation", ["box", "image", "dict", "number"])
def test_observations_and_actions_of_every_fitting_kind_are_trained_on(
    name: str, observation: str, place: Path
) -> None:
    envs: list[Corridor] = []

    class RecordingEnv(Corridor):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            envs.append(self)

    with register_env(kind=RecordingEnv, observation=observation, actions="box") as env_id:
        config = config_of(name, env_id=env_id, total_timesteps=150)
        env = gymnasium.make(env_id)
        facts = MODULES[name].check(config, env)
        envs.clear()
        train_run(place / "run", name, config)
        policy = MODULES[name].load_policy(latest_checkpoint(place / "run"))
        assert facts["actions"] == [2, 1]
        assert facts["backend"] == "numpy"
        sent = np.array([action for env in envs for action in env.received])
        assert sent.shape == (150, 2, 1)
        assert -0.5 <= sent.min() < -0.4
        assert 0.4 < sent.max() <= 0.5
        if observation != "dict":
            observations = np.array([env.observation_space.sample() for _ in range(3)])
            rng = np.random.default_rng(1)
            for is_deterministic in (True, False):
                chosen = policy.act(observations, is_deterministic, rng)
                assert all(env.action_space.contains(action) for action in chosen)
        env.close()


@EACH
def test_the_policy_of_a_checkpoint_acts_as_cleanrls_actor_would(name: str, place: Path) -> None:
    import torch
    from torch.nn import Linear
    from torch.nn.functional import relu

    train_run(place / "run", name, config_of(name, total_timesteps=200))
    checkpoint = latest_checkpoint(place / "run")
    states = MODULES[name].state_dict_of(checkpoint)
    assert len(states) == (2 if name == "ddpg_continuous_action" else 3)
    heads = ["fc_mean", "fc_logstd"] if name == "sac_continuous_action" else ["fc_mu"]
    kinds = ("weight", "bias")
    assert list(states[0]) == [
        "action_scale", "action_bias", *(f"{layer}.{kind}" for layer in ("fc1", "fc2", *heads) for kind in kinds)
    ]  # fmt: skip
    assert list(states[1]) == [f"fc{number}.{kind}" for number in (1, 2, 3) for kind in kinds]

    save_state_dict(place / "model", states)
    loaded = torch.load(place / "model", weights_only=True)
    assert isinstance(loaded, tuple)
    actor = loaded[0]
    observations = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    hidden = torch.from_numpy(observations)
    for layer in ("fc1", "fc2"):
        linear = Linear(*actor[f"{layer}.weight"].shape[::-1])
        linear.load_state_dict({kind: actor[f"{layer}.{kind}"] for kind in kinds})
        hidden = relu(linear(hidden))
    mean = hidden @ actor[f"{heads[0]}.weight"].T + actor[f"{heads[0]}.bias"]
    expected = (torch.tanh(mean) * actor["action_scale"] + actor["action_bias"]).detach().numpy()
    policy = MODULES[name].load_policy(checkpoint)
    np.testing.assert_allclose(policy.act(observations, True, np.random.default_rng(0)), expected, atol=1e-5)
    assert (policy.act(observations, False, np.random.default_rng(0)) != expected).any()


@EACH
def test_a_replay_buffer_too_large_to_save_is_filled_again_before_updates_continue(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(name, checkpoint_replay_mb=0)
    train_run(place / "run", name, config, stop_at=256)
    updates: list[int] = []
    original = control_kernels.ActorCriticKernel._update_critics

    def record(kernel: Any) -> bool:
        updates.append(1)
        return original(kernel)

    monkeypatch.setattr(control_kernels.ActorCriticKernel, "_update_critics", record)
    run = train_run(place / "run", name, config, latest_checkpoint(place / "run"), stop_at=400)
    assert len(updates) == run.global_step - 356
    (warning,) = events(place / "run", "warning")
    assert warning["code"] == "resumed_inexactly"
    assert "checkpoint_replay_mb = 0" in warning["text"]


def test_a_forced_reset_counts_as_truncation(place: Path) -> None:
    with register_env(noise="foreign", actions="box", limit=50) as env_id:
        config = config_of("td3_continuous_action", env_id=env_id)
        train_run(place / "run", "td3_continuous_action", config, stop_at=220)
        train_run(place / "run", "td3_continuous_action", config, latest_checkpoint(place / "run"), stop_at=225)
    (warning,) = events(place / "run", "warning")
    assert warning["code"] == "resumed_inexactly"
    assert latest_checkpoint(place / "run").arrays["replay.cut.spots"].tolist() == [49, 99, 149, 199, 219]


def test_unsupported_spaces_are_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    cartpole, pendulum = gymnasium.make("CartPole-v1"), gymnasium.make("Pendulum-v1")
    for name, module in MODULES.items():
        with pytest.raises(BadInput) as refusal:
            module.check(config_of(name, env_id="CartPole-v1"), cartpole)
        assert str(refusal.value).startswith(
            f"{module.NAME} needs a continuous (Box) action space; CartPole-v1 has Discrete(2). These fit: ppo, dqn"
        )
        monkeypatch.setattr(replay, "available_memory_bytes", lambda: 1000)
        with pytest.raises(
            BadInput, match=r"replay buffer of 400 transitions, but only 0\.0 GB .* Lower buffer_size to"
        ):
            module.check(config_of(name), pendulum)
        monkeypatch.undo()
        pendulum.action_space = gymnasium.spaces.Box(-np.inf, 1.0, (1,), np.float32)
        with pytest.raises(BadInput, match=r"with bounds; Pendulum-v1 has Box\(1,\) without bounds. These fit: ppo_"):
            module.check(config_of(name), pendulum)
        pendulum = gymnasium.make("Pendulum-v1")


def test_tqc_refuses_what_cannot_work_and_a_model_file_of_any_number_of_critics_acts(place: Path) -> None:
    with pytest.raises(ValueError, match="top_quantiles_to_drop = 5 must be below n_quantiles = 5"):
        config_of("tqc", n_quantiles=5, top_quantiles_to_drop=5)
    default_sizes = tqc.NETWORK.hidden  # a model file does not state others
    config = config_of("tqc", cuda=False, total_timesteps=110, n_critics=3, n_quantiles=5, hidden_sizes=default_sizes)
    train_run(place / "run", "tqc", config)
    checkpoint = latest_checkpoint(place / "run")
    other = config_of("tqc", cuda=False, n_critics=3, n_quantiles=7)
    with pytest.raises(BadInput, match="its n_quantiles is 5, but the run's is 7"):
        train_run(place / "other", "tqc", other, checkpoint)
    observations, rng = np.zeros((2, 3), np.float32), np.random.default_rng(0)
    expected = tqc.load_policy(checkpoint).act(observations, True, rng)
    model = place / "model" / "Pendulum-v1__tqc__1__1" / "tqc.cleanrl_model"
    model.parent.mkdir(parents=True)
    save_state_dict(model, tqc.state_dict_of(checkpoint))
    assert (load_acting_policy(model).act(observations, True, rng) == expected).all()


def test_a_run_on_the_cpu_does_not_import_torch(place: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from cleanrl_worker.algorithms import sac_continuous_action as sac\n"
        "from tests.helpers.algorithm_cases import open_run\n"
        "config = sac.Config(env_id='Pendulum-v1', total_timesteps=120, learning_starts=100, batch_size=8)\n"
        "with open_run(Path(sys.argv[1]), config) as run:\n"
        "    sac.train(config, run)\n"
        "print(sorted({'torch', 'tensorboard', 'scipy'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(place / "run")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
