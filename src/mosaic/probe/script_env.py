"""Builds the environment variables of a script: those of the caller, plus the probe and its instructions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mosaic.contracts.folder import RUN_DIR_VARIABLE, TENSORBOARD_VARIABLE, RunFolder
from mosaic.probe.build import build_probe
from mosaic.probe.inside.hooks import INSTRUCTIONS_VARIABLE, SCRIPT_DIR_VARIABLE

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_WANDB_FOLDER_VARIABLES = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR")


def wandb_variables(folder: RunFolder) -> dict[str, str]:
    """Return the variables that keep everything wandb writes inside the run folder."""
    wandb = folder.origin / folder.wandb.name
    return {name: str(wandb if name != "WANDB_DIR" else folder.origin) for name in _WANDB_FOLDER_VARIABLES}


def script_environment(
    caller_env: Mapping[str, str],
    folder: RunFolder,
    cache_folder: Path,
    parts: Mapping[str, bool],
    cwd: str,
    *,
    total_timesteps: int | None = None,
    threads: int = 1,
) -> dict[str, str]:
    """`cache_folder` holds built probes, `parts` are the switches of ProbeParts, `cwd` is the script's."""
    environment = dict(caller_env)
    for name in _THREAD_VARIABLES:
        # Not all cores for one run: with two runs, spinning barriers would slow both a hundredfold.
        environment.setdefault(name, str(threads))
    environment.setdefault("PYTHONUNBUFFERED", "1")  # or its log would lag by kilobytes of buffer
    environment.setdefault("PYTHONFAULTHANDLER", "1")  # a crash in C code prints the Python stack
    environment[RUN_DIR_VARIABLE] = str(folder.origin)
    environment[TENSORBOARD_VARIABLE] = str(folder.origin / folder.tensorboard.name)
    if any(parts.values()):
        instructions = [f"{name}={int(value)}" for name, value in parts.items()]
        instructions += [f"total_timesteps={total_timesteps}"] if total_timesteps else []
        environment[INSTRUCTIONS_VARIABLE] = " ".join(instructions)
        environment[SCRIPT_DIR_VARIABLE] = cwd
        caller_path = caller_env.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(build_probe(cache_folder)), *([caller_path] if caller_path else [])]
        )
    if parts.get("frames"):
        environment.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        if not (caller_env.get("DISPLAY") or caller_env.get("WAYLAND_DISPLAY")):
            # Without a display, rendering must not open one: SDL warns, and GLFW kills the process.
            environment.setdefault("SDL_VIDEODRIVER", "dummy")
            environment.setdefault("MUJOCO_GL", "egl")
    if parts.get("wandb"):
        environment.setdefault("WANDB_MODE", "offline")
        environment.update(wandb_variables(folder))
    return environment
