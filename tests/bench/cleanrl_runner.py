"""Runs one of CleanRL's own scripts, unedited, on Gymnasium 1.x:  python cleanrl_runner.py SCRIPT.py [its flags…]

The scripts were written for Gymnasium 0.29. Left alone on 1.x they read no episode and learn from wrong transitions,
because a vector environment then spends a step on each reset. What differs is put back as it was, and nothing else:

- SyncVectorEnv resets in the step that ends an episode, and `final_info` is a list with one dict (or None) for each
  environment, `final_observation` its last observation;
- TransformObservation takes a function alone;
- the wrappers around Atari games have the names that they had, and the games are registered.

Stands alone: it runs on CleanRL's interpreter, which need not have MOSAIC.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode


def rows_of(columns: dict[str, Any], index: int) -> dict[str, Any]:
    """What one environment said, out of the arrays in which Gymnasium 1.x gathers what all of them said."""
    row: dict[str, Any] = {}
    for name, column in columns.items():
        if name.startswith("_") or not columns.get(f"_{name}", np.ones(index + 1, dtype=bool))[index]:
            continue
        row[name] = rows_of(column, index) if isinstance(column, dict) else column[index]
    return row


def as_in_029(infos: dict[str, Any]) -> dict[str, Any]:
    if "final_info" not in infos:
        return infos
    ended = infos["_final_info"]
    rows = [rows_of(infos["final_info"], index) if has_ended else None for index, has_ended in enumerate(ended)]
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
        return *transition, as_in_029(infos)


class TransformObservation(gymnasium.wrappers.TransformObservation):
    def __init__(self, env: Any, func: Callable[[Any], Any], observation_space: Any = None) -> None:
        super().__init__(env, func, observation_space or env.observation_space)


def name_atari_as_before() -> None:
    wrappers: Any = gymnasium.wrappers
    wrappers.GrayScaleObservation = wrappers.GrayscaleObservation
    wrappers.FrameStack = wrappers.FrameStackObservation
    with suppress(ImportError):
        import ale_py

        gymnasium.register_envs(ale_py)


def main() -> None:
    gymnasium.vector.SyncVectorEnv = SameStepVectorEnv  # type: ignore[assignment,misc]
    gymnasium.wrappers.TransformObservation = TransformObservation  # type: ignore[misc]
    name_atari_as_before()
    import torch

    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    sys.path.insert(1, os.path.dirname(sys.path[0]))  # for CleanRL's own modules
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
