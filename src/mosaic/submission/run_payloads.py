"""From what a person asked for to the payload that is submitted. Nothing here reads or writes anything."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mosaic.contracts.errors import BadInput
from mosaic.contracts.extras import CONFIG_PATH, RESERVED_EXTRAS
from mosaic.contracts.folder import to_file_name
from mosaic.contracts.run_kind import RunKind

Json = dict[str, Any]

CORE_FIELD_NAMES = ("env_id", "total_timesteps", "seed")
"""Fields of the worker's config itself; all other settings of an algorithm are its `algo_params`."""
WORKER_FIELD_NAMES = ("algo", *CORE_FIELD_NAMES, "worker_id", "agent_id")
SECTION_PATHS: dict[str, tuple[str, ...]] = {
    "track": ("artifacts", "wandb", "enabled"),
    **{name: tuple(path.split(".")) for name, path in RESERVED_EXTRAS.items() if not path.startswith(CONFIG_PATH)},
}
"""By flag or setting: its path in the payload, where it is not a setting of the algorithm."""
_NAMES_BY_PATH = {path: name for name, path in reversed(SECTION_PATHS.items())}
METADATA_FIELD_NAMES = ("tags", "notes", "group")
MAX_SEEDS = 1000


@dataclass(frozen=True)
class RunOptions:
    """What a run shall have besides the algorithm's settings. None: not said."""

    run_name: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    group: str | None = None
    priority: int | None = None
    max_seconds: float | None = None
    memory_mb: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    keep_checkpoints: int | None = None
    has_tensorboard: bool = True


def build_train_payload(
    worker: str, algo: str, settings: Mapping[str, Any], defaults: Mapping[str, Any], options: RunOptions | None = None
) -> Json:
    """`settings` are those that were given; what was not given stays out, so that the algorithm's default holds.

    `defaults` are the algorithm's, of which only those of CORE_FIELDS are used.
    """
    config: Json = {"algo": algo}
    for name in CORE_FIELD_NAMES:
        value = settings.get(name, defaults.get(name))
        if value is not None:
            config[name] = value
    params = {
        name: value for name, value in settings.items() if name not in CORE_FIELD_NAMES and name not in SECTION_PATHS
    }
    if params:
        config["algo_params"] = params
    payload = build_payload({"id": worker, "config": config}, options)
    for name, value in settings.items():
        if name in SECTION_PATHS and value is not None:
            _set_path(payload, SECTION_PATHS[name], value)
    return payload


def build_payload(worker: Json, options: RunOptions | None = None) -> Json:
    options = options or RunOptions()
    metadata: Json = {"worker": worker}
    if options.tags:
        metadata["tags"] = list(options.tags)
    _set_given(metadata, notes=options.notes, group=options.group)
    artifacts: Json = {"tensorboard": {"enabled": options.has_tensorboard}}
    _set_given(artifacts, keep_checkpoints=options.keep_checkpoints)
    gpus = None if options.gpus is None else {"requested": options.gpus, "mandatory": options.gpus > 0}
    resources: Json = {}
    _set_given(resources, cpus=options.cpus, gpus=gpus, memory_mb=options.memory_mb)
    schedule: Json = {}
    _set_given(schedule, max_duration_seconds=options.max_seconds, priority=options.priority)
    payload: Json = {}
    _set_given(payload, run_name=options.run_name)
    payload |= {"metadata": metadata, "artifacts": artifacts}
    return payload | ({"resources": resources} if resources else {}) | ({"schedule": schedule} if schedule else {})


def _set_given(target: Json, **values: Any) -> None:
    target.update({name: value for name, value in values.items() if value is not None})


def _set_path(payload: Json, path: tuple[str, ...], value: Any) -> None:
    *parents, last = path
    section = payload
    for parent in parents:
        section = section.setdefault(parent, {})
        if not isinstance(section, dict):
            raise BadInput(f"{'.'.join(path)}: {parent!r} in the config is not an object, so nothing can be set in it.")
    section[last] = value


def with_seed(payload: Json, seed: int, group: str) -> Json:
    """The same run for another seed, as a member of a group."""
    made = copy.deepcopy(payload)
    made["metadata"]["worker"]["config"]["seed"] = seed
    made["metadata"]["group"] = group
    if made.get("run_name"):
        made["run_name"] += f"-{seed}"
    return made


