"""Observations that are images: seen through convolutions by the algorithms for continuous actions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tests.helpers import image_env  # noqa: F401 (registers Spot-v0)
from tests.helpers.algorithm_cases import assert_same_checkpoint, latest_checkpoint, train_run

from cleanrl_worker.algorithms import base, run_checks
from cleanrl_worker.algorithms.ppo_continuous_action import Agent, loss
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.autograd_learners import PpoAutogradLearner, PpoByteLearner
from cleanrl_worker.learners.ppo_kernels import RolloutBatch
from cleanrl_worker.learners.torch_backend import TorchContext
from cleanrl_worker.learners.torch_image import ImageFeatures
from cleanrl_worker.registry import load_algorithm
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.worker import envs

ROLLOUT: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 2}
REPLAY: dict[str, Any] = {"learning_starts": 20, "buffer_size": 100, "batch_size": 4}
SMALL: dict[str, Any] = {"env_id": "Spot-v0", "hidden_sizes": (8,), "cuda": False, "total_timesteps": 48}
CASES: dict[str, dict[str, Any]] = {
    "ppo_continuous_action": ROLLOUT, "rpo_continuous_action": ROLLOUT, "sac_continuous_action": REPLAY,
    "td3_continuous_action": REPLAY, "ddpg_continuous_action": REPLAY, "tqc": REPLAY,
}  # fmt: skip
GRAY_FRAMES = ("grayscale", "resize-observation(shape=(36, 37))", "frame-stack(stack_size=2)")


def make_config(name: str, **settings: Any) -> Any:
    return load_algorithm(name).Config(**{**SMALL, **CASES[name], **settings})


@pytest.mark.parametrize("name", CASES)
def test_a_stopped_training_resumes_as_if_it_had_not_been_stopped_and_its_policy_acts(
    name: str, tmp_path: Path
) -> None:
    module, config = load_algorithm(name), make_config(name)
    train_run(tmp_path / "straight", name, config)
    train_run(tmp_path / "stopped", name, config, stop_at=32)
    # For PPO, the rollout that ends there is abandoned, unless updates are fast.
    assert latest_checkpoint(tmp_path / "stopped").step in ((16, 32) if name.startswith("ppo") else (32,))
    train_run(tmp_path / "stopped", name, config, latest_checkpoint(tmp_path / "stopped"))
    checkpoint = latest_checkpoint(tmp_path / "stopped")
    assert_same_checkpoint(checkpoint, latest_checkpoint(tmp_path / "straight"))
    assert (checkpoint.facts["backend"], checkpoint.facts["shape"]["image"]) == ("torch", [40, 40, 3])
    assert (32, 3, 8, 8) in {part.shape for part in checkpoint.weights.values()}
    assert "observation_count" not in checkpoint.facts

    images = np.random.default_rng(1).integers(0, 256, (3, 40, 40, 3)).astype(np.uint8)
    actions = module.load_policy(checkpoint).act(images, True, np.random.default_rng(1))
    assert actions.shape == (3, 1)
    assert len(set(actions.ravel().tolist())) == 3
    assert module.state_dict_of(checkpoint)


@pytest.mark.parametrize("name", ["ppo_continuous_action", "sac_continuous_action"])
def test_wrapped_images_are_seen_by_a_network_of_their_size(name: str, tmp_path: Path) -> None:
    config = make_config(name, wrappers=GRAY_FRAMES)
    train_run(tmp_path, name, config)
    checkpoint = latest_checkpoint(tmp_path)
    assert checkpoint.facts["shape"]["image"] == [2, 36, 37]
    assert (32, 2, 8, 8) in {part.shape for part in checkpoint.weights.values()}


def test_the_check_counts_bytes_of_images_and_names_the_backend() -> None:
    env = envs.make("Spot-v0")
    config = make_config("sac_continuous_action", total_timesteps=5000, buffer_size=1000)
    facts = load_algorithm("sac_continuous_action").check(config, env)
    assert (facts["backend"], facts["encodes_images"]) == ("torch", True)
    assert 1000 * 4800 <= facts["replay_bytes"] < 1000 * 4900
    assert run_checks.observation_warnings(env, facts["encodes_images"]) == []
    assert "flattened" in run_checks.observation_warnings(env)[0]


@pytest.mark.parametrize("name", ["ppo_continuous_action", "sac_continuous_action"])
def test_numpy_is_refused_for_images(name: str) -> None:
    with pytest.raises(MosaicError, match="numpy does not compute convolutions") as refused:
        load_algorithm(name).check(make_config(name, backend="numpy"), envs.make("Spot-v0"))
    assert [problem.path for problem in refused.value.problems] == ["backend"]


@pytest.mark.parametrize(
    ("shape", "dtype", "image"),
    [
        ((96, 96, 3), np.uint8, (96, 96, 3)),
        ((4, 84, 84), np.uint8, (4, 84, 84)),
        ((64, 48), np.uint8, (64, 48)),
        ((4, 64, 48, 3), np.uint8, (4, 64, 48, 3)),
        ((7, 7, 3), np.uint8, None),
        ((96, 96, 3), np.float32, None),
        ((6912,), np.uint8, None),
    ],
)
def test_images_are_bytes_of_a_size_for_convolutions(shape: Any, dtype: Any, image: Any) -> None:
    assert base.find_image(gymnasium.spaces.Box(0, 255, shape, dtype)) == image


@pytest.mark.parametrize("name", ["ppo_continuous_action", "sac_continuous_action"])
def test_a_run_from_before_there_were_convolutions_is_resumed_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(name)
    with monkeypatch.context() as earlier:
        earlier.setattr(base, "find_image", lambda space: None)
        train_run(tmp_path / "straight", name, config)
        train_run(tmp_path / "stopped", name, config, stop_at=32)
    train_run(tmp_path / "stopped", name, config, latest_checkpoint(tmp_path / "stopped"))
    assert_same_checkpoint(latest_checkpoint(tmp_path / "stopped"), latest_checkpoint(tmp_path / "straight"))


# --- the network


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_axes_of_an_image_may_have_any_order_and_what_follows_it_is_passed_on(dtype: torch.dtype) -> None:
    images = np.random.default_rng(1).integers(0, 256, (2, 2, 40, 44, 3)).astype(np.uint8)  # two stacked frames
    features = ImageFeatures((2, 40, 44, 3), None)
    channels_first = torch.from_numpy(images.transpose(0, 1, 4, 2, 3).reshape(2, 6, 40, 44).astype(np.float32) / 255)
    rows = torch.cat([torch.from_numpy(images).reshape(2, -1).to(dtype), torch.full((2, 3), 7, dtype=dtype)], 1)
    found = features(rows)
    assert torch.equal(found[:, -3:], torch.full((2, 3), 7.0))
    torch.testing.assert_close(found[:, :-3], features.network(channels_first))
    assert found.shape[1] == features.features + 3


def test_learning_from_bytes_is_learning_from_the_same_floats() -> None:
    """The learner that keeps images as bytes updates as the one whose rollout is all floats."""
    architecture = Architecture((8,), "tanh", image=(36, 36, 1))
    rng = np.random.default_rng(1)
    observations = rng.integers(0, 256, (16, 36 * 36)).astype(np.uint8)
    columns = {
        name: rng.standard_normal(16).astype(np.float32) for name in ("log_probs", "advantages", "returns", "values")
    }
    actions = rng.standard_normal((16, 2)).astype(np.float32)
    settings: Any = SimpleNamespace(
        norm_adv=True, clip_coef=0.2, clip_vloss=True, ent_coef=0.01, vf_coef=0.5, max_grad_norm=0.5
    )
    agents = [Agent(36 * 36, 2, architecture) for _ in range(2)]
    agents[0].initialize(rng)
    agents[1].load_state_dict(agents[0].state_dict())
    before = agents[0].state_dict()
    values = []
    for agent, kind, dtype in zip(agents, (PpoByteLearner, PpoAutogradLearner), (np.uint8, np.float32), strict=True):
        learner = kind(agent.network, agent.module(), loss, 4, settings, TorchContext.set_up(cuda=False))
        learner.begin_update(1e-3)
        batch = RolloutBatch(observations=observations.astype(dtype), actions=actions, **columns)
        learner.run_epoch(batch, np.arange(16)[::-1].copy())
        learner.sync_networks()
        if isinstance(learner, PpoByteLearner):
            values.append(learner.state_values(observations))
        else:
            values.append(agent.network.critic_values(observations))
    for key, part in agents[0].state_dict().items():
        assert (part == agents[1].state_dict()[key]).all()
        assert (part != before[key]).any()
    np.testing.assert_allclose(values[0], values[1], rtol=1e-5, atol=1e-6)


# --- wrappers


def test_images_are_resized_by_averaging_pixels_in_their_order() -> None:
    env = envs.make("Spot-v0", wrappers=("resize-observation(shape=(20, 10))",))
    assert env.observation_space.shape == (20, 10, 3)
    image, _ = env.reset(seed=1)
    original, _ = envs.make("Spot-v0").reset(seed=1)
    averages = original.reshape(20, 2, 10, 4, 3).astype(float).mean((1, 3))
    assert image.shape == (20, 10, 3)
    assert np.abs(image - averages).max() <= 1


def test_what_is_not_an_image_cannot_be_resized() -> None:
    with pytest.raises(BadInput, match="it needs images of bytes"):
        envs.make("Pendulum-v1", wrappers=("resize-observation",))
