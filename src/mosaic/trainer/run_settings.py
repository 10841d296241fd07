"""Resolves every setting of a run, with its default, and collects what the run was started with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from mosaic.contracts.errors import MosaicError
from mosaic.contracts.events import (
    Event,
    Hyperparameters,
    MachineDescribed,
    PackagesListed,
    SourceDescribed,
    WorkerStarted,
)
from mosaic.contracts.options import CONFIG_PATH, OPTIONS, Option, RunKind, value_at
from mosaic.contracts.run_settings import MachineInfo, RunSettings, SettingValue, SourceCommit
from mosaic.formatting import capitalize_first
from mosaic.submission.algorithm_schema import Algorithm, load_algorithms, open_script_folder, supported_options
from mosaic.submission.run_payloads import FORM_STATE_PREFIX, flatten_settings

SETTINGS_KINDS = tuple(
    kind.KIND for kind in (WorkerStarted, Hyperparameters, PackagesListed, MachineDescribed, SourceDescribed)
)
"""The events that `describe_settings` reads."""
WORKER_PATH = "metadata.worker.id"
_HIDDEN_PREFIXES = (FORM_STATE_PREFIX, "metadata.worker.imports.", "metadata.experiment.", "resources.gpus.mandatory")
_WITHOUT_DEFAULT = ("algo", "kind", "policy_path")
_GROUPS = {"algo": "What runs", "kind": "What runs", "policy_path": "What runs", WORKER_PATH: "What runs"}


def describe_settings(
    payload: Mapping[str, Any], algorithm: Algorithm | None, options: Iterable[Option], events: Iterable[Event]
) -> RunSettings:
    """`payload`: as it was accepted. `events`: those of SETTINGS_KINDS, oldest first; of each, the newest counts."""
    reported: dict[str, Any] = {}
    python, packages, machine = None, {}, None
    sources: dict[str, SourceCommit] = {}
    for event in events:
        if isinstance(event, Hyperparameters):
            reported = event.values
        elif isinstance(event, WorkerStarted):  # a further attempt
            sources = {}
        elif isinstance(event, PackagesListed):
            python, packages = event.python, event.packages
        elif isinstance(event, MachineDescribed):
            machine = MachineInfo.model_validate(dict(event))
        elif isinstance(event, SourceDescribed):
            sources[event.folder] = SourceCommit.model_validate(dict(event))
    return RunSettings(
        settings=tuple(resolve_settings(payload, algorithm, options, reported)),
        python=python,
        packages=packages,
        machine=machine,
        sources=tuple(sources.values()),
    )


def resolve_settings(
    payload: Mapping[str, Any], algorithm: Algorithm | None, options: Iterable[Option], reported: Mapping[str, Any]
) -> list[SettingValue]:
    """List what was set, what the worker has reported of the rest, and the defaults of what neither states."""
    is_training = payload.get("kind", RunKind.TRAIN) == RunKind.TRAIN
    given = {name: value for name, value in flatten_settings(payload).items() if not name.startswith(_HIDDEN_PREFIXES)}
    known = {**reported, **given} if is_training else given
    settings: dict[str, SettingValue] = {}

    def add(name: str, group: str, default: Any = None, has_default: bool = True) -> None:
        value, default = _as_json(known.get(name, default)), _as_json(default)
        if isinstance(default, list) and value == str(tuple(default)):  # as earlier versions reported it
            value = default
        settings[name] = SettingValue(
            name=name, group=group, value=value, default=default, has_default=has_default, is_given=name in given
        )

    for name in (WORKER_PATH, *_WITHOUT_DEFAULT):
        if name in given:
            add(name, _GROUPS[name], has_default=False)
    stated = {field.name: field for field in algorithm.fields} if algorithm is not None and is_training else {}
    supported = {option.name: option for option in options}
    for name in ("env_id", "total_timesteps", "seed"):
        if name in stated or name in known:
            field = stated.get(name)
            add(name, "What runs", field.default if field else None, has_default=field is not None)
    for name, field in stated.items():
        if name not in settings:
            add(name, supported[name].group if name in supported else capitalize_first(field.group), field.default)
    for name in known:
        if name not in settings and name not in OPTIONS:
            add(name, "Settings", has_default=False)
    for name, option in supported.items():
        if name not in settings and not option.is_core and name not in _WITHOUT_DEFAULT:
            is_for_evaluation = option.path.startswith("evaluation.")
            if is_for_evaluation != is_training or name in given:
                add(name, option.group or ("Evaluation" if is_for_evaluation else "Other"), option.default)
    return list(settings.values())


def find_algorithm(payload: Mapping[str, Any]) -> Algorithm | None:
    """Return the algorithm of a payload, or the user's script that is one; None for other programs."""
    config = value_at(dict(payload), CONFIG_PATH) or {}
    name, worker_id = str(config.get("algo", "")), value_at(dict(payload), WORKER_PATH)
    for algorithm in load_algorithms().values():
        if (algorithm.name, algorithm.worker.id) == (name, worker_id) and "cleanrl" not in config:
            return algorithm
    if isinstance(config.get("cleanrl"), str):
        try:
            return open_script_folder(config["cleanrl"]).load(name)
        except (MosaicError, OSError):  # the folder has been moved or deleted since
            return None
    return None


def worker_options(payload: Mapping[str, Any]) -> tuple[Option, ...]:
    worker_id = str(value_at(dict(payload), WORKER_PATH))
    try:
        return supported_options(worker_id)
    except MosaicError:  # the worker has been uninstalled since
        return ()


def _as_json(value: Any) -> Any:
    """The same as it would be after a journey as JSON, so that a tuple equals a list."""
    return json.loads(json.dumps(value, default=str))
