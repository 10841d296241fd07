"""What this worker is asked to do: the settings common to all algorithms, and those of one algorithm apart."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from cleanrl_worker.registry import load_algorithm, module_name
from cleanrl_worker.user_cleanrl import USER_CLEANRL_PREFIX
from mosaic.contracts.errors import ConfigRefused
from mosaic.contracts.model import Contract, format_validation_error
from mosaic.contracts.payload import EnvId, SafeName, Text, validate_safe_name

WORKER_NAME = "cleanrl"
DEFAULT_SEED = 1
DEFAULT_EVAL_EPISODES = 50
POLICY_EVAL = "policy_eval"
_ALGO_PARAMS_PATH = "extras.algo_params"


def _check_relative_path(value: str) -> str:
    path = Path(value)
    if path.is_absolute() or ".." in path.parts or "\0" in value or not path.parts:
        raise ValueError("expected a path inside the run's folder, without '..'")
    return value


def _check_readable_path(value: str) -> str:
    if not value or any(ord(char) < 32 for char in value):
        raise ValueError("expected a path without control characters")
    return value


RelativePath = Annotated[str, Field(max_length=500), AfterValidator(_check_relative_path)]
AnyPath = Annotated[str, Field(max_length=4000), AfterValidator(_check_readable_path)]


def _check_algo_name(value: str) -> str:
    """Ours by its name; one of the user's own CleanRL as `cleanrl:name`."""
    validate_safe_name(value.removeprefix(USER_CLEANRL_PREFIX))
    return value


AlgoName = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_check_algo_name)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class ReservedExtras(Contract):
    """Extras with a meaning of their own. All others are settings of the algorithm."""

    mode: Literal["train", "policy_eval"] | None = None
    """`policy_eval` plays a trained policy instead of training one."""
    policy_path: AnyPath | None = None
    """For an evaluation: a checkpoint folder, a run folder, or a .cleanrl_model file."""
    tensorboard_dir: RelativePath | None = None
    """Where the event files go, inside the run's folder."""
    track_wandb: bool | None = None
    wandb_project_name: Text | None = None
    wandb_entity: Text | None = None
    wandb_run_name: Text | None = None
    wandb_api_key: Text | None = None
    wandb_email: Text | None = None
    wandb_use_vpn_proxy: bool | None = None
    wandb_http_proxy: Text | None = None
    wandb_https_proxy: Text | None = None
    capture_video: bool | None = None
    """Record videos while training: the first environment's episodes 0, 1, 8, 27, … and every thousandth."""
    eval_capture_video: bool | None = None
    """Record videos of an evaluation's first episodes."""
    video_mode: Literal["single", "grid", "off"] | None = None
    grid_limit: Count | None = None
    """How many environments the grid shows."""
    fastlane_only: bool | None = None
    """Frames, but no records of single steps."""
    seed_override: Seed | None = None
    """First seed of an evaluation, instead of seeds that training never uses."""
    eval_batch_size: Count | None = None
    """Episodes in each batch of an evaluation."""
    eval_episodes: Count | None = None
    """The same under its older name."""
    eval_repeat: bool | None = None
    """Evaluate batch after batch until stopped."""
    eval_stochastic: bool | None = None
    """Draw actions as in training, instead of taking the best one; each episode draws from a seed of its own."""
    save_model: bool | None = None
    """Write the .cleanrl_model file at the end; on unless said otherwise. Said to be on: evaluate it, too."""
    upload_model: bool | None = None
    """Upload the policy to the Hugging Face Hub, with a model card, once training has succeeded."""
    hf_entity: Text | None = None
    """The Hub's user or organisation that it is uploaded to; else the one that the token belongs to."""
    algo_params: dict[str, Any] | None = None
    """The algorithm's own settings."""
    cleanrl: AnyPath | None = None
    """A checkout of CleanRL, or an environment with it: its scripts are the algorithms `cleanrl:NAME`."""
    cleanrl_python: AnyPath | None = None
    """The interpreter that runs them; else the one that lies beside them, else ours."""


class WorkerConfig(Contract):
    run_id: SafeName | None = None
    algo: AlgoName | None = None
    env_id: EnvId | None = None
    total_timesteps: Count | None = None
    """Environment steps to train for; the algorithm's own default where unset."""
    seed: Seed | None = None
    worker_id: SafeName | None = None
    agent_id: SafeName | None = None
    extras: dict[str, Any] = {}


@dataclass(frozen=True)
class WorkerRequest:
    """A config that was understood, with what the payload around it said."""

    config: WorkerConfig
    extras: ReservedExtras
    settings: dict[str, Any]
    """The algorithm's own, as given."""
    setting_paths: dict[str, str] = field(default_factory=dict)
    """Where in the config each of them stood, for messages."""
    tensorboard_enabled: bool = True
    keep_checkpoints: int | None = None
    wandb_enabled: bool = False
    trackio_enabled: bool = False
    cpus: int | None = None
    """How many the run may use; unset: as many as there are."""

    @property
    def is_evaluation(self) -> bool:
        return self.extras.mode == POLICY_EVAL

    @property
    def is_user_script(self) -> bool:
        """Whether it is a script of the user's own CleanRL."""
        return self.config.algo is not None and self.config.algo.startswith(USER_CLEANRL_PREFIX)

    @property
    def saves_model(self) -> bool:
        return self.extras.save_model is not False

    @property
    def evaluates_model(self) -> bool:
        """As CleanRL: whoever says that a model is to be saved gets it evaluated, and filmed where that is said."""
        return self.extras.save_model is True or bool(self.extras.eval_capture_video)

    @property
    def eval_batch_size(self) -> int:
        return self.extras.eval_batch_size or self.extras.eval_episodes or DEFAULT_EVAL_EPISODES

    @property
    def algo(self) -> str:
        if self.config.algo is None:
            raise ConfigRefused("LOG705 The worker config was refused: algo: missing.")
        return self.config.algo


