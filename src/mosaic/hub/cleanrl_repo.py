"""Repositories that are not ours: what CleanRL's own upload says of the policy in it. Nothing of it is run."""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mosaic.contracts.errors import BadInput
from mosaic.hub.description import CORE_SETTINGS, MODEL_SUFFIX, PolicyDescription

_SETTINGS_BLOCK = re.compile(r"```(?:python)?\s*(\{.*?\})\s*```", re.DOTALL)
_NON_ALGORITHM_SETTINGS = (
    *("track", "wandb_project_name", "wandb_entity", "capture_video", "save_model", "upload_model", "hf_entity"),
    *("torch_deterministic", "cuda", "exp_name", "env_id", "seed", "total_timesteps"),
    *("batch_size", "minibatch_size", "num_iterations"),
)
"""What its settings hold besides those of the algorithm, or compute from them."""


def describe_repo(repo: str, names: list[str], card: str) -> PolicyDescription:
    """Algorithm by the model file's name, environment and settings by the card."""
    models = [name for name in names if name.endswith(MODEL_SUFFIX) and "/" not in name]
    if len(models) != 1:
        found = f"{len(models)} files" if models else "no file"
        raise BadInput(
            f"The repository {repo} is neither MOSAIC's (no mosaic.json) nor CleanRL's ({found} *{MODEL_SUFFIX})."
        )
    settings = _parse_settings(card)
    env_id = settings.get("env_id") or _parse_env_id(card)
    if not env_id:
        raise BadInput(f"The card of {repo} names no environment, so its policy cannot be played.")
    try:
        return PolicyDescription(
            worker="cleanrl",
            algo=models[0].removesuffix(MODEL_SUFFIX),
            env_id=env_id,
            **{key: settings[key] for key in CORE_SETTINGS[1:] if isinstance(settings.get(key), int)},
            settings={key: value for key, value in settings.items() if key not in _NON_ALGORITHM_SETTINGS},
            model=models[0],
            files={},
        )
    except ValidationError as error:
        raise BadInput(f"The card of {repo} cannot be used ({error.errors()[0]['msg']}).") from None


def _parse_settings(card: str) -> dict[str, Any]:
    found = _SETTINGS_BLOCK.search(card)
    try:
        said = ast.literal_eval(found.group(1)) if found else {}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return {key: value for key, value in said.items() if isinstance(key, str)} if isinstance(said, dict) else {}


def _parse_env_id(card: str) -> str | None:
    """The data set of the card's first result."""
    from huggingface_hub import ModelCard

    try:
        results = getattr(ModelCard(card, ignore_metadata_errors=True).data, "eval_results", None)
    except (ValueError, TypeError, AttributeError):
        return None
    name = results[0].dataset_name if results else None
    return name if isinstance(name, str) else None


def check_against_hub(path: Path, name: str, entry: Any) -> None:
    """Large files are known by their sha256, small ones by git's hash of their content."""
    if entry.lfs is not None:
        with open(path, "rb") as file:
            is_same = hashlib.file_digest(file, "sha256").hexdigest() == entry.lfs.sha256
    elif entry.blob_id:
        content = path.read_bytes()
        is_same = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == entry.blob_id
    else:
        is_same = entry.size is None or entry.size == path.stat().st_size
    if not is_same:
        raise BadInput(f"{name} did not arrive as the Hub has it (hash mismatch). Try again.")
