"""What a user submits: the whole of one run, as JSON. An unknown key anywhere is refused with its path."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from mosaic.contracts.model import Contract, parse_contract


def validate_safe_name(value: str) -> str:
    if not re.fullmatch(r"[^\W_][\w.@+-]*", value) or ".." in value:
        raise ValueError("expected letters, digits and . _ @ + - only, beginning with a letter or digit")
    return value


def _validate_env_id(value: str) -> str:
    """Gymnasium's own form: [namespace/][module:]name[-vN]."""
    if not re.fullmatch(r"[\w.:/@+-]+", value) or ".." in value or value.startswith(("/", "-")):
        raise ValueError("expected an environment id such as 'CartPole-v1' or 'ALE/Pong-v5'")
    return value


def _validate_printable(value: str) -> str:
    if any(ord(char) < 32 and char not in "\n\t" for char in value):
        raise ValueError("expected text without control characters")
    return value


SafeName = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(validate_safe_name)]
EnvId = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_validate_env_id)]
Text = Annotated[str, Field(max_length=20_000), AfterValidator(_validate_printable)]


class WorkerChoice(Contract):
    id: SafeName
    """Which worker runs it, such as `cleanrl`."""
    config: dict[str, Any]
    """The worker's own settings; its checker judges them."""
    worker_id: SafeName | None = None
    """A name for this worker process, shown in logs."""


class Metadata(Contract):
    worker: WorkerChoice
    ui: dict[str, Any] | None = None
    """What a form wants to find again. Nothing else reads it."""
    tags: tuple[SafeName, ...] = ()
    notes: Text | None = None
    group: SafeName | None = None
    """Runs that belong together, such as the seeds of one experiment."""


class TensorBoardArtifacts(Contract):
    enabled: bool = True


class WandbArtifacts(Contract):
    enabled: bool = False
    project: Text | None = None
    entity: Text | None = None
    run_name: Text | None = None


class TrackioArtifacts(Contract):
    enabled: bool = False
    project: SafeName | None = None


class Artifacts(Contract):
    tensorboard: TensorBoardArtifacts = TensorBoardArtifacts()
    wandb: WandbArtifacts = WandbArtifacts()
    trackio: TrackioArtifacts = TrackioArtifacts()
    keep_checkpoints: Annotated[int, Field(ge=1)] | None = None
    """How many of the newest checkpoints to keep; the best one is always kept."""
    persist_logs: bool = True
    """Whether the logs stay when the run has succeeded."""


class GpuRequest(Contract):
    requested: Annotated[int, Field(ge=0)] = 0
    mandatory: bool = False
    """Whether to wait for them, and to refuse where there are none."""


class Resources(Contract):
    cpus: Annotated[int, Field(ge=1)] | None = None
    gpus: GpuRequest = GpuRequest()
    memory_mb: Annotated[int, Field(ge=16)] | None = None
    """The most the whole process tree may take."""


class Schedule(Contract):
    max_duration_seconds: Annotated[float, Field(gt=0)] | None = None
    """Running time after which it is stopped, with a checkpoint. Pauses do not count."""
    priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Higher starts earlier."""


class Payload(Contract):
    run_name: SafeName | None = None
    metadata: Metadata
    artifacts: Artifacts
    resources: Resources = Resources()
    schedule: Schedule = Schedule()

    @classmethod
    def parse(cls, data: Any) -> Payload:
        return parse_contract(cls, data, "The config was")

    def to_json(self) -> dict[str, Any]:
        """As it was given: what was not set stays unset."""
        return self.model_dump(mode="json", exclude_unset=True)
