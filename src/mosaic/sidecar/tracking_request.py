"""What a payload requests to be tracked, and the sidecar that the keeper starts for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mosaic.contracts.extras import flatten_sections
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import Payload
from mosaic.formatting import short_id
from mosaic.hub.description import requested_repo
from mosaic.keeper.launch_spec import ProgramSpec
from mosaic.secrets import secrets_path
from mosaic.sidecar.wandb_environment import is_wandb_installed, netrc_path
from mosaic.workers import discover_workers

DEFAULT_PROJECT = "mosaic"
MONITOR_VARIABLE = "WANDB_MONITOR_GYM"
"""W&B's variable for logging videos. Its hook into gym is never used: it breaks the closing of environments."""
_FALSE_VALUES = ("0", "false", "no", "off")
_MAX_TAG_CHARS = 64
_HIDDEN_PREFIXES = ("wandb_", "hf_", "track_", "upload_")
"""Options of tracking, which are not settings of the run."""


@dataclass(frozen=True)
class TrackedRunInfo:
    """What a tracker gets when it starts."""

    run_id: str
    name: str
    project: str
    entity: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    job_type: str = "train"
    config: dict[str, Any] = field(default_factory=dict)
    has_videos: bool = True
    """Whether videos are logged."""


@dataclass(frozen=True)
class TrackingRequest:
    wandb: TrackedRunInfo | None = None
    trackio: TrackedRunInfo | None = None

    def __bool__(self) -> bool:
        return self.wandb is not None or self.trackio is not None


def parse_tracking_request(payload: Payload, run_id: str, environ: Mapping[str, str] = os.environ) -> TrackingRequest:
    config = payload.metadata.worker.config
    wandb, trackio = payload.artifacts.wandb, payload.artifacts.trackio
    for_trackio = TrackedRunInfo(
        run_id=run_id,
        name=payload.run_name or _default_name(config, run_id),
        project=trackio.project or DEFAULT_PROJECT,
        group=payload.metadata.group,
        tags=tuple(tag[:_MAX_TAG_CHARS] for tag in payload.metadata.tags),
        notes=payload.metadata.notes,
        job_type="eval" if payload.is_evaluation else "train",
        config=flatten_config(payload),
        has_videos=environ.get(MONITOR_VARIABLE, "").strip().lower() not in _FALSE_VALUES,
    )
    for_wandb = replace(
        for_trackio,
        name=wandb.run_name or for_trackio.name,
        project=wandb.project or environ.get("WANDB_PROJECT") or DEFAULT_PROJECT,
        entity=wandb.entity or environ.get("WANDB_ENTITY") or None,
    )
    return TrackingRequest(for_wandb if wandb.enabled else None, for_trackio if trackio.enabled else None)


def is_user_program(payload: Payload) -> bool:
    """Returns whether the run is a user's program, which tracks itself."""
    choice = payload.metadata.worker
    known = discover_workers().get(choice.id)
    return known is not None and any(choice.config.get(key) is not None for key in known.programs)


def flatten_config(payload: Payload) -> dict[str, Any]:
    """Returns the settings of a run as one flat table, without tracking options, keys and proxies."""
    config = payload.metadata.worker.config
    flat = {name: value for name, value in config.items() if name != "algo_params" and value is not None}
    flat |= flatten_sections(payload.to_json())
    flat |= config.get("algo_params") or {}
    return {name: value for name, value in flat.items() if not name.startswith(_HIDDEN_PREFIXES)}


def _default_name(config: Mapping[str, Any], run_id: str) -> str:
    """Names a run as CleanRL does, with our id in place of the time."""
    parts = [str(config[key]) for key in ("env_id", "algo", "seed") if config.get(key) is not None]
    return "__".join([*parts, short_id(run_id)])


def build_sidecar_spec(
    folder: RunFolder, payload: Payload, caller_env: Mapping[str, str] | None, has_wandb_probe: bool = False
) -> ProgramSpec | None:
    """Returns None where a sidecar would have nothing to do. No secret is passed: the sidecar reads the key itself.

    `caller_env` is the environment of a user's program. Such a program tracks itself; where the probe keeps it offline
    (`has_wandb_probe`) and it did not choose a WANDB_MODE, what it writes is uploaded.
    """
    env = {name: value for name, value in os.environ.items() if name != "MOSAIC_TOKEN"}
    repo = requested_repo(payload) if caller_env is None else None
    if caller_env is None:
        request = parse_tracking_request(payload, folder.run_id, env)
        is_wanted = bool(request)
        if request.wandb is not None:
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
    argv = [sys.executable, "-m", "mosaic.sidecar", "go", str(folder.path)]
    argv += ["--journal-from", str(_file_size_bytes(folder.journal))]
    argv += ["--keeper-from", str(_file_size_bytes(folder.keeper))]
    argv += ["--upload-only"] if caller_env is not None else []
    if repo is not None:
        argv += ["--push", repo] if is_wanted else ["--push", repo, "--push-only"]
    return {"argv": argv, "cwd": str(folder.path), "env": env, "log_name": "sidecar"}


def _may_have_key(env: Mapping[str, str]) -> bool:
    """A quick check that spares users without W&B a process; the keyring is not asked."""
    has_key = bool(env.get("WANDB_API_KEY", "").strip()) or netrc_path(env).exists()
    return has_key or secrets_path().exists() or find_spec("keyring") is not None


def _file_size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
