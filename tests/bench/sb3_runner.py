"""Trains with Stable-Baselines3, with CleanRL's settings:  python sb3_runner.py ALGORITHM --no-cuda --env-id … --seed …

Writes `charts/SPS` and `charts/episodic_return` for TensorBoard into the folder it is started in, as the other sides
do. Stands alone: it runs on the interpreter that has Stable-Baselines3, which need not have MOSAIC.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch.utils.tensorboard import SummaryWriter

REPORT_EVERY = 500


class SpeedReporter(BaseCallback):  # type: ignore[misc]
    def __init__(self, writer: SummaryWriter) -> None:
        super().__init__()
        self._writer = writer
        self._started_at = time.time()
        self._last_reported_step = 0

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self._writer.add_scalar("charts/episodic_return", info["episode"]["r"], self.num_timesteps)
        if self.num_timesteps - self._last_reported_step >= REPORT_EVERY:
            self._last_reported_step = self.num_timesteps
            speed = self.num_timesteps / (time.time() - self._started_at)
            self._writer.add_scalar("charts/SPS", speed, self.num_timesteps)
        return True


def ppo(env: VecEnv, common: dict[str, Any]) -> Any:
    return sb3.PPO(
        "MlpPolicy", env, learning_rate=lambda left: 2.5e-4 * left, n_steps=128, batch_size=128, n_epochs=4,
        ent_coef=0.01, clip_range_vf=0.2, **common,
    )  # fmt: skip


def ppo_continuous_action(env: VecEnv, common: dict[str, Any]) -> Any:
    return sb3.PPO(
        "MlpPolicy", VecNormalize(env), learning_rate=lambda left: 3e-4 * left, n_steps=2048, batch_size=64,
        n_epochs=10, clip_range_vf=0.2, **common,
    )  # fmt: skip


def dqn(env: VecEnv, common: dict[str, Any]) -> Any:
    return sb3.DQN(
        "MlpPolicy", env, learning_rate=2.5e-4, buffer_size=10_000, batch_size=128, train_freq=10,
        target_update_interval=500, exploration_fraction=0.5, policy_kwargs={"net_arch": [120, 84]}, **common,
    )  # fmt: skip


def sac_continuous_action(env: VecEnv, common: dict[str, Any]) -> Any:
    return sb3.SAC("MlpPolicy", env, learning_rate=3e-4, policy_kwargs={"net_arch": [256, 256]}, **common)


def td3_continuous_action(env: VecEnv, common: dict[str, Any]) -> Any:
    return sb3.TD3("MlpPolicy", env, **_ddpg_options(env), **common)


def ddpg_continuous_action(env: VecEnv, common: dict[str, Any]) -> Any:
    return sb3.DDPG("MlpPolicy", env, **_ddpg_options(env), **common)


def _ddpg_options(env: VecEnv) -> dict[str, Any]:
    shape = env.action_space.shape
    assert shape is not None
    noise = NormalActionNoise(np.zeros(shape), np.full(shape, 0.1))
    return {
        "learning_rate": 3e-4, "batch_size": 256, "action_noise": noise, "policy_kwargs": {"net_arch": [256, 256]},
    }  # fmt: skip


MODELS: dict[str, tuple[Callable[[VecEnv, dict[str, Any]], Any], int]] = {
    "ppo": (ppo, 4),
    "ppo_continuous_action": (ppo_continuous_action, 1),
    "dqn": (dqn, 1),
    "sac_continuous_action": (sac_continuous_action, 1),
    "td3_continuous_action": (td3_continuous_action, 1),
    "ddpg_continuous_action": (ddpg_continuous_action, 1),
}
"""How each is made, and with how many environments."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=MODELS)
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--total-timesteps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--learning-starts", type=int)
    chosen = parser.parse_args()
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    make, num_envs = MODELS[chosen.algorithm]
    common: dict[str, Any] = {"seed": chosen.seed, "device": "cpu" if chosen.no_cuda else "auto"}
    if chosen.learning_starts is not None:
        common["learning_starts"] = chosen.learning_starts
    model = make(make_vec_env(chosen.env_id, num_envs, seed=chosen.seed), common)
    with SummaryWriter("runs") as writer:
        model.learn(chosen.total_timesteps, SpeedReporter(writer))


if __name__ == "__main__":
    main()
