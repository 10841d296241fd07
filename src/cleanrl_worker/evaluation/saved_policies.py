"""Saved policies: a checkpoint, a run, or a file of weights. Nothing is unpickled."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cleanrl_worker.registry import ALGORITHMS, load_algorithm
from cleanrl_worker.shell.user_cleanrl import USER_CLEANRL_PREFIX
from cleanrl_worker.shell.worker_config import CORE_SETTINGS, WORKER_NAME
from mosaic.base.checkpoint_files import list_steps
from mosaic.base.limited_json import MAX_BYTES, decode_limited
from mosaic.contracts.errors import BadInput, CheckpointDamaged, ConfigRefused, MosaicError, WrongWorker
from mosaic.contracts.folder import RunFolder
from mosaic.worker.checkpoints import Checkpoint, last_good_checkpoint, load_checkpoint
from mosaic.worker.sb3_policy import SB3, SB3_SUFFIX
from mosaic.worker.torch_files import read_metadata, read_weights

MODEL_SUFFIX = ".cleanrl_model"
_CLEANRL_RUN_NAME = re.compile(r"(?P<env_id>.+)__(?P<algo>.+)__(?P<seed>\d+)__\d+")
"""The pattern of CleanRL's run folder names."""


_STATED_FACTS = (
    *("algorithm", "config", "shape", "inputs", "backend", "first_action", "observation_count"),
    *("agents", "policies"),
)
_STATED_ARRAYS = ("observation.", "action.", "wrapper.", "noise")
_STATED_KEYS = ("run_id", "saved_at", "score", "versions")


@dataclass(frozen=True)
class SavedPolicy:
    """A saved policy and its metadata."""

    path: Path
    checkpoint: Checkpoint | None = None
    """A MOSAIC checkpoint, with everything that acting needs; None if there are only weights."""
    weights: Any = None
    """The content of a model file: a state dict, or several in a tuple or a dictionary."""
    algo: str | None = None
    env_id: str | None = None
    seed: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    """The settings it was trained with, as far as they are known."""
    stated: Checkpoint | None = None
    """What a model file states besides its weights, if a run of ours wrote it: a checkpoint without weights."""

    @property
    def env_settings(self) -> dict[str, Any]:
        """What its environment was created with besides the id."""
        settings, wrappers = self.config.get("env_kwargs"), self.config.get("wrappers")
        own = settings if isinstance(settings, dict) else {}
        return {**own, "wrappers": wrappers} if isinstance(wrappers, list) and wrappers else own

    @property
    def step(self) -> int | None:
        source = self.checkpoint or self.stated
        return None if source is None else source.step

    @property
    def arrays(self) -> dict[str, Any]:
        """The statistics of its normalization and the bounds of its actions, as far as they are known."""
        source = self.checkpoint or self.stated
        return {} if source is None else source.arrays


def find_policy(path: str) -> SavedPolicy:
    """Find the policy of a checkpoint folder, a run folder or a file of weights; raise if it is damaged."""
    target = Path(path).expanduser()
    if (target / "manifest.json").exists():
        return _policy_from_checkpoint(load_checkpoint(target, with_parts=False))
    if target.is_file():
        return _policy_from_model(target.absolute())
    if target.suffix == MODEL_SUFFIX:
        raise BadInput(f"There is no file {target}.")
    folder = RunFolder(target)
    if list_steps(folder):
        checkpoint = last_good_checkpoint(folder, with_parts=False)
        if checkpoint is None:
            raise CheckpointDamaged(
                f"No good checkpoint under {folder.checkpoints}. Train the run again, or resume it."
            )
        return _policy_from_checkpoint(checkpoint)
    models = sorted(folder.models.glob(f"**/*{MODEL_SUFFIX}"), key=lambda model: model.stat().st_mtime)
    if models:
        return _policy_from_model(models[-1])
    raise BadInput(f"{target} is neither a checkpoint nor a run folder with checkpoints.")


def _policy_from_checkpoint(checkpoint: Checkpoint, path: Path | None = None) -> SavedPolicy:
    config = checkpoint.facts.get("config") or {}
    worker = checkpoint.manifest.get("worker")
    if worker not in (None, WORKER_NAME) and checkpoint.facts.get("algorithm") not in ALGORITHMS:
        raise WrongWorker(f"The checkpoint {checkpoint.path} is of the worker {worker!r}, not of {WORKER_NAME!r}.")
    return SavedPolicy(
        path or checkpoint.path,
        checkpoint,
        algo=checkpoint.facts.get("algorithm"),
        env_id=config.get("env_id"),
        seed=config.get("seed"),
        config=config,
    )


def _policy_from_model(path: Path) -> SavedPolicy:
    """Read a model file; in a MOSAIC run the checkpoint with the same weights is used, because it has everything."""
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
    stated = _read_metadata(path)
    if stated is not None:
        config = stated.facts["config"]
        names = {"algo": stated.facts["algorithm"], "env_id": config.get("env_id"), "seed": config.get("seed")}
        return SavedPolicy(path, None, weights, **names, config=config, stated=stated)
    return SavedPolicy(path, None, weights, **_model_metadata(path, weights))


