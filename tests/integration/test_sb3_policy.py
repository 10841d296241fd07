"""Policies of Stable-Baselines3 are read without unpickling, and act as that library does."""

from __future__ import annotations

import base64
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from mosaic.arena.sb3_policy import Sb3Policy, read_statistics
from mosaic.contracts.errors import BadInput

sb3 = pytest.importorskip("stable_baselines3")
OBSERVATIONS = 50


@pytest.mark.parametrize(
    ("algorithm", "env_id", "settings"),
    [
        ("PPO", "CartPole-v1", {}),
        ("A2C", "Pendulum-v1", {}),
        ("DQN", "CartPole-v1", {}),
        ("SAC", "Pendulum-v1", {}),
        ("TD3", "Pendulum-v1", {}),
        ("PPO", "CartPole-v1", {"policy_kwargs": {"net_arch": [16, 16, 8]}}),
    ],
)
def test_a_saved_policy_acts_as_the_library_does(
    algorithm: str, env_id: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    env = gymnasium.make(env_id)
    model = getattr(sb3, algorithm)("MlpPolicy", env, seed=1, device="cpu", **settings)
    model.save(tmp_path / "model")
    policy = Sb3Policy(tmp_path / "model.zip", env.observation_space, env.action_space)
    rng = np.random.default_rng(1)
    for _ in range(OBSERVATIONS):
        observation = rng.normal(size=env.observation_space.shape or ()).astype(np.float32)
        expected, _ = model.predict(observation, deterministic=True)
        assert np.allclose(policy.act(observation), expected, atol=1e-5)


class ImageEnv(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, True, False, {}


def test_a_policy_that_sees_images_acts_as_the_library_does(tmp_path: Path) -> None:
    model = sb3.PPO("CnnPolicy", ImageEnv(), seed=1, device="cpu", n_steps=8, batch_size=8)
    model.save(tmp_path / "model")
    policy = Sb3Policy(tmp_path / "model.zip", ImageEnv.observation_space, ImageEnv.action_space)
    for seed in range(5):
        image = np.random.default_rng(seed).integers(0, 255, (36, 36, 4), np.uint8)
        expected, _ = model.predict(image, deterministic=True)
        assert policy.act(image) == expected


@pytest.fixture
def model_zip(tmp_path: Path) -> Path:
    sb3.PPO("MlpPolicy", "CartPole-v1", seed=1, device="cpu").save(tmp_path / "model")
    return tmp_path / "model.zip"


def spaces(env_id: str) -> tuple[Any, Any]:
    env = gymnasium.make(env_id)
    return env.observation_space, env.action_space


def test_code_in_the_file_does_not_run(model_zip: Path, tmp_path: Path) -> None:
    """F25: the library would unpickle it."""
    mark = tmp_path / "executed"

    class Payload:
        def __reduce__(self) -> Any:
            return (mark.touch, ())

    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(model_zip) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "data":
                coded = base64.b64encode(pickle.dumps(Payload())).decode()
                content = json.dumps(json.loads(content) | {"extra": {":serialized:": coded}}).encode()
            new.writestr(name, content)
    Sb3Policy(changed, *spaces("CartPole-v1")).act(np.zeros(4))
    assert not mark.exists()


def test_a_policy_that_does_not_fit_is_refused_with_the_reason(model_zip: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="observations of 4 values; those here have 8"):
        Sb3Policy(model_zip, *spaces("LunarLander-v3"))
    observation_space, _ = spaces("CartPole-v1")
    with pytest.raises(BadInput, match="among 2 actions; here are 1"):
        Sb3Policy(model_zip, observation_space, spaces("Pendulum-v1")[1])
    (tmp_path / "other.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    with pytest.raises(BadInput, match="it has no 'data'"):
        Sb3Policy(tmp_path / "other.zip", *spaces("CartPole-v1"))


def test_statistics_of_vecnormalize_are_applied(tmp_path: Path) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    envs = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    envs.seed(1)
    envs.reset()
    for _ in range(50):
        envs.step(np.array([[0.5]], np.float32))
    envs.save(str(tmp_path / "vecnormalize.pkl"))
    model = sb3.PPO("MlpPolicy", envs, seed=1, device="cpu")
    model.save(tmp_path / "model")
    statistics = read_statistics(tmp_path / "vecnormalize.pkl")
    policy = Sb3Policy(tmp_path / "model.zip", *spaces("Pendulum-v1"), statistics)
    observation = np.array([0.3, -0.9, 2.0], np.float32)
    expected, _ = model.predict(envs.normalize_obs(observation), deterministic=True)
    assert np.allclose(policy.act(observation), expected, atol=1e-5)


def test_statistics_with_code_are_refused(tmp_path: Path) -> None:
    """F25"""
    mark = tmp_path / "executed"

    class Payload:
        def __reduce__(self) -> Any:
            return (mark.touch, ())

    (tmp_path / "statistics.pkl").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(BadInput, match="it would create"):
        read_statistics(tmp_path / "statistics.pkl")
    assert not mark.exists()
