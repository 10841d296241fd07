"""Decides for which runs the keeper starts a sidecar, with which arguments, and which packages it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from mosaic.base.processes import without_working_directory
from mosaic.base.secret_store import find_secret, secrets_path
from mosaic.contracts.errors import FieldProblem, MissingExtra
from mosaic.contracts.folder import TOKEN_VARIABLE, RunFolder
from mosaic.contracts.options import OPTIONS, value_at
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import Attempt
from mosaic.features.hub.core import requested_repo
from mosaic.features.tracking.sidecar.wandb_environment import is_wandb_installed, netrc_path
from mosaic.keeper.launch_spec import ProgramSpec

_TRAINING_OPTIONS = ("capture_video", "save_model", "upload_model", "hf_entity")


def build_sidecar_spec(
    folder: RunFolder,
    payload: Payload,
    attempt: Attempt,
    caller_env: Mapping[str, str] | None = None,
    tracking: Mapping[str, str] | None = None,
    has_wandb_probe: bool = False,
) -> ProgramSpec | None:
    """Returns None where a sidecar would have nothing to do. No secret is passed: the sidecar reads the key itself.

    `caller_env` is the environment of a user's program. Such a program tracks itself; where the probe keeps it offline
    (`has_wandb_probe`) and it did not choose a WANDB_MODE, what it writes is uploaded. `tracking` is what the caller of
    another run sets for W&B and the Hub.
    """
    env = without_working_directory(os.environ)
    env.pop(TOKEN_VARIABLE, None)
    repo = requested_repo(payload) if caller_env is None else None
    if caller_env is None:
        env |= tracking or {}
        is_wanted = payload.artifacts.wandb.enabled or payload.artifacts.trackio.enabled
        if payload.artifacts.wandb.enabled:
            folder.wandb.mkdir(exist_ok=True)  # marks a run that is tracked with W&B
    else:
        env |= {
            name: value
            for name, value in caller_env.items()
            if name.startswith("WANDB_") or name.lower() in ("http_proxy", "https_proxy", "no_proxy")
        }
        is_wanted = has_wandb_probe and "WANDB_MODE" not in caller_env and is_wandb_installed() and _may_have_key(env)
    if not is_wanted and repo is None:
        return None
    argv = [sys.executable, "-P", "-m", "mosaic.features.tracking.sidecar", "go", str(folder.path)]
    argv += ["--journal-from", str(attempt.journal_from), "--keeper-from", str(attempt.keeper_from)]
    argv += ["--upload-only"] if caller_env is not None else []
    if repo is not None:
        argv += ["--push", repo] if is_wanted else ["--push", repo, "--push-only"]
    return {"argv": argv, "cwd": str(folder.path), "env": env, "log_name": "sidecar"}


def require_packages(payload: Payload) -> None:
    """Refuses tracking, uploads and videos that lack a package in this Python, the worker's and sidecar's too."""
    artifacts = payload.artifacts
    video = artifacts.video
    push_later = "leave out --upload-model and push the policy after the training: mosaic push RUN"
    rows = (
        (artifacts.wandb.enabled, "Tracking", "wandb", "wandb", "artifacts.wandb.enabled", "leave out --track"),
        (artifacts.trackio.enabled, "Tracking", "trackio", "trackio", "artifacts.trackio.enabled", "turn it off"),
        (requested_repo(payload), "Uploading", "huggingface_hub", "hub", "artifacts.model.upload", push_later),
        (video.capture, "Saving a video", "av", "video", "artifacts.video.capture", "turn it off"),
        (
            video.capture_evaluation,
            "Saving a video",
            "av",
            "video",
            "artifacts.video.capture_evaluation",
            "turn it off",
        ),
    )
    for is_requested, purpose, package, extra, path, alternative in rows:
        if is_requested and find_spec(package) is None:
            command = f"pip install 'mosaic-rl[{extra}]'"
            message = f"{purpose} needs {package}, which is not installed: {command}, or {alternative}."
            raise MissingExtra(message, [FieldProblem(path, message)])


def unused_option_warnings(payload: Payload, caller_env: Mapping[str, str]) -> tuple[str, ...]:
    """What a payload sets without effect, or without what it needs, as far as that may change until the run ends."""
    data, artifacts, wandb = payload.to_json(), payload.artifacts, payload.artifacts.wandb
    given = [one.name for one in OPTIONS.values() if value_at(data, one.path) not in (None, one.default)]
    of_wandb = [name for name in given if name.startswith("wandb_")]
    of_training = [name for name in given if name in _TRAINING_OPTIONS]
    has_proxy = bool(wandb.http_proxy or wandb.https_proxy)
    rows = {
        "tensorboard_dir has no effect: TensorBoard is turned off for this run.": (
            artifacts.tensorboard.directory and not artifacts.tensorboard.enabled
        ),
        "The proxies for W&B have no effect without wandb_use_vpn_proxy.": has_proxy and not wandb.use_vpn_proxy,
        f"Without effect, as the run is not tracked (--track): {', '.join(of_wandb)}.": of_wandb and not wandb.enabled,
        f"Without effect on an evaluation: {', '.join(of_training)}.": of_training and payload.is_evaluation,
        "hf_entity has no effect: the policy is not uploaded (--upload-model).": (
            artifacts.model.hub_entity and not (artifacts.model.upload or payload.is_evaluation)
        ),
        "The policy cannot be uploaded: there is no token of the Hub. Set HF_TOKEN, or log in: hf auth login": (
            requested_repo(payload) and not _has_hub_token({**os.environ, **caller_env})
        ),
    }
    return tuple(text for text, applies in rows.items() if applies)


def _has_hub_token(env: Mapping[str, str]) -> bool:
    """Looks where huggingface_hub does, which takes most of a second to import."""
    cache = Path(env.get("XDG_CACHE_HOME") or "~/.cache")
    home = Path(env.get("HF_HOME") or cache / "huggingface").expanduser()
    path = Path(env.get("HF_TOKEN_PATH") or home / "token").expanduser()
    return bool(env.get("HF_TOKEN", "").strip()) or find_secret("hf_token") is not None or path.is_file()


def _may_have_key(env: Mapping[str, str]) -> bool:
    """A quick check that spares users without W&B a process; the keyring is not asked."""
    has_key = bool(env.get("WANDB_API_KEY", "").strip()) or netrc_path(env).exists()
    return has_key or secrets_path().exists() or find_spec("keyring") is not None
