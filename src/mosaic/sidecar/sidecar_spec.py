"""Decides for which runs the keeper starts a sidecar, and with which arguments.

No secret is passed: the sidecar reads the key itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import Payload
from mosaic.hub.hub_client import requested_repo
from mosaic.keeper.launch_spec import SidecarSpec
from mosaic.secrets import secrets_path
from mosaic.sidecar.tracking_request import parse_tracking_request
from mosaic.sidecar.wandb_connection import is_wandb_installed, netrc_path

LOG_NAME = "sidecar"
_REMOVED_VARIABLES = ("MOSAIC_TOKEN",)


def build_sidecar_spec(
    folder: RunFolder, payload: Payload, caller_env: Mapping[str, str] | None, has_wandb_probe: bool = False
) -> SidecarSpec | None:
    """Returns None where a sidecar would have nothing to do.

    `caller_env` is the environment of a user's program. Such a program tracks itself; where the probe keeps it offline
    (`has_wandb_probe`) and it did not choose a WANDB_MODE, what it writes is uploaded.
    """
    env = {name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES}
    repo = requested_repo(payload) if caller_env is None else None
    if caller_env is None:
        request = parse_tracking_request(payload, folder.run_id, env)
        is_wanted = bool(request)
        if request.wandb is not None:
            folder.wandb.mkdir(exist_ok=True)  # marks a run that is tracked with W&B
    else:
        env |= {
            name: value for name, value in caller_env.items() if name.startswith("WANDB_") or _is_proxy_variable(name)
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
    return {"argv": argv, "cwd": str(folder.path), "env": env, "log_name": LOG_NAME}


def _may_have_key(env: Mapping[str, str]) -> bool:
    """A quick check that spares users without W&B a process; the keyring is not asked."""
    has_key = bool(env.get("WANDB_API_KEY", "").strip()) or netrc_path(env).exists()
    return has_key or secrets_path().exists() or find_spec("keyring") is not None


def _is_proxy_variable(name: str) -> bool:
    return name.lower() in ("http_proxy", "https_proxy", "no_proxy")


def _file_size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
