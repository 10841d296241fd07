"""What is pushed and pulled: `mosaic.json` of a repository and `hub/push.json` of a run. Without the Hub's library."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from mosaic.base.files import write_json
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.model import Contract, RunId
from mosaic.contracts.payload import EnvId, Payload, SafeName

DESCRIPTION_FILE = "mosaic.json"
CARD_FILE = "README.md"
CONFIG_FILE = "config.json"
EVALUATION_FILE = "evaluation.json"
VIDEO_FILE = "replay.mp4"
MODEL_SUFFIX = ".cleanrl_model"
CHECKPOINT_FILES = ("manifest.json", "weights.safetensors", "state.npz")
MAX_REPO_NAME_CHARS = 96
"""The Hub's limit."""
CORE_SETTINGS = ("env_id", "total_timesteps", "seed")

Count = Annotated[int, Field(ge=0)]


def _check_repo_path(name: str) -> str:
    """Refuses a name from an untrusted repository that leaves the folder that it is downloaded to."""
    parts = PurePosixPath(name).parts
    is_plain = all(part not in ("..", "/") for part in parts) and name == "/".join(parts)
    if not is_plain or "\\" in name or any(ord(char) < 32 for char in name):
        raise ValueError("expected a path inside the repository")
    return name


def _check_model_name(name: str) -> str:
    if "/" in name or not name.endswith(MODEL_SUFFIX):
        raise ValueError(f"expected a name that ends in {MODEL_SUFFIX}")
    return name


RepoPath = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_check_repo_path)]


class HashedFile(Contract):
    size_bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @classmethod
    def of(cls, path: Path) -> HashedFile:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(size_bytes=file.tell(), sha256=digest)


class PolicyDescription(Contract):
    format: Literal[1] = 1
    worker: SafeName
    """The worker that trained it and can load it."""
    algo: SafeName
    env_id: EnvId
    seed: Count | None = None
    total_timesteps: Count | None = None
    step: Count | None = None
    """Environment steps taken when the checkpoint was written; none where there is only a model file."""
    score: float | None = None
    """Mean return of the last 100 episodes of training, or of an evaluation during it."""
    run_id: RunId | None = None
    settings: dict[str, Any] = {}
    """Of the algorithm."""
    versions: dict[str, str] = {}
    model: Annotated[RepoPath, AfterValidator(_check_model_name)] | None = None
    """The model file in CleanRL's format."""
    files: dict[RepoPath, HashedFile]
    """All files of the policy except the card, which people may edit."""

    def checkpoint_files(self) -> dict[str, str]:
        """Maps paths in the repository to names inside the checkpoint's folder."""
        if self.step is None:
            return {}
        return {f"checkpoints/{self.step}/{name}": name for name in CHECKPOINT_FILES}

    @property
    def scored_episodes(self) -> str:
        """What the score is the mean return of."""
        return "an evaluation during training" if self.settings.get("eval_every") else "the last training episodes"

    def to_payload(self) -> dict[str, Any]:
        """A config that would train it again. It names no path, no program and no account."""
        core = {"env_id": self.env_id, "total_timesteps": self.total_timesteps, "seed": self.seed}
        config: dict[str, Any] = {"algo": self.algo} | {key: value for key, value in core.items() if value is not None}
        own = {name: value for name, value in self.settings.items() if name not in CORE_SETTINGS}
        if own:
            config["algo_params"] = own
        return {
            "metadata": {"worker": {"id": self.worker, "config": config}},
            "artifacts": {"tensorboard": {"enabled": True}, "wandb": {"enabled": False}},
        }


@dataclass(frozen=True)
class PushRequest:
    repo: str
    folder: RunFolder
    checkpoint: Path
    evaluation: RunFolder | None = None
    """An evaluation of this checkpoint."""
    model: Path | None = None
    """The same policy in CleanRL's format; by default the run's own model file, if it is of this step."""
    is_private: bool = False
    has_video: bool = True


@dataclass(frozen=True)
class PushResult:
    repo: str
    url: str
    commit: str
    step: int | None
    files: list[str]
    size_bytes: int
    left_out: list[str]
    """A sentence for each part that is missing."""


@dataclass(frozen=True)
class PullResult:
    repo: str
    url: str
    commit: str
    policy: PolicyDescription


def find_model_file(folder: RunFolder, checkpoint: Path) -> Path | None:
    """Returns the run's model file, which is written at the end: it matches the last checkpoint only."""
    is_last = folder.last_checkpoint.exists() and folder.last_checkpoint.resolve() == checkpoint.resolve()
    models = folder.models.glob(f"*/*{MODEL_SUFFIX}") if is_last else ()
    return max(models, key=lambda path: path.stat().st_mtime, default=None)


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
