"""The worker's request: the payload, the settings common to all algorithms, and those of the chosen algorithm."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from cleanrl_worker.registry import load_algorithm, module_name
from cleanrl_worker.shell.user_cleanrl import USER_CLEANRL_PREFIX
from mosaic.base.worker_registry import name_worker
from mosaic.contracts.errors import ConfigRefused, FieldProblem, refuse_key
from mosaic.contracts.extras import (
    RESERVED_EXTRAS,
    OnConflict,
    apply_extras,
    translate_extras,
)
from mosaic.contracts.model import Contract, RunId, field_problems, refuse
from mosaic.contracts.options import CONFIG_PATH
from mosaic.contracts.payload import (
    AnyPath,
    Artifacts,
    Count,
    EnvId,
    EvaluationOptions,
    Payload,
    SafeName,
    Seed,
)
from mosaic.contracts.setting_field import validate_safe_name
from mosaic.worker.envs.user_modules import allow_imports

WORKER_NAME = "cleanrl"
_SUBJECT = "The worker config was"
WORKER_ALIASES = ("cleanrl_worker",)
DEFAULT_SEED = 1
CORE_SETTINGS = ("env_id", "total_timesteps", "seed")


def _check_algo_name(value: str) -> str:
    """Accept an algorithm of this worker, or a script of the user's CleanRL as `cleanrl:name`."""
    validate_safe_name(value.removeprefix(USER_CLEANRL_PREFIX))
    return value


AlgoName = Annotated[str, Field(min_length=1, max_length=120), AfterValidator(_check_algo_name)]


class WorkerConfig(Contract):
    """The worker's own part of a payload: the algorithm and its settings."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    run_id: RunId | None = None
    algo: AlgoName | None = None
    env_id: EnvId | None = None
    total_timesteps: Count | None = None
    """Environment steps to train for; unset: the algorithm's default."""
    seed: Seed | None = None
    worker_id: SafeName | None = None
    """A name for this worker process, in the run's records."""
    agent_id: SafeName | None = None
    """A name for the agent that is trained or evaluated, in the run's records."""
    algo_params: dict[str, Any] = {}
    """The algorithm's own settings."""
    cleanrl: AnyPath | None = None
    """A checkout of CleanRL, or an environment with it: its scripts are the algorithms `cleanrl:NAME`."""
    cleanrl_python: AnyPath | None = None
    """The interpreter that runs them; unset: the one next to them, else the worker's."""


@dataclass(frozen=True)
class WorkerRequest:
    """A payload for this worker, decoded."""

    config: WorkerConfig
    payload: Payload
    setting_paths: dict[str, str] = field(default_factory=dict)
    """The path of each of the algorithm's settings in the user's config, for messages."""
    written_paths: dict[str, str] = field(default_factory=dict)
    """The path in the user's config by path in the payload, if they differ."""

    @property
    def settings(self) -> dict[str, Any]:
        """The given settings of the algorithm."""
        return self.config.algo_params

    @property
    def artifacts(self) -> Artifacts:
        return self.payload.artifacts

    @property
    def evaluation(self) -> EvaluationOptions:
        return self.payload.evaluation

    @property
    def is_evaluation(self) -> bool:
        return self.payload.is_evaluation

    @property
    def names(self) -> dict[str, str]:
        """The names that the config gives to the worker process and to the agent."""
        names = {"worker_id": self.config.worker_id, "agent_id": self.config.agent_id}
        return {key: name for key, name in names.items() if name is not None}

    @property
    def is_user_script(self) -> bool:
        """Whether it is a script of the user's CleanRL."""
        return self.config.algo is not None and self.config.algo.startswith(USER_CLEANRL_PREFIX)

    @property
    def saves_model(self) -> bool:
        return self.artifacts.model.save is not False

    @property
    def algo(self) -> str:
        if self.config.algo is None:
            raise refuse([FieldProblem("algo", "missing")], _SUBJECT)
        return self.config.algo


def read_config_file(path: str) -> Any:
    """Read the JSON of a config file."""
    try:
        return parse_json(Path(path).read_bytes(), f"The config {path}")
    except OSError as error:
        raise ConfigRefused(f"LOG705 The config {path} cannot be read: {error.strerror}.") from None


