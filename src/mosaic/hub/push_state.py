"""Whether the policy of a run is to be pushed after training, and whether it was. Without the Hub's library."""

from __future__ import annotations

import re
import time
from typing import Literal

from pydantic import Field, ValidationError

from mosaic.common.files import write_json
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.model import Contract
from mosaic.contracts.payload import Payload

MAX_REPO_NAME_CHARS = 96
"""The Hub's limit."""


class PushState(Contract):
    """`hub/push.json` of a run."""

    at: float = Field(default_factory=time.time)
    state: Literal["pushed", "failed"]
    repo: str
    url: str | None = None
    commit: str | None = None
    step: int | None = None
    problem: str | None = None
    """Why it failed, in one sentence."""

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
