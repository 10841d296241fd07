"""Makes the files of this folder with Stable-Baselines3, which the tests do not need: `python tests/data/sb3/make.py`.

Small networks, so that the files are small; `expected.json` has the actions that the library chooses.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3 as sb3
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

FOLDER = Path(__file__).parent
SMALL: dict[str, Any] = {"seed": 1, "device": "cpu", "policy_kwargs": {"net_arch": [8, 8]}}
OBSERVATIONS = 20


class PartsEnv(gymnasium.Env[Any, Any]):
    """Observations of several parts, in another order than that of their names."""

    observation_space = Dict({"speed": Box(-1, 1, (3,)), "place": Discrete(5), "flags": MultiBinary(2)})
    action_space = Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), float(np.sum(action)), False, False, {}


def expected_of_samples(model: Any) -> dict[str, list[Any]]:
    model.observation_space.seed(1)
    observations = [model.observation_space.sample() for _ in range(OBSERVATIONS)]
    actions = [model.predict(observation, deterministic=True)[0].tolist() for observation in observations]
    return {"observations": [_plain(observation) for observation in observations], "actions": actions}


def _plain(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {name: _plain(part) for name, part in observation.items()}
    return np.asarray(observation).tolist()


def expected_actions(model: Any, normalize: Any = None) -> dict[str, list[Any]]:
    observations = np.random.default_rng(1).normal(size=(OBSERVATIONS, *model.observation_space.shape))
    observations = observations.astype(np.float32)
    seen = observations if normalize is None else normalize(observations)
    actions = [model.predict(observation, deterministic=True)[0].tolist() for observation in seen]
    return {"observations": observations.tolist(), "actions": actions}


def shrink(path: Path) -> None:
    """Keep what a policy is read from, without pickled values, which hold paths of this machine."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in ("data", "policy.pth", "_stable_baselines3_version")}
    data = json.loads(members["data"])
    for name, value in data.items():
        if isinstance(value, dict) and ":serialized:" in value:
            data[name] = {key: text for key, text in value.items() if key in (":type:", "__module__")}
    members["data"] = json.dumps(data).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


def main() -> None:
    expected = {}
    ppo = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=256, n_epochs=20, learning_rate=0.003, **SMALL)
    lake = sb3.PPO("MlpPolicy", "FrozenLake-v1", n_steps=256, n_epochs=20, learning_rate=0.003, **SMALL)
    models = {
        "ppo_cartpole": ppo.learn(25_000),
        "ppo_lake": lake.learn(25_000),
        "ppo_parts": sb3.PPO("MultiInputPolicy", PartsEnv(), n_steps=256, **SMALL).learn(1000),
        "sac_pendulum": sb3.SAC("MlpPolicy", "Pendulum-v1", buffer_size=10, **SMALL),
    }
    for name, model in models.items():
        model.save(FOLDER / name)
        shrink(FOLDER / f"{name}.zip")
        expected[name] = expected_of_samples(model) if name in ("ppo_lake", "ppo_parts") else expected_actions(model)
    envs = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    envs.seed(1)
    envs.reset()
    for _ in range(50):
        envs.step(np.array([[0.5]], np.float32))
    envs.save(str(FOLDER / "vecnormalize.pkl"))
    expected["normalized"] = expected_actions(models["sac_pendulum"], envs.normalize_obs)
    (FOLDER / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
