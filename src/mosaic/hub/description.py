"""`mosaic.json` of a repository: what the policy in it is, and the hashes of everything that belongs to it."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from mosaic.contracts.errors import BadInput
from mosaic.contracts.model import Contract
from mosaic.contracts.payload import EnvId, SafeName

DESCRIPTION_FILE = "mosaic.json"
CARD_FILE = "README.md"
CONFIG_FILE = "config.json"
EVALUATION_FILE = "evaluation.json"
VIDEO_FILE = "replay.mp4"
MODEL_SUFFIX = ".cleanrl_model"
CHECKPOINT_FILES = ("manifest.json", "weights.safetensors", "state.npz")
CORE_SETTINGS = ("env_id", "total_timesteps", "seed")

Count = Annotated[int, Field(ge=0)]


def check_repo_path(name: str) -> str:
    """A repository is somebody else's: its names must stay below the folder that they are put in."""
    parts = PurePosixPath(name).parts
    is_plain = all(part not in ("..", "/") for part in parts) and name == "/".join(parts)
    if not parts or not is_plain or "\\" in name or any(ord(char) < 32 for char in name):
        raise ValueError("expected a path inside of the repository")
    return name


def _check_model_name(name: str) -> str:
    if "/" in name or not name.endswith(MODEL_SUFFIX):
        raise ValueError(f"expected a name that ends in {MODEL_SUFFIX}")
    return name


RepoPath = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(check_repo_path)]


class HashedFile(Contract):
    size_bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class PolicyDescription(Contract):
    format: Literal[1] = 1
    worker: SafeName
    """Which worker made it, and can load it."""
    algo: SafeName
    env_id: EnvId
    seed: Count | None = None
    total_timesteps: Count | None = None
    step: Count | None = None
    """Environment steps taken when the checkpoint was written; none where there is only a model file."""
    score: float | None = None
    """Mean return of the last 100 episodes of training."""
    run_id: SafeName | None = None
    settings: dict[str, Any] = {}
    """The algorithm's own."""
    versions: dict[str, str] = {}
    model: Annotated[RepoPath, AfterValidator(_check_model_name)] | None = None
    """The file that users of CleanRL know."""
    files: dict[RepoPath, HashedFile]
    """Everything of the policy, except the card, which people may edit."""

    def checkpoint_files(self) -> dict[str, str]:
        """By path in the repository: the name inside of the checkpoint's folder."""
        if self.step is None:
            return {}
        return {f"checkpoints/{self.step}/{name}": name for name in CHECKPOINT_FILES}

    def to_payload(self) -> dict[str, Any]:
        """A config that would train it again. It names no path, no program and no account."""
        core = {"env_id": self.env_id, "total_timesteps": self.total_timesteps, "seed": self.seed}
        config: dict[str, Any] = {"algo": self.algo} | {key: value for key, value in core.items() if value is not None}
        own = {name: value for name, value in self.settings.items() if name not in CORE_SETTINGS}
        if own:
            config["extras"] = {"algo_params": own}
        return {
            "metadata": {"worker": {"id": self.worker, "config": config}},
            "artifacts": {"tensorboard": {"enabled": True}, "wandb": {"enabled": False}},
        }


def hash_content(content: Path | bytes) -> HashedFile:
    if isinstance(content, bytes):
        return HashedFile(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    with open(content, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return HashedFile(size_bytes=file.tell(), sha256=digest)


def check_file(path: Path, expected: HashedFile, name: str) -> None:
    """BadInput where the bytes are not those that were pushed."""
    found = hash_content(path)
    if found != expected:
        what = "size" if found.size_bytes != expected.size_bytes else "hash"
        raise BadInput(
            f"{name} is not what {DESCRIPTION_FILE} says ({what} mismatch). Pull another revision: --revision SHA"
        )
