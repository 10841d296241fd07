"""Starts the process that talks to the Hub, reports its progress and returns its result."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from typing import IO, Any, NamedTuple

from mosaic.contracts.errors import BadInput, MosaicError, error_class
from mosaic.hub.description import PullRequest, PullResult, PushRequest, PushResult
from mosaic.secrets import SECRET_VARIABLES, find_secret
from mosaic.workers import python_module

_REPO_PATTERN = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", re.ASCII)
QUIET_VARIABLES = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONUNBUFFERED": "1"}


class TransferProgress(NamedTuple):
    file: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[TransferProgress], object]


def _ignore(_: TransferProgress) -> None: ...


def push(request: PushRequest, on_progress: OnProgress = _ignore) -> PushResult:
    return PushResult.model_validate(_run_transfer(request, on_progress))


def pull(request: PullRequest, on_progress: OnProgress = _ignore) -> PullResult:
    return PullResult.model_validate(_run_transfer(request, on_progress))


def _run_transfer(request: PushRequest | PullRequest, on_progress: OnProgress) -> Any:
    if not _REPO_PATTERN.fullmatch(request.repo):
        raise BadInput(f"{request.repo!r} is not a valid repository name; expected OWNER/NAME.")
    # The token is never an argument; without one, huggingface_hub looks where `hf auth login` stored it.
    token = find_secret("hf_token")
    env = {**os.environ, **QUIET_VARIABLES, **({SECRET_VARIABLES["hf_token"]: token} if token else {})}
    with tempfile.TemporaryFile() as stderr:  # not a pipe: it is read only after the process has ended
        process = subprocess.Popen(
            python_module("mosaic.hub.hub_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=env,
            text=True,
            start_new_session=True,  # Ctrl-C is handled by us
        )
        try:
            return _read_replies(process, request.model_dump_json(), on_progress, stderr)
        finally:
            process.kill()
            process.wait()


def _read_replies(process: subprocess.Popen[str], request: str, on_progress: OnProgress, stderr: IO[bytes]) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as stdin:
        stdin.write(request)
    with process.stdout as stdout:
        for line in stdout:
            reply = json.loads(line)
            if reply["kind"] == "progress":
                on_progress(TransferProgress(reply["file"], reply["done_bytes"], reply["total_bytes"]))
            elif reply["kind"] == "failed":
                raise error_class(reply["error"])(reply["message"])
            else:
                return reply["result"]
    process.wait()
    stderr.seek(0)
    last = stderr.read().decode(errors="replace").strip().splitlines()[-1:] or ["none"]
    raise MosaicError(f"The transfer ended unexpectedly. Last line of its log: {last[0][:300]}")