def parse_json(text: str | bytes, subject: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigRefused(f"LOG705 {subject} is not valid JSON: {error}.") from None


def parse_request(data: Any, overrides: Mapping[str, Any] | None = None) -> WorkerRequest:
    """Decode a payload or a bare worker config; `overrides` come from the command line."""
    data = require_object(data, "The config was refused")
    prefix = CONFIG_PATH
    if "metadata" not in data:
        prefix = ""
        data = {"metadata": {"worker": {"id": WORKER_NAME, "config": data}}, "artifacts": {}}
    translated = translate_extras(name_worker(data, WORKER_NAME), config_path=prefix)
    given = dict(overrides or {})
    apply_extras(translated, given.pop("extras", None), OnConflict.OVERRIDE, "--extras")
    payload = Payload.from_translated(translated)
    choice = payload.metadata.worker
    if choice.id not in (WORKER_NAME, *WORKER_ALIASES):
        raise refuse_key("metadata.worker.id", f"{choice.id!r} is another worker; this one is {WORKER_NAME!r}.")
    given = {"worker_id": choice.worker_id, **choice.config, **_without_none(given)}
    config = _validate_config(_without_none(given), prefix)
    settings_path = _join_path(CONFIG_PATH, "algo_params")
    paths = {
        key: translated.written_paths.get(f"{settings_path}.{key}") or _join_path(prefix, "algo_params", key)
        for key in config.algo_params
    }
    allow_imports(choice.imports)
    return WorkerRequest(config, payload, paths, translated.written_paths)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def algorithm_config(request: WorkerRequest) -> Any:
    """Build the algorithm's Config from its settings, seed, steps and environment; errors name the key's path."""
    kind = load_algorithm(request.algo).Config
    given = dict(request.settings)
    for key in request.settings:
        if key not in kind.model_fields:
            raise refuse_key(request.setting_paths[key], _unknown_setting_message(request, key, kind.model_fields))
    add_core_settings(request, given, request.setting_paths)
    if "env_id" not in given:
        raise refuse([FieldProblem("env_id", "missing")], _SUBJECT)
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        refusal = refuse(field_problems(error, written_paths=request.setting_paths), _SUBJECT)
        conflicts = [one.get("ctx", {}).get("error") for one in error.errors() if not one["loc"]]
        names = [name for conflict in conflicts for name in getattr(conflict, "names", ())]
        problems = [
            FieldProblem(place, problem)
            for path, problem in refusal.problems
            for place in ([path] if path else names or [""])
        ]
        raise ConfigRefused(str(refusal), problems) from None


def add_core_settings(request: WorkerRequest, settings: dict[str, Any], paths: Mapping[str, str]) -> None:
    """Add the settings that a config may also give outside of `algo_params`; raise if both give different ones."""
    for key in CORE_SETTINGS:
        value = getattr(request.config, key)
        if value is not None and settings.setdefault(key, value) != value:
            message = f"{paths[key]} is {settings[key]!r}, but {key} is {value!r}. Give one of them."
            raise ConfigRefused(f"LOG705 {message}", [FieldProblem(key, message)])


def _unknown_setting_message(request: WorkerRequest, key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    hint = _suggest_setting(key, [*names, *RESERVED_EXTRAS])
    return f"unknown setting of {request.algo!r} ({module_name(request.algo)}).{hint} Known: {', '.join(names)}."


def _suggest_setting(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _validate_config(data: dict[str, Any], prefix: str) -> WorkerConfig:
    try:
        return WorkerConfig.model_validate(data)
    except ValidationError as error:
        hints = "".join(
            _suggest_setting(str(problem["loc"][-1]), WorkerConfig.model_fields)
            for problem in error.errors()
            if problem["type"] == "extra_forbidden"
        )
        refusal = refuse(field_problems(error, prefix), _SUBJECT)
        raise ConfigRefused(f"{refusal}{hints}", refusal.problems) from None


def require_object(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigRefused(f"LOG705 {path}: expected a JSON object.")
    return value


def _join_path(*parts: str) -> str:
    return ".".join(part for part in parts if part)
