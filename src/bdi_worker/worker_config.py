"""The worker's request: the payload, and the settings of its one algorithm."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from bdi_worker import WORKER_NAME
from mosaic.base.worker_registry import name_worker
from mosaic.contracts.errors import ConfigRefused, refuse_key, unknown_name_error
from mosaic.contracts.model import Contract, RunId, parse_contract
from mosaic.contracts.options import CONFIG_PATH
from mosaic.contracts.payload import AnyPath, EnvId, EnvKwargs, Payload, SafeName
from mosaic.worker.envs.user_modules import allow_imports

ALGORITHM = "bdi_q"
_WORKER_NAMES = (WORKER_NAME, "bdi_worker")
_SUBJECT = "The worker config was"
_RUN: dict[str, Any] = {"group": "run"}
_LEARNING: dict[str, Any] = {"group": "learning"}


class BdiSettings(Contract):
    """The settings of `bdi_q`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    env_id: EnvId = Field(default="FrozenLake-v1", json_schema_extra=_RUN)
    """The environment to train in, by its Gymnasium id: FrozenLake, CliffWalking, Taxi, or one of MiniGrid."""
    total_timesteps: int = Field(default=60_000, gt=0, json_schema_extra=_RUN)
    """Environment steps to train for."""
    seed: int = Field(default=1, ge=0, lt=2**31, json_schema_extra=_RUN)
    """The seed of all random generators: equal settings and seed give an equal table."""
    asl: AnyPath | None = Field(default=None, json_schema_extra={**_RUN, "type": "file"})
    """The agent: an AgentSpeak file, or the name of an example; unset: the example for the environment."""
    env_kwargs: EnvKwargs | None = Field(default=None, json_schema_extra=_RUN)
    """Settings of the environment, such as is_slippery=false, or as JSON, such as {"is_slippery": false}."""
    checkpoint_every: int | None = Field(default=None, gt=0, json_schema_extra=_RUN)
    """Environment steps between checkpoints, each saved at the end of an episode; unset: a tenth of the run."""
    checkpoint_minutes: float = Field(default=5.0, ge=0, le=10_000, json_schema_extra=_RUN)
    """Minutes of training after which there is another checkpoint, which replaces the one before it; 0: none."""
    learning_rate: float = Field(default=0.1, gt=0, le=1, json_schema_extra=_LEARNING)
    """How far a value moves towards each new estimate."""
    gamma: float = Field(default=0.99, ge=0, le=1, json_schema_extra=_LEARNING)
    """The discount of each step."""
    start_e: float = Field(default=1.0, ge=0, le=1, json_schema_extra=_LEARNING)
    """The initial epsilon: the probability of choosing a plan at random."""
    end_e: float = Field(default=0.02, ge=0, le=1, json_schema_extra=_LEARNING)
    """The final epsilon."""
    exploration_fraction: float = Field(default=0.6, gt=0, le=1, json_schema_extra=_LEARNING)
    """The fraction of the run over which epsilon falls from `start_e` to `end_e`."""

    @property
    def checkpoint_interval(self) -> int:
        return self.checkpoint_every or max(self.total_timesteps // 10, 1)

    def epsilon(self, step: int) -> float:
        progress = min(1.0, step / (self.exploration_fraction * self.total_timesteps))
        return self.start_e + progress * (self.end_e - self.start_e)


class WorkerConfig(Contract):
    """The worker's own part of a payload."""

    run_id: RunId | None = None
    algo: SafeName | None = None
    env_id: EnvId | None = None
    total_timesteps: int | None = None
    seed: int | None = None
    worker_id: SafeName | None = None
    agent_id: SafeName | None = None
    algo_params: dict[str, Any] = {}


@dataclass(frozen=True)
class WorkerRequest:
    """A payload for this worker, decoded."""

    config: WorkerConfig
    payload: Payload

    @property
    def names(self) -> dict[str, str]:
        names = {"worker_id": self.config.worker_id, "agent_id": self.config.agent_id}
        return {key: name for key, name in names.items() if name is not None}

    def settings(self) -> BdiSettings:
        """Return the settings of a training; raise ConfigRefused naming those that do not fit."""
        core = {"env_id", "total_timesteps", "seed"}
        given = self.config.model_dump(include=core, exclude_none=True)
        for key in core & given.keys() & self.config.algo_params.keys():
            if self.config.algo_params[key] != given[key]:
                raise refuse_key(key, f"given twice: {given[key]!r}, and {self.config.algo_params[key]!r}.")
        return parse_contract(BdiSettings, {**self.config.algo_params, **given}, _SUBJECT)


def read_request(path: str) -> WorkerRequest:
    try:
        return parse_request(json.loads(Path(path).read_bytes()))
    except OSError as error:
        raise ConfigRefused(f"LOG705 The config {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigRefused(f"LOG705 The config {path} is not valid JSON: {error}.") from None


def parse_request(data: Any) -> WorkerRequest:
    """Decode a payload or a bare worker config."""
    if isinstance(data, dict) and "metadata" not in data:
        data = {"metadata": {"worker": {"id": WORKER_NAME, "config": data}}, "artifacts": {}}
    payload = Payload.parse(name_worker(data, WORKER_NAME))
    choice = payload.metadata.worker
    if choice.id not in _WORKER_NAMES:
        raise refuse_key("metadata.worker.id", f"{choice.id!r} is another worker; this one is {WORKER_NAME!r}.")
    given = {key: value for key, value in choice.config.items() if value is not None}
    if choice.worker_id is not None:
        given.setdefault("worker_id", choice.worker_id)
    paths = {key: f"{CONFIG_PATH}.{key}" for key in given}
    config = parse_contract(WorkerConfig, given, _SUBJECT, paths)
    if config.algo not in (None, ALGORITHM):
        raise unknown_name_error("algorithm", str(config.algo), [ALGORITHM], f"worker {WORKER_NAME!r}")
    allow_imports(choice.imports)
    return WorkerRequest(config, payload)
