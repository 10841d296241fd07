"""The Hub as the workbench uses it: starts the process that talks to it, and records what was pushed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import IO, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from mosaic.common.files import write_json
from mosaic.contracts.errors import BadInput, MosaicError, error_class
from mosaic.contracts.events import HubPushed
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.model import Contract
from mosaic.contracts.payload import Payload
from mosaic.hub.description import PullRequest, PullResult, PushRequest, PushResult
from mosaic.journal import EventSink
from mosaic.secrets import SECRET_VARIABLES, find_secret
from mosaic.workers import python_module

MAX_REPO_NAME_CHARS = 96
"""The Hub's limit."""
QUIET_VARIABLES = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONUNBUFFERED": "1"}
_REPO_PATTERN = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", re.ASCII)


class TransferProgress(NamedTuple):
    file: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[TransferProgress], object]


def push(request: PushRequest, on_progress: OnProgress = lambda _: None) -> PushResult:
    return PushResult.model_validate(_run_transfer(request, on_progress))


def pull(request: PullRequest, on_progress: OnProgress = lambda _: None) -> PullResult:
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


class PushState(Contract):
    """`hub/push.json` of a run: whether and where its policy was pushed."""

    at: float = Field(default_factory=time.time)
    state: Literal["pushed", "failed"]
    repo: str
    url: str | None = None
    commit: str | None = None
    step: int | None = None
    problem: str | None = None
    """Why it failed, in one sentence."""

    @classmethod
    def of_result(cls, result: PushResult) -> PushState:
        return cls(state="pushed", **result.model_dump(include={"repo", "url", "commit", "step"}))

    @classmethod
    def parse(cls, data: object) -> PushState | None:
        """Decodes the file's content; None where it was never pushed."""
        try:
            return cls.model_validate(data)
        except ValidationError:
            return None

    def write(self, folder: RunFolder) -> None:
        folder.hub.mkdir(exist_ok=True)
        write_json(folder.hub / "push.json", self.to_json())

    def to_json(self) -> dict[str, object]:
        return self.model_dump(exclude_none=True)


def requested_repo(payload: Payload) -> str | None:
    """Returns the repository that CleanRL's own script would push to; None where `upload_model` is not set."""
    config, model = payload.metadata.worker.config, payload.artifacts.model
    algo, seed = config.get("algo"), config.get("seed")
    if not model.upload or payload.is_evaluation or not isinstance(algo, str) or ":" in algo:
        return None  # a user's script, whose name has a colon, uploads by itself
    settings = config.get("algo_params")
    experiment = settings.get("exp_name") if isinstance(settings, dict) else None
    text = f"{config.get('env_id')}-{experiment or algo}" + (f"-seed{seed}" if seed is not None else "")
    # Only the characters that the Hub allows.
    name = re.sub(r"-{2,}|\.{2,}", "-", re.sub(r"[^A-Za-z0-9._-]", "-", text))[:MAX_REPO_NAME_CHARS].strip("-.")
    return f"{model.hub_entity}/{name}" if model.hub_entity else name


def push_after_training(folder: RunFolder, repo: str, outcome: str | None, emit_event: EventSink) -> None:
    """Pushes the policy of a run that has succeeded. Never raises: a failure becomes a warning of the run."""
    if outcome != "succeeded":
        return
    try:
        result = push(PushRequest(repo=repo, folder=folder.path, checkpoint=folder.last_checkpoint.resolve()))
    except MosaicError as error:
        PushState(state="failed", repo=repo, problem=str(error)).write(folder)
        retry = f"Try again: mosaic push {folder.run_id} --repo {repo if '/' in repo else f'OWNER/{repo}'}"
        emit_event("warning", text=f"The model was not uploaded. {error} {retry}", code="hub_failed")
        return
    PushState.of_result(result).write(folder)
    emit_event(HubPushed.KIND, repo=result.repo, url=result.url, commit=result.commit, step=result.step)
