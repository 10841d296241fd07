"""Downloads a policy from the Hub: a repository that `mosaic push` created, or one of CleanRL's own upload."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import HfApi, ModelCard
from pydantic import ValidationError

from mosaic.contracts.errors import BadInput
from mosaic.contracts.model import format_validation_error
from mosaic.hub.description import (
    CARD_FILE,
    CORE_SETTINGS,
    DESCRIPTION_FILE,
    MODEL_SUFFIX,
    HashedFile,
    PolicyDescription,
    PullRequest,
    PullResult,
)

if TYPE_CHECKING:
    from mosaic.hub.hub_process import ReplyWriter

MAX_TEXT_BYTES = 4 << 20
_SETTINGS_BLOCK = re.compile(r"```(?:python)?\s*(\{.*?\})\s*```", re.DOTALL)
_NON_ALGORITHM_SETTINGS = (
    *("track", "wandb_project_name", "wandb_entity", "capture_video", "save_model", "upload_model", "hf_entity"),
    *("torch_deterministic", "cuda", "exp_name", "env_id", "seed", "total_timesteps"),
    *("batch_size", "minibatch_size", "num_iterations"),
)
"""Settings on CleanRL's cards that do not belong to the algorithm, or are computed from others."""


def pull(api: HfApi, request: PullRequest, replies: ReplyWriter) -> PullResult:
    with replies.time_limit():
        info = api.model_info(request.repo, revision=request.revision, files_metadata=True)
    sizes = {entry.rfilename: entry.size or 0 for entry in info.siblings or ()}

    def download(name: str) -> Path:
        if name not in sizes:
            raise BadInput(f"The repository {request.repo} lacks {name}. Pull another revision: --revision SHA")
        with replies.time_limit(sizes[name]):
            return Path(api.hf_hub_download(request.repo, name, revision=info.sha, local_dir=request.into))

    def read_text(name: str) -> str:
        if sizes[name] > MAX_TEXT_BYTES:
            raise BadInput(f"{name} of {request.repo} is not downloaded: it is larger than {MAX_TEXT_BYTES} bytes.")
        return download(name).read_text(encoding="utf-8", errors="replace")

    card = read_text(CARD_FILE) if CARD_FILE in sizes else ""
    if DESCRIPTION_FILE in sizes:
        policy = _parse_description(read_text(DESCRIPTION_FILE))
    else:
        policy = describe_cleanrl_repo(request.repo, sorted(sizes), card)
    names = list(policy.files) or [str(policy.model)]
    total, done = sum(sizes.get(name, 0) for name in names), 0
    for name in names:  # one by one, so that progress can be shown
        replies.send_progress(name, done, total)
        done += download(name).stat().st_size
    with replies.time_limit(total):
        mismatches = api.verify_repo_checksums(request.repo, revision=info.sha, local_dir=request.into).mismatches
    if mismatches:
        raise BadInput(f"{mismatches[0]['path']} differs from the Hub's copy (hash mismatch). Try again.")
    for name, expected in policy.files.items():
        if HashedFile.of(request.into / name) != expected:
            problem = f"{name} does not match {DESCRIPTION_FILE} (hash mismatch)"
            raise BadInput(f"{problem}. Pull another revision: --revision SHA")
    replies.send_progress("", total, total)
    return PullResult(
        repo=request.repo,
        url=f"{api.endpoint}/{request.repo}",
        commit=str(info.sha),
        policy=policy,
        size_bytes=done,
    )


def _parse_description(text: str) -> PolicyDescription:
    try:
        policy = PolicyDescription.model_validate_json(text)
    except ValidationError as error:
        raise BadInput(f"The repository's {DESCRIPTION_FILE} is invalid: {format_validation_error(error)}") from None
    missing = [name for name in [*policy.checkpoint_files(), policy.model] if name and name not in policy.files]
    if missing or (policy.step is None and policy.model is None):
        raise BadInput(f"The repository's {DESCRIPTION_FILE} lists no {missing[0] if missing else 'policy'}.")
    return policy


def describe_cleanrl_repo(repo: str, names: list[str], card: str) -> PolicyDescription:
    """Reads the algorithm from the model file's name, environment and settings from the card. Runs no code of it."""
    models = [name for name in names if name.endswith(MODEL_SUFFIX) and "/" not in name]
    if len(models) != 1:
        count = f"{len(models)} files" if models else "no file"
        known = f"neither MOSAIC's (no {DESCRIPTION_FILE}) nor CleanRL's ({count} *{MODEL_SUFFIX})"
        raise BadInput(f"The repository {repo} is {known}.")
    settings = _parse_settings(card)
    env_id = settings.get("env_id") or _parse_env_id(card)
    if not env_id:
        raise BadInput(f"The card of {repo} names no environment, so its policy cannot be evaluated.")
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
        raise BadInput(f"The card of {repo} is invalid ({error.errors()[0]['msg']}).") from None


def _parse_settings(card: str) -> dict[str, Any]:
    block = _SETTINGS_BLOCK.search(card)
    try:
        settings = ast.literal_eval(block.group(1)) if block else {}
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return {key: value for key, value in settings.items() if isinstance(key, str)} if isinstance(settings, dict) else {}


def _parse_env_id(card: str) -> str | None:
    """Returns the data set of the card's first result."""
    try:
        results = getattr(ModelCard(card, ignore_metadata_errors=True).data, "eval_results", None)
    except (ValueError, TypeError, AttributeError):
        return None
    name = results[0].dataset_name if results else None
    return name if isinstance(name, str) else None
