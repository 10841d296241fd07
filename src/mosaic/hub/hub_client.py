"""Sends the process that talks to the Hub on its way, and tells how it fares."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from mosaic.contracts.errors import BadInput, MosaicError, error_class
from mosaic.contracts.folder import RunFolder
from mosaic.plugins import python_module
from mosaic.secrets import SECRET_VARIABLES, find_secret

Json = dict[str, Any]
TIMEOUT_S = 60.0
"""How long the Hub may be silent."""
_REPO_PATTERN = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", re.ASCII)
QUIET_VARIABLES = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONUNBUFFERED": "1"}


class TransferProgress(NamedTuple):
    file: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[TransferProgress], object]


def push(
    folder: RunFolder,
    checkpoint: Path,
    repo: str,
    *,
    evaluation: RunFolder | None = None,
    model: Path | None = None,
    is_private: bool = False,
    has_video: bool = True,
    timeout_s: float = TIMEOUT_S,
    on_progress: OnProgress = lambda _: None,
) -> Json:
    """What was sent where: repo, url, commit, step, files, size_bytes, left_out."""
    request = {
        "do": "push",
        "folder": str(folder.path),
        "checkpoint": str(checkpoint),
        "repo": repo,
        "evaluation": None if evaluation is None else str(evaluation.path),
        "model": None if model is None else str(model),
        "is_private": is_private,
        "has_video": has_video,
    }
    return _run_transfer(request, timeout_s, on_progress)


def pull(
    repo: str,
    into: Path,
    revision: str | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    on_progress: OnProgress = lambda _: None,
) -> Json:
    """The repository's files are in `into`; its repo, url, commit, policy and size_bytes are told."""
    request = {"do": "pull", "repo": repo, "revision": revision, "into": str(into)}
    return _run_transfer(request, timeout_s, on_progress)


def transfer_environment(base_env: Mapping[str, str] | None = None) -> dict[str, str]:
    """With the token, which is never an argument; without one, huggingface_hub looks where `hf auth login` put it."""
    made = {**(os.environ if base_env is None else base_env), **QUIET_VARIABLES}
    token = find_secret("hf_token")
    if token:
        made[SECRET_VARIABLES["hf_token"]] = token
    return made


def _run_transfer(request: Json, timeout_s: float, on_progress: OnProgress) -> Json:
    if not _REPO_PATTERN.fullmatch(request["repo"]):
        raise BadInput(f"{request['repo']!r} is no name of a repository; expected OWNER/NAME.")
    with tempfile.TemporaryFile() as words:  # not a pipe: nobody reads it while the transfer goes on
        process = subprocess.Popen(
            python_module("mosaic.hub.transfer"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            env=transfer_environment(),
            text=True,
            start_new_session=True,  # Ctrl-C is ours to answer
        )
        try:
            return _read_replies(process, {**request, "timeout_s": timeout_s}, on_progress, words)
        finally:
            process.kill()
            process.wait()


def _read_replies(
    process: subprocess.Popen[str], request: Json, on_progress: OnProgress, stderr_file: IO[bytes]
) -> Json:
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as stdin:
        json.dump(request, stdin)
    with process.stdout as stdout:
        for line in stdout:
            said = json.loads(line)
            if said["kind"] == "progress":
                on_progress(TransferProgress(said["file"], said["done_bytes"], said["total_bytes"]))
            elif said["kind"] == "failed":
                raise error_class(said["error"])(said["sentence"])
            else:
                return {key: value for key, value in said.items() if key != "kind"}
    process.wait()
    stderr_file.seek(0)
    last = stderr_file.read().decode(errors="replace").strip().splitlines()[-1:] or ["none"]
    raise MosaicError(f"The transfer ended unexpectedly. Its last words: {last[0][:300]}")
