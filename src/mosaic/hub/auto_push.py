"""`upload_model`: a policy goes to the Hub once its training has succeeded. The run itself never waits for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

from mosaic.contracts.errors import MosaicError
from mosaic.contracts.events import Finished, HubPushed
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import Payload
from mosaic.hub import hub_client, push_state
from mosaic.journal import Follower

MAX_REPO_NAME_CHARS = 96
"""Characters that the Hub takes."""


class PushEventSink(Protocol):
    def __call__(self, kind: str, /, **facts: object) -> None:
        """Writes an event of the run."""


def requested_repo(payload: Payload) -> str | None:
    """Where CleanRL's own script would send it; none where nobody asked. Without `hf_entity` it is the user's own."""
    config = payload.metadata.worker.config
    extras = config.get("extras")
    if not isinstance(extras, dict) or extras.get("upload_model") is not True or extras.get("mode") == "policy_eval":
        return None
    algo = config.get("algo")
    if not isinstance(algo, str) or ":" in algo:
        return None  # a script of the user's own uploads by itself
    params = extras.get("algo_params")
    told = {**extras, **params} if isinstance(params, dict) else extras
    name = repo_name(config.get("env_id"), told.get("exp_name") or algo, config.get("seed"))
    entity = extras.get("hf_entity")
    return f"{entity}/{name}" if entity else name


def repo_name(env_id: Any, name: Any, seed: Any) -> str:
    """`CartPole-v1-ppo-seed1`, in the letters that the Hub knows."""
    text = f"{env_id}-{name}-seed{seed}" if seed is not None else f"{env_id}-{name}"
    return re.sub(r"-{2,}|\.{2,}", "-", re.sub(r"[^A-Za-z0-9._-]", "-", text))[:MAX_REPO_NAME_CHARS].strip("-.")


def read_last_outcome(journal: Path, offset: int) -> str | None:
    """What the worker said at the end of the attempt that begins there in its journal."""
    outcome = None
    follower = Follower(journal, offset)
    while lines := follower.read():
        for line in lines:
            if line.body["kind"] == Finished.KIND:
                outcome = str(line.body.get("outcome"))
    return outcome


def push_after_training(folder: RunFolder, repo: str, outcome: str | None, emit_event: PushEventSink) -> None:
    """Nothing is raised: what fails is told as the run's warning, with the command that tries again."""
    if outcome != "succeeded":
        return
    try:
        done = hub_client.push(folder, folder.last_checkpoint.resolve(), repo)
    except MosaicError as error:
        push_state.write(folder, state="failed", repo=repo, problem=str(error))
        again = f"Try again: mosaic push {folder.run_id} --repo {repo if '/' in repo else f'OWNER/{repo}'}"
        emit_event("warning", text=f"The model was not uploaded. {error} {again}", code="hub_failed")
        return
    push_state.write(folder, state="pushed", **done)
    emit_event(HubPushed.KIND, repo=done["repo"], url=done["url"], commit=done["commit"], step=done["step"])
