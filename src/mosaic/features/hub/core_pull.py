"""Downloads a policy from the Hub and creates a run of it: a run like any other, except that it was trained elsewhere.

The repository is one that `mosaic push` created, or one of CleanRL's own upload.
"""

from __future__ import annotations

import ast
import math
import os
import re
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mosaic.base.algorithm_schema import get_algorithm
from mosaic.base.files import write_json, write_text
from mosaic.base.journal import Journal
from mosaic.base.worker_registry import get_worker
from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.model import format_validation_error
from mosaic.contracts.states import HistoryEntry, Outcome, RunRecord, Stage
from mosaic.features.hub.core import (
    CARD_FILE,
    CORE_SETTINGS,
    DESCRIPTION_FILE,
    EVALUATION_FILE,
    MODEL_SUFFIX,
    VIDEO_FILE,
    HashedFile,
    PolicyDescription,
    PullResult,
)
from mosaic.features.hub.core_push import TIMEOUT_S, OnProgress, hub_session

MAX_TEXT_BYTES = 4 << 20
MAX_GB = 10.0
"""Of all files of a policy, unless the caller allows more."""
HUB_TAG = "hub"
_SETTINGS_BLOCK = re.compile(r"```(?:python)?\s*(\{.*?\})\s*```", re.DOTALL)
_NON_ALGORITHM_SETTINGS = (
    *("track", "wandb_project_name", "wandb_entity", "capture_video", "save_model", "upload_model", "hf_entity"),
    *("torch_deterministic", "cuda", "exp_name", "env_id", "seed", "total_timesteps"),
    *("batch_size", "minibatch_size", "num_iterations"),
)
"""Settings on CleanRL's cards that do not belong to the algorithm, or are computed from others."""


def pull(
    repo: str,
    into: Path,
    revision: str | None = None,
    on_progress: OnProgress = lambda *_: None,
    timeout_s: float = TIMEOUT_S,
    max_gb: float = MAX_GB,
) -> PullResult:
    """Downloads the files of a policy into the folder `into` and checks them; refuses more than `max_gb` of them."""
    with hub_session(repo, timeout_s) as api:
        info = api.model_info(repo, revision=revision, files_metadata=True)
        sizes = {entry.rfilename: entry.size or 0 for entry in info.siblings or ()}

        def download(name: str) -> Path:
            if name not in sizes:
                raise BadInput(f"The repository {repo} lacks {name}. Pull another revision: --revision SHA")
            return Path(api.hf_hub_download(repo, name, revision=info.sha, local_dir=into))

        def read_text(name: str) -> str:
            if sizes[name] > MAX_TEXT_BYTES:
                raise BadInput(f"{name} of {repo} is not downloaded: it is larger than {MAX_TEXT_BYTES} bytes.")
            return download(name).read_text(encoding="utf-8", errors="replace")

        card = read_text(CARD_FILE) if CARD_FILE in sizes else ""
        if DESCRIPTION_FILE in sizes:
            policy = _parse_description(read_text(DESCRIPTION_FILE))
        else:
            policy = describe_cleanrl_repo(repo, sorted(sizes), card)
        names = list(policy.files) or [str(policy.model)]
        total, done = sum(sizes.get(name, 0) for name in names), 0
        if total > max_gb * 1e9:
            raise BadInput(
                f"The policy of {repo} has {total / 1e9:,.1f} GB, more than {max_gb:g} GB, and is not downloaded. "
                f"If you want it all: --max-gb {math.ceil(total / 1e9)}"
            )
        for name in names:  # one by one, so that progress can be shown
            on_progress(done, total)
            done += download(name).stat().st_size
            if done > max(total, 1):
                raise BadInput(f"{name} of {repo} is larger than the Hub states. Try again.")
        mismatches = api.verify_repo_checksums(repo, revision=info.sha, local_dir=into).mismatches
        if mismatches:
            raise BadInput(f"{mismatches[0]['path']} differs from the Hub's copy (hash mismatch). Try again.")
        for name, expected in policy.files.items():
            if HashedFile.of(into / name) != expected:
                problem = f"{name} does not match {DESCRIPTION_FILE} (hash mismatch)"
                raise BadInput(f"{problem}. Pull another revision: --revision SHA")
        on_progress(total, total)
        return PullResult(repo, f"{api.endpoint}/{repo}", str(info.sha), policy)


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
    from huggingface_hub import ModelCard

    try:
        results = getattr(ModelCard(card, ignore_metadata_errors=True).data, "eval_results", None)
    except (ValueError, TypeError, AttributeError):
        return None
    name = results[0].dataset_name if results else None
    return name if isinstance(name, str) else None


def check_loadable(policy: PolicyDescription) -> None:
    """Raises where no installed worker can load the policy."""
    get_worker(policy.worker)
    if get_algorithm(policy.algo).worker.id != policy.worker:
        raise BadInput(f"{policy.algo!r} is not an algorithm of worker {policy.worker!r} in this installation.")


def create_run_folder(source: Path, target: RunFolder, run_id: str, pulled: PullResult) -> None:
    """Moves only files that the description names, each to its place; anything else stays in `source`."""
    policy = pulled.policy
    now = time.time()
    target.path.mkdir(parents=True, exist_ok=True)
    if policy.step is not None:
        for name, inside in policy.checkpoint_files().items():
            _move(source / name, target.checkpoint(policy.step) / inside)
        for link in (target.last_checkpoint, target.best_checkpoint):
            link.symlink_to(str(policy.step))
    if policy.model is not None:
        _move(source / policy.model, target.model(f"{policy.env_id}__{policy.algo}__{policy.seed}__0", policy.algo))
    for name, parent in ((VIDEO_FILE, target.videos), (EVALUATION_FILE, target.hub), (CARD_FILE, target.hub)):
        if (source / name).is_file() and (name == CARD_FILE or name in policy.files):
            _move(source / name, parent / name)
    target.logs.mkdir(exist_ok=True)
    write_json(target.config, policy.to_payload())
    message = f"Pulled from {pulled.url}, revision {pulled.commit[:10]}."
    record = RunRecord(
        run_id=run_id,
        stage=Stage.FINISHED,
        outcome=Outcome.SUCCEEDED,
        reason=message,
        worker=policy.worker,
        algo=policy.algo,
        env_id=policy.env_id,
        seed=policy.seed,
        total_timesteps=policy.total_timesteps,
        tags=(HUB_TAG,),
        notes=message,
        submitted_at=now,
        queued_at=now,
        finished_at=now,
        history=(HistoryEntry(at=now, stage=Stage.FINISHED, message=message),),
    )
    write_text(target.record, record.model_dump_json(indent=2) + "\n")
    if policy.step is not None:  # what lists and forms show of a run: its progress and its checkpoint
        journal = Journal(target.journal)
        journal.append("progress", global_step=policy.step, total_timesteps=policy.total_timesteps)
        path = f"{target.checkpoints.name}/{policy.step}"
        journal.append("checkpoint", step=policy.step, path=path, is_best=True, score=policy.score)
        journal.close()


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)
