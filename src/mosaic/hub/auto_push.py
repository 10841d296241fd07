"""`upload_model`: pushes a policy to the Hub once its training has succeeded. The run itself never waits for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

from mosaic.contracts.errors import MosaicError
from mosaic.contracts.events import Finished, HubPushed
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import Payload
from mosaic.hub import hub_client, push_state
from mosaic.hub.description import PushRequest
from mosaic.journal import Follower

MAX_REPO_NAME_CHARS = 96
"""The Hub's limit."""


class PushEventSink(Protocol):
    def __call__(self, kind: str, /, **fields: object) -> None:
        """Writes an event of the run."""


def requested_repo(payload: Payload) -> str | None:
    """Returns the repository that CleanRL's own script would push to; None where no push is requested."""
    config, model = payload.metadata.worker.config, payload.artifacts.model
    if not model.upload or payload.is_evaluation:
        return None
    algo = config.get("algo")
    if not isinstance(algo, str) or ":" in algo:
        return None  # a user's script uploads by itself
    settings = config.get("algo_params")
    experiment = settings.get("exp_name") if isinstance(settings, dict) else None
    name = repo_name(config.get("env_id"), experiment or algo, config.get("seed"))
    return f"{model.hub_entity}/{name}" if model.hub_entity else name


def repo_name(env_id: Any, name: Any, seed: Any) -> str:
    """Returns `CartPole-v1-ppo-seed1`, with only the characters that the Hub allows."""
    text = f"{env_id}-{name}-seed{seed}" if seed is not None else f"{env_id}-{name}"
    return re.sub(r"-{2,}|\.{2,}", "-", re.sub(r"[^A-Za-z0-9._-]", "-", text))[:MAX_REPO_NAME_CHARS].strip("-.")


def read_last_outcome(journal: Path, offset: int) -> str | None:
    """Returns the outcome that the worker reported in the attempt that starts at this offset of its journal."""
    outcome = None
    follower = Follower(journal, offset)
    while lines := follower.read():
        for line in lines:
            if line.body["kind"] == Finished.KIND:
                outcome = str(line.body.get("outcome"))
    return outcome


def push_after_training(folder: RunFolder, repo: str, outcome: str | None, emit_event: PushEventSink) -> None:
    """Never raises: a failure becomes a warning of the run, with the command that tries again."""
    if outcome != "succeeded":
        return
    try:
        request = PushRequest(repo=repo, folder=folder.path, checkpoint=folder.last_checkpoint.resolve())
        result = hub_client.push(request)
    except MosaicError as error:
        push_state.write(folder, state="failed", repo=repo, problem=str(error))
        retry = f"Try again: mosaic push {folder.run_id} --repo {repo if '/' in repo else f'OWNER/{repo}'}"
        emit_event("warning", text=f"The model was not uploaded. {error} {retry}", code="hub_failed")
        return
    push_state.write(folder, state="pushed", **result.model_dump())
    emit_event(HubPushed.KIND, repo=result.repo, url=result.url, commit=result.commit, step=result.step)
