"""Patches Stable-Baselines3: vector environments, total steps and saved models."""

from __future__ import annotations

import functools
from typing import Any

from mosaic.probe.inside.core import current_probe
from mosaic.probe.inside.environments import patch_env_factories, patch_step_counting
from mosaic.probe.inside.hooks import report_failure
from mosaic.probe.inside.saves import report_saved_file


def patch_vector(module: Any) -> None:
    for name in ("DummyVecEnv", "SubprocVecEnv"):
        kind = vars(module).get(name)
        if kind is not None:
            patch_env_factories(kind)
            if name == "SubprocVecEnv":
                patch_step_counting(kind, "step_wait")


def patch_algorithm(module: Any) -> None:
    kind = module.BaseAlgorithm
    _patch_setup(kind)
    if "checkpoints" in current_probe().parts:
        _patch_save(kind)


def _patch_setup(kind: Any) -> None:
    original = kind._setup_learn

    @functools.wraps(original)
    def _setup_learn(self: Any, total_timesteps: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            probe = current_probe()
            if probe.total_timesteps is None:
                probe.total_timesteps = int(total_timesteps)
        except Exception as error:
            report_failure("arguments", error)
        return original(self, total_timesteps, *args, **kwargs)

    kind._setup_learn = _setup_learn


def _patch_save(kind: Any) -> None:
    original = kind.save

    @functools.wraps(original)
    def save(self: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, path, *args, **kwargs)
        try:
            if not hasattr(path, "write"):
                report_saved_file(str(path))
        except Exception as error:
            report_failure("checkpoints", error)
        return result

    kind.save = save
