"""For which runs a sidecar is started, and how. The daemon asks; the keeper starts it.

No secret passes through them: the sidecar looks for the key by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import Payload
from mosaic.hub.auto_push import requested_repo
from mosaic.keeper.launch_spec import SidecarSpec
from mosaic.secrets.secret_store import secrets_file_path
from mosaic.sidecar.tracking_request import parse_tracking_request
from mosaic.sidecar.wandb_connection import netrc_path
from mosaic.sidecar.wandb_upload import is_wandb_installed

LOG_NAME = "sidecar"
_REMOVED_VARIABLES = ("MOSAIC_TOKEN",)


def build_sidecar_spec(
    folder: RunFolder, payload: Payload, caller_env: Mapping[str, str] | None, has_wandb_probe: bool = False
) -> SidecarSpec | None:
    """None where there would be nothing for it to do.

    `caller` is the environment that a program of the user's runs in. Such a program tracks itself if it wants to; where
    the probe keeps it offline (`has_wandb_probe`) and it did not choose a WANDB_MODE, what it writes is uploaded.
    """
    env = {name: value for name, value in os.environ.items() if name not in _REMOVED_VARIABLES}
    repo = requested_repo(payload) if caller_env is None else None
    if caller_env is None:
        wanted = parse_tracking_request(payload, folder.run_id, env)
        is_wanted = bool(wanted)
        if wanted.wandb is not None:
            folder.wandb.mkdir(exist_ok=True)  # shows at a glance that there is, or will be, something of W&B's
    else:
        env |= {
            name: value for name, value in caller_env.items() if name.startswith("WANDB_") or _is_proxy_variable(name)
        }
        is_wanted = has_wandb_probe and "WANDB_MODE" not in caller_env and is_wandb_installed() and _may_have_key(env)
    if not is_wanted and repo is None:
        return None
    argv = [sys.executable, "-m", "mosaic.sidecar", "go", str(folder.path)]
    argv += [
        "--journal-from",
        str(_file_size_bytes(folder.journal)),
        "--keeper-from",
        str(_file_size_bytes(folder.keeper)),
    ]
    argv += ["--upload-only"] if caller_env is not None else []
    if repo is not None:
        argv += ["--push", repo] if is_wanted else ["--push", repo, "--push-only"]
    return {"argv": argv, "cwd": str(folder.path), "env": env, "log_name": LOG_NAME}


def _may_have_key(env: Mapping[str, str]) -> bool:
    """A quick look, so that scripts of people who do not use W&B are spared a process; the keyring is not asked."""
    has_one = bool(env.get("WANDB_API_KEY", "").strip()) or netrc_path(env).exists()
    return has_one or secrets_file_path().exists() or find_spec("keyring") is not None


def _is_proxy_variable(name: str) -> bool:
    return name.lower() in ("http_proxy", "https_proxy", "no_proxy")


def _file_size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