def read_config_file(path: str) -> Any:
    """The JSON of a config file."""
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ConfigRefused(f"LOG705 The config {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigRefused(f"LOG705 The config {path} is no JSON: {error}.") from None


def parse_request(data: Any, overrides: Mapping[str, Any] | None = None) -> WorkerRequest:
    """Understands a whole payload or a bare worker config; `overrides` come from the command line."""
    data = _require_object(data, "The config was refused")
    around: dict[str, Any] = {}
    prefix = ""
    if "metadata" in data:
        data, around = _unwrap_payload(data)
        prefix = "metadata.worker.config"
    given = dict(data)
    for key, value in (overrides or {}).items():
        if key == "extras":
            given["extras"] = {**_require_object(given.get("extras", {}), _join_path(prefix, "extras")), **value}
        elif value is not None:
            given[key] = value
    config = _validate(WorkerConfig, given, prefix)
    reserved = {key: value for key, value in config.extras.items() if key in ReservedExtras.model_fields}
    extras = _validate(ReservedExtras, reserved, _join_path(prefix, "extras"))
    if extras.policy_path is not None and extras.mode != POLICY_EVAL:
        path = _join_path(prefix, "extras.policy_path")
        raise ConfigRefused(f"LOG705 {path}: only an evaluation takes it; set extras.mode to {POLICY_EVAL!r}.")
    settings, paths = _merge_settings(config.extras, extras.algo_params or {}, prefix)
    return WorkerRequest(config, extras, settings, paths, **around)


def _unwrap_payload(data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    from mosaic.contracts.payload import Payload

    payload = Payload.parse(data)
    choice = payload.metadata.worker
    if choice.id != WORKER_NAME:
        raise ConfigRefused(f"LOG705 metadata.worker.id: {choice.id!r} is another worker; this one is {WORKER_NAME!r}.")
    config = dict(choice.config)
    if choice.worker_id is not None:
        config.setdefault("worker_id", choice.worker_id)
    artifacts = payload.artifacts
    return config, {
        "tensorboard_enabled": artifacts.tensorboard.enabled,
        "keep_checkpoints": artifacts.keep_checkpoints,
        "wandb_enabled": artifacts.wandb.enabled,
        "trackio_enabled": artifacts.trackio.enabled,
        "cpus": payload.resources.cpus,
    }


def _merge_settings(
    extras: dict[str, Any], params: dict[str, Any], prefix: str
) -> tuple[dict[str, Any], dict[str, str]]:
    settings = dict(params)
    paths = {key: _join_path(prefix, _ALGO_PARAMS_PATH, key) for key in params}
    for key, value in extras.items():
        if key in ReservedExtras.model_fields:
            continue
        if key in params and params[key] != value:
            raise ConfigRefused(
                f"LOG705 {_join_path(prefix, 'extras', key)} is {value!r}, "
                f"but {paths[key]} is {params[key]!r}. Give one."
            )
        settings[key] = value
        paths.setdefault(key, _join_path(prefix, "extras", key))
    return settings, paths


def algorithm_config(request: WorkerRequest) -> Any:
    """The algorithm's own Config: its settings with seed, steps and environment; refused with the key's path."""
    kind = load_algorithm(request.algo).Config
    given = dict(request.settings)
    for key in request.settings:
        if key not in kind.model_fields:
            raise ConfigRefused(_unknown_setting_message(request, key, kind.model_fields))
    common = {
        "env_id": request.config.env_id,
        "total_timesteps": request.config.total_timesteps,
        "seed": request.config.seed,
    }
    for key, value in common.items():
        if value is None:
            continue
        if given.setdefault(key, value) != value:
            raise ConfigRefused(
                f"LOG705 {request.setting_paths[key]} is {given[key]!r}, but {key} is {value!r}. Give one of them."
            )
    if "env_id" not in given:
        raise ConfigRefused("LOG705 The worker config was refused: env_id: missing.")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise ConfigRefused(
            f"LOG705 The worker config was refused: {_explain_with_paths(error, request.setting_paths)}"
        ) from None


def _explain_with_paths(error: ValidationError, paths: Mapping[str, str]) -> str:
    """`explain`, with each key under the path where the user wrote it."""
    sentence = format_validation_error(error)
    for problem in error.errors():
        if problem["loc"]:
            key = str(problem["loc"][0])
            sentence = sentence.replace(f"{key}: ", f"{paths.get(key, key)}: ", 1)
    return sentence.removeprefix(": ")  # a problem of several settings together has no path


def _unknown_setting_message(request: WorkerRequest, key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    hint = _suggest_setting(key, [*names, *ReservedExtras.model_fields])
    return (
        f"LOG705 {request.setting_paths[key]}: unknown setting of {request.algo!r} ({module_name(request.algo)})."
        f"{hint} Known: {', '.join(names)}."
    )


def _suggest_setting(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _validate(kind: type[Any], data: Any, prefix: str) -> Any:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        hints = "".join(
            _suggest_setting(str(problem["loc"][-1]), kind.model_fields)
            for problem in error.errors()
            if problem["type"] == "extra_forbidden"
        )
        raise ConfigRefused(
            f"LOG705 The worker config was refused: {format_validation_error(error, prefix)}{hints}"
        ) from None


def _require_object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigRefused(f"LOG705 {path}: expected a JSON object.")
    return value


def _join_path(*parts: str) -> str:
    return ".".join(part for part in parts if part)
