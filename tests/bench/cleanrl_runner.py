"""Runs one of CleanRL's own scripts, unedited, on Gymnasium 1.x:  python cleanrl_runner.py SCRIPT.py [its flags…]

The scripts were written for Gymnasium 0.29. Left alone on 1.x they read no episode and learn from wrong transitions,
because a vector environment then spends a step on each reset. What differs is put back as it was, and nothing else:

- SyncVectorEnv resets in the step that ends an episode, and `final_info` is a list with one dict (or None) for each
  environment, `final_observation` its last observation;
- TransformObservation takes a function alone;
- the wrappers around Atari games have the names that they had, and the games are registered;
- where gym is not installed, what the scripts for envpool use of it is there, and envpool speaks as it did with it.

Stands alone: it runs on CleanRL's interpreter, which need not have MOSAIC.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode


def info_of_env(columns: dict[str, Any], index: int) -> dict[str, Any]:
    """What one environment said, out of the arrays in which Gymnasium 1.x gathers what all of them said."""
    row: dict[str, Any] = {}
    for name, column in columns.items():
        if name.startswith("_") or not columns.get(f"_{name}", np.ones(index + 1, dtype=bool))[index]:
            continue
        row[name] = info_of_env(column, index) if isinstance(column, dict) else column[index]
    return row


def convert_infos_to_029(infos: dict[str, Any]) -> dict[str, Any]:
    if "final_info" not in infos:
        return infos
    ended = infos["_final_info"]
    rows = [info_of_env(infos["final_info"], index) if has_ended else None for index, has_ended in enumerate(ended)]
    for row in rows:
        if row is not None and "episode" in row:
            # Some scripts index the statistics: they were arrays of one number.
            row["episode"] = {name: np.array([value]) for name, value in row["episode"].items()}
    return {**infos, "final_info": rows, "final_observation": infos["final_obs"], "_final_observation": ended}


class SameStepVectorEnv(gymnasium.vector.SyncVectorEnv):
    def __init__(self, env_fns: Any, **options: Any) -> None:
        super().__init__(env_fns, **{"autoreset_mode": AutoresetMode.SAME_STEP, **options})

    def step(self, actions: Any) -> Any:
        *transition, infos = super().step(actions)
        return *transition, convert_infos_to_029(infos)


class TransformObservation(gymnasium.wrappers.TransformObservation):
    def __init__(self, env: Any, func: Callable[[Any], Any], observation_space: Any = None) -> None:
        super().__init__(env, func, observation_space or env.observation_space)


def restore_atari_names() -> None:
    wrappers: Any = gymnasium.wrappers
    wrappers.GrayScaleObservation = wrappers.GrayscaleObservation
    wrappers.FrameStack = wrappers.FrameStackObservation
    with suppress(ImportError):
        import ale_py

        gymnasium.register_envs(ale_py)


class GymEnvPool:
    """envpool for gym: a reset gives observations alone, a step four values."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.action_space, self.observation_space = pool.action_space, pool.observation_space

    def reset(self) -> Any:
        return self._pool.reset()[0]

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = self._pool.step(actions)
        return observations, rewards, terminated | truncated, infos

    def close(self) -> None:
        self._pool = None


class GymWrapper:
    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["env"], name)

    def reset(self, **options: Any) -> Any:
        return self.env.reset(**options)

    def step(self, actions: Any) -> Any:
        return self.env.step(actions)


def install_gym_shim() -> None:
    if importlib.util.find_spec("gym") is not None:
        return
    with suppress(ImportError):
        import envpool

        make = envpool.make

        def made(task: str, env_type: str, **settings: Any) -> GymEnvPool:
            threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
            return GymEnvPool(make(task, env_type="gymnasium", num_threads=threads, **settings))

        envpool.make = made
        gym, wrappers, normalize = (ModuleType(name) for name in ("gym", "gym.wrappers", "gym.wrappers.normalize"))
        vars(gym).update(Wrapper=GymWrapper, spaces=gymnasium.spaces, wrappers=wrappers)
        vars(normalize).update(RunningMeanStd=gymnasium.wrappers.utils.RunningMeanStd)
        sys.modules.update({module.__name__: module for module in (gym, wrappers, normalize)})


def main() -> None:
    gymnasium.vector.SyncVectorEnv = SameStepVectorEnv  # type: ignore[assignment,misc]
    gymnasium.wrappers.TransformObservation = TransformObservation  # type: ignore[misc]
    restore_atari_names()
    if "envpool" in sys.argv[1]:
        install_gym_shim()
    import torch

    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    sys.path.insert(1, os.path.dirname(sys.path[0]))  # for CleanRL's own modules
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