def format_metadata(checkpoint: Checkpoint) -> str:
    """Format what a model file states of a checkpoint: all that acting needs except for the weights, and its origin."""
    arrays = {
        name: {"dtype": array.dtype.str, "shape": array.shape, "hex": array.tobytes().hex()}
        for name, array in checkpoint.arrays.items()
        if name.startswith(_STATED_ARRAYS)
    }
    text = json.dumps(
        {
            "step": checkpoint.step,
            "manifest": {key: checkpoint.manifest.get(key) for key in _STATED_KEYS},
            "facts": {key: value for key, value in checkpoint.facts.items() if key in _STATED_FACTS},
            "arrays": arrays,
        }
    )
    return text if len(text) <= MAX_BYTES else ""


def _read_metadata(path: Path) -> Checkpoint | None:
    text = read_metadata(path)
    if not text:
        return None
    try:
        data = decode_limited(text, f"The metadata of {path}")
        arrays = {
            name: np.frombuffer(bytes.fromhex(entry["hex"]), np.dtype(entry["dtype"])).reshape(entry["shape"])
            for name, entry in data["arrays"].items()
        }
        stated = Checkpoint(path, data["step"], {}, arrays, data["facts"], data["manifest"])
        config = stated.facts["config"]
        names = (config["env_id"], stated.facts["algorithm"], config["seed"], stated.step)
        if [*map(type, names)] != [str, str, int, int] or not isinstance(stated.manifest, dict):
            raise ValueError("a value has another type than expected")
    except (ConfigRefused, AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointDamaged(f"The metadata of {path} is damaged ({error}). Use a checkpoint of its run.") from None
    return stated


def _model_state(checkpoint: Checkpoint) -> Any:
    """Return the state dict that a run would save as its model with this checkpoint; None for an unknown algorithm."""
    try:
        return load_algorithm(checkpoint.facts["algorithm"]).state_dict_of(checkpoint)
    except (MosaicError, KeyError, ValueError):
        return None


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return set(left) == set(right) and all(_is_equal(part, right[name]) for name, part in left.items())
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        return len(left) == len(right) and all(map(_is_equal, left, right))
    return bool(np.array_equal(left, right))


def _model_metadata(path: Path, weights: Any) -> dict[str, Any]:
    """Collect metadata from the run's config, from settings in the model file and from the name of its folder."""
    match = _CLEANRL_RUN_NAME.fullmatch(path.parent.name)
    metadata: dict[str, Any] = (
        {} if match is None else {"env_id": match["env_id"], "algo": match["algo"], "seed": int(match["seed"])}
    )
    if match is not None and path.parents[1].name != "runs" and path.parents[2].name == "runs":
        metadata["env_id"] = f"{path.parents[1].name}/{metadata['env_id']}"  # `ALE/Pong-v5` creates a folder `ALE`.
    if path.stem in ALGORITHMS or "algo" not in metadata:
        metadata["algo"] = path.stem if path.stem in ALGORITHMS else None
    config: dict[str, Any] = {}
    if isinstance(weights, dict) and isinstance(weights.get("args"), dict):
        config |= weights["args"]
    for folder in (path.parent, *path.parents[1:3]):
        config |= _read_worker_config(folder / "config.json")
    for key in ("algo", "env_id", "seed"):
        if config.get(key) is not None:
            metadata[key] = config[key]
    if isinstance(metadata["algo"], str):
        metadata["algo"] = metadata["algo"].removeprefix(USER_CLEANRL_PREFIX)
    return {**metadata, "config": config}


def _read_worker_config(path: Path) -> dict[str, Any]:
    """Read the settings of a payload or a bare worker config; empty if there is no readable one."""
    try:
        data = json.loads(path.read_bytes())
        config = data["metadata"]["worker"]["config"] if "metadata" in data else data
        settings = config.get("algo_params") or (config.get("extras") or {}).get("algo_params")
        known = {key: config[key] for key in ("algo", *CORE_SETTINGS) if config.get(key) is not None}
        return {**(settings or {}), **known}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


# --- metadata for choosing a policy


def inspect_policy(path: str) -> dict[str, Any]:
    """Return the metadata of a checkpoint, of a run's latest one, or of a model file; raise if it is damaged."""
    if path.endswith(SB3_SUFFIX) and Path(path).is_file():
        return {"kind": "sb3", "path": path, "algo": SB3}
    policy = find_policy(path)
    is_model = policy.path.is_file()
    metadata = {
        "kind": "cleanrl_model" if is_model else "checkpoint",
        "path": str(policy.path),
        "step": policy.step,
        "algo": policy.algo,
        "env_id": policy.env_id,
        "seed": policy.seed,
        "config": policy.config,
    }
    source = policy.checkpoint or policy.stated
    if source is not None:
        metadata |= {key: source.manifest.get(key) for key in _STATED_KEYS}
    weights = policy.checkpoint.weights if policy.checkpoint is not None else flatten_weights(policy.weights)
    return metadata | {"weights": {name: list(array.shape) for name, array in weights.items()}}


def flatten_weights(weights: Any, parts: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the arrays of a model file by name; in a tuple of state dicts, the name of its part is the prefix."""
    if isinstance(weights, dict) and isinstance(weights.get("model_weights"), dict):
        weights = weights["model_weights"]
    if isinstance(weights, (tuple, list)) and weights and all(isinstance(part, dict) for part in weights):
        names = parts if len(parts) == len(weights) else tuple(map(str, range(len(weights))))
        weights = {
            f"{name}.{key}": array for name, part in zip(names, weights, strict=True) for key, array in part.items()
        }
    if not isinstance(weights, dict) or not all(isinstance(array, np.ndarray) for array in weights.values()):
        raise MosaicError("The file does not contain a state dict.")
    return {str(name): array for name, array in weights.items()}