def parse_seeds(text: str) -> list[int]:
    """`1-5` or `1,3,7` or both; each seed once, in the order given."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise BadInput(f"seeds: {text!r} is no list of seeds; expected something like 1-5 or 1,3,7.")
        if dash and int(last) - int(first) >= MAX_SEEDS:
            raise BadInput(f"seeds: {text!r} asks for more than {MAX_SEEDS} runs at once.")
        seeds |= dict.fromkeys(range(int(first), int(last if dash else first) + 1))
    return list(seeds)


def default_group_name(algo: str, env_id: str, now: float) -> str:
    """`ppo-CartPole-v1-20260314-0927`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    named = f"{algo.replace(':', '-')}-{to_file_name(env_id)}"
    safe = "".join(char if char.isalnum() or char in "._@+-" else "_" for char in named)
    return f"{safe}-{stamp}"


def build_eval_payload(
    trained_payload: Json,
    policy_path: str,
    episodes: int,
    has_video: bool = False,
    seed_override: int | None = None,
    tags: tuple[str, ...] = (),
    is_repeated: bool = False,
    *,
    is_stochastic: bool = False,
    video_mode: str | None = None,
    grid_limit: int | None = None,
) -> Json:
    """Evaluates the policy of a run, whose payload is `trained`, as a run of its own.

    Algorithm and environment are those of `trained`; what it does not say is the checkpoint's own. `is_repeated`: batch
    after batch of so many episodes, until it is stopped. `is_stochastic`: actions are drawn as in training.
    """
    worker = trained_payload["metadata"]["worker"]
    config = {key: worker["config"][key] for key in ("algo", "env_id", "seed") if key in worker["config"]}
    evaluation: Json = {"policy_path": policy_path, "episodes": episodes}
    _set_given(evaluation, repeat=is_repeated or None, stochastic=is_stochastic or None, seed=seed_override)
    video: Json = {"capture_evaluation": has_video}
    _set_given(video, mode=video_mode, grid_limit=grid_limit)
    payload = build_payload({"id": worker["id"], "config": config}, RunOptions(tags=tags))
    payload |= {"kind": str(RunKind.POLICY_EVAL), "evaluation": evaluation}
    payload["artifacts"]["video"] = video
    payload["metadata"]["ui"] = {"eval_batch_size": episodes, "eval_repeat": is_repeated}
    return payload


# --- changing and comparing


def parse_assignment(text: str) -> tuple[str, Any]:
    """`learning_rate=0.001`: the value is JSON where it can be read as such, else text."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise BadInput(f"--set {text!r}: expected key=value, such as --set learning_rate=0.001.")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def setting_path(key: str) -> tuple[str, ...]:
    """The path of a setting in the payload. A dotted key is a path already."""
    if "." in key:
        return tuple(key.split("."))
    key = key.replace("-", "_")
    if key == "run_name":
        return (key,)
    if key in METADATA_FIELD_NAMES:
        return ("metadata", key)
    config = ("metadata", "worker", "config")
    if key in WORKER_FIELD_NAMES:
        return (*config, key)
    if key in SECTION_PATHS:
        return SECTION_PATHS[key]
    return (*config, "algo_params", key)


def apply_assignments(payload: Json, assignments: Iterable[tuple[str, Any]]) -> Json:
    """A copy of the payload with these settings."""
    changed = copy.deepcopy(payload)
    for key, value in assignments:
        _set_path(changed, setting_path(key), value)
    return changed


def flatten_settings(payload: Json, defaults: Mapping[str, Any] | None = None) -> Json:
    """Every setting by the name that `--set` takes. `defaults` are the algorithm's."""
    flat: Json = {}
    _flatten_into(payload, (), flat)
    return {**(defaults or {}), **flat}


def _flatten_into(value: Any, path: tuple[str, ...], target: Json) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten_into(inner, (*path, key), target)
        return
    is_plain = len(path) > 0 and setting_path(path[-1]) == path
    target[_NAMES_BY_PATH.get(path) or (path[-1] if is_plain else ".".join(path))] = value


def diff_settings(one: Json, other: Json) -> dict[str, tuple[Any, Any]]:
    """By setting, in order: its value here and there; None where it is not set."""
    keys = sorted(set(one) | set(other))
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}
