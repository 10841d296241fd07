"""Saved policies as they are found: a checkpoint, a run, or a file of weights. Nothing is unpickled."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_worker.registry import ALGORITHMS, load_algorithm
from cleanrl_worker.user_cleanrl import USER_CLEANRL_PREFIX
from mosaic.contracts.errors import BadInput, CheckpointDamaged, MosaicError
from mosaic.contracts.folder import RunFolder
from mosaic.run import Checkpoint, last_good_checkpoint, load_checkpoint
from mosaic.run.checkpoints import list_steps
from mosaic.run.torchreader import read_weights

Json = dict[str, Any]
MODEL_SUFFIX = ".cleanrl_model"
_CLEANRL_RUN_NAME = re.compile(r"(?P<env_id>.+)__(?P<algo>.+)__(?P<seed>\d+)__\d+")
"""How CleanRL names the folder of a run."""


@dataclass(frozen=True)
class SavedPolicy:
    """A policy that somebody has saved, and what is known of it."""

    path: Path
    checkpoint: Checkpoint | None = None
    """Ours, with everything that acting needs; none where there are only weights."""
    weights: Any = None
    """What a model file holds: a state dict, or several in a tuple or a dictionary."""
    algo: str | None = None
    env_id: str | None = None
    seed: int | None = None
    config: Json = field(default_factory=dict)
    """The settings it was trained with, as far as they are known."""

    @property
    def step(self) -> int | None:
        return None if self.checkpoint is None else self.checkpoint.step


def find_policy(path: str) -> SavedPolicy:
    """What is meant by a checkpoint's folder, by a run's folder, or by a file of weights; refused where damaged."""
    given = Path(path).expanduser()
    if (given / "manifest.json").exists():
        return _policy_from_checkpoint(load_checkpoint(given, with_parts=False))
    if given.is_file():
        return _policy_from_model(given.absolute())
    if given.suffix == MODEL_SUFFIX:
        raise BadInput(f"There is no file {given}.")
    folder = RunFolder(given)
    if list_steps(folder):
        found = last_good_checkpoint(folder, with_parts=False)
        if found is None:
            raise CheckpointDamaged(
                f"No good checkpoint under {folder.checkpoints}. Train the run again, or resume it."
            )
        return _policy_from_checkpoint(found)
    models = sorted(folder.models.glob(f"**/*{MODEL_SUFFIX}"), key=lambda model: model.stat().st_mtime)
    if models:
        return _policy_from_model(models[-1])
    raise BadInput(f"{given} is neither a checkpoint nor a run folder with checkpoints.")


def _policy_from_checkpoint(checkpoint: Checkpoint, path: Path | None = None) -> SavedPolicy:
    config = checkpoint.facts.get("config") or {}
    return SavedPolicy(
        path or checkpoint.path,
        checkpoint,
        algo=checkpoint.facts.get("algorithm"),
        env_id=config.get("env_id"),
        seed=config.get("seed"),
        config=config,
    )


def _policy_from_model(path: Path) -> SavedPolicy:
    """A model file of one of our runs stands for the checkpoint that holds the same weights, and all the rest."""
    weights = read_weights(path)
    folder = RunFolder(path.parents[2]) if len(path.parents) > 2 else None
    if folder is not None:
        for step in reversed(list_steps(folder)):
            try:
                checkpoint = load_checkpoint(folder.checkpoint(step), with_parts=False)
            except CheckpointDamaged:
                continue
            if _is_equal(_model_state(checkpoint), weights):
                return _policy_from_checkpoint(checkpoint, path)
    return SavedPolicy(path, None, weights, **_model_metadata(path, weights))


def _model_state(checkpoint: Checkpoint) -> Any:
    """What a run would save as its model with this checkpoint; nothing where it is none of ours."""
    try:
        return load_algorithm(checkpoint.facts["algorithm"]).state_dict_of(checkpoint)
    except (MosaicError, KeyError, ValueError):
        return None


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return set(one) == set(other) and all(_is_equal(part, other[name]) for name, part in one.items())
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    return bool(np.array_equal(one, other))


def _model_metadata(path: Path, weights: Any) -> Json:
    """What stands beside a model file or in it: its run's config, settings saved along, the name of its folder."""
    named = _CLEANRL_RUN_NAME.fullmatch(path.parent.name)
    said: Json = {} if named is None else {"env_id": named["env_id"], "algo": named["algo"], "seed": int(named["seed"])}
    if named is not None and path.parents[1].name != "runs" and path.parents[2].name == "runs":
        said["env_id"] = f"{path.parents[1].name}/{said['env_id']}"  # `ALE/Pong-v5` makes a folder `ALE`
    if path.stem in ALGORITHMS or "algo" not in said:
        said["algo"] = path.stem if path.stem in ALGORITHMS else None
    config: Json = {}
    if isinstance(weights, dict) and isinstance(weights.get("args"), dict):
        config |= weights["args"]
    for folder in (path.parent, *path.parents[1:3]):
        config |= _read_worker_config(folder / "config.json")
    for key in ("algo", "env_id", "seed"):
        if config.get(key) is not None:
            said[key] = config[key]
    if isinstance(said["algo"], str):
        said["algo"] = said["algo"].removeprefix(USER_CLEANRL_PREFIX)
    return {**said, "config": config}


def _read_worker_config(path: Path) -> Json:
    """Of a payload or of a bare worker config; empty where there is none that can be read."""
    try:
        said = json.loads(path.read_bytes())
        said = said["metadata"]["worker"]["config"] if "metadata" in said else said
        extras = said.get("extras") or {}
        known = {key: said[key] for key in ("algo", "env_id", "seed", "total_timesteps") if said.get(key) is not None}
        return {**(extras.get("algo_params") or {}), **known}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


# --- for those who choose one


def inspect_policy(path: str) -> Json:
    """The metadata of a checkpoint, of a run's newest one, or of a model file; refused where damaged."""
    found = find_policy(path)
    is_model = found.path.is_file()
    said: Json = {
        "kind": "cleanrl_model" if is_model else "checkpoint",
        "path": str(found.path),
        "step": found.step,
        "algo": found.algo,
        "env_id": found.env_id,
        "seed": found.seed,
        "config": found.config,
    }
    if found.checkpoint is not None:
        manifest = found.checkpoint.manifest
        said |= {key: manifest.get(key) for key in ("run_id", "saved_at", "score", "versions")}
    weights = found.checkpoint.weights if found.checkpoint is not None else flatten_weights(found.weights)
    return said | {"weights": {name: list(array.shape) for name, array in weights.items()}}


def flatten_weights(weights: Any, parts: tuple[str, ...] = ()) -> dict[str, Any]:
    """The arrays of a model file by name. In a tuple of state dicts each has the name of its part before its own."""
    if isinstance(weights, dict) and isinstance(weights.get("model_weights"), dict):
        weights = weights["model_weights"]
    if isinstance(weights, (tuple, list)) and weights and all(isinstance(part, dict) for part in weights):
        names = parts if len(parts) == len(weights) else tuple(map(str, range(len(weights))))
        weights = {
            f"{name}.{key}": array for name, part in zip(names, weights, strict=True) for key, array in part.items()
        }
    if not isinstance(weights, dict) or not all(isinstance(array, np.ndarray) for array in weights.values()):
        raise MosaicError("It holds no state dict.")
    return {str(name): array for name, array in weights.items()}
