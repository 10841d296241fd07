"""The environment that a script runs in: the caller's own, and beside it the probe and its instructions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mosaic.contracts.folder import RUN_DIR_VARIABLE, TENSORBOARD_VARIABLE, RunFolder
from mosaic.probe.build import build_probe

INSTRUCTIONS_VARIABLE = "MOSAIC_PROBE"
"""Tells the probe what to do: words such as `frames=1` and `total_timesteps=500`."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_WANDB_FOLDER_VARIABLES = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR")


def wandb_variables(folder: RunFolder) -> dict[str, str]:
    """What keeps everything that wandb writes inside of the run."""
    return {name: str(folder.wandb if name != "WANDB_DIR" else folder.path) for name in _WANDB_FOLDER_VARIABLES}


def script_environment(
    caller_env: Mapping[str, str],
    folder: RunFolder,
    cache_folder: Path,
    parts: Mapping[str, bool],
    *,
    total_timesteps: int | None = None,
    threads: int = 1,
) -> dict[str, str]:
    """`place` is where built probes are kept; `parts` are the switches of contracts.script.ProbeParts."""
    environment = dict(caller_env)
    for name in _THREAD_VARIABLES:
        # All cores for one run is a trap: beside another one, spinning barriers slow both a hundredfold.
        environment.setdefault(name, str(threads))
    environment.setdefault("PYTHONUNBUFFERED", "1")  # or its log would lag by kilobytes
    environment[RUN_DIR_VARIABLE] = str(folder.path)
    environment[TENSORBOARD_VARIABLE] = str(folder.tensorboard)
    if any(parts.values()):
        words = [f"{name}={int(value)}" for name, value in parts.items()]
        words += [f"total_timesteps={total_timesteps}"] if total_timesteps else []
        environment[INSTRUCTIONS_VARIABLE] = " ".join(words)
        theirs = caller_env.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(build_probe(cache_folder)), *([theirs] if theirs else [])])
    if parts.get("frames"):
        environment.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        if not (caller_env.get("DISPLAY") or caller_env.get("WAYLAND_DISPLAY")):
            # Without a screen, drawing must not look for one: SDL complains, and GLFW ends the process.
            environment.setdefault("SDL_VIDEODRIVER", "dummy")
            environment.setdefault("MUJOCO_GL", "egl")
    if parts.get("wandb"):
        environment.setdefault("WANDB_MODE", "offline")
        environment.update(wandb_variables(folder))
    return environment
