"""From what a person asked for to the payload that is submitted. Nothing here reads or writes anything."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import to_file_name

Json = dict[str, Any]

CORE_FIELD_NAMES = ("env_id", "total_timesteps", "seed")
"""Fields of the worker's config itself; all other settings of an algorithm are its `algo_params`."""
WORKER_FIELD_NAMES = ("algo", *CORE_FIELD_NAMES, "worker_id", "agent_id")
EXTRAS_BY_FLAG = {
    "track": "track_wandb",
    "wandb_project_name": "wandb_project_name",
    "wandb_entity": "wandb_entity",
    "wandb_use_vpn_proxy": "wandb_use_vpn_proxy",
    "wandb_http_proxy": "wandb_http_proxy",
    "wandb_https_proxy": "wandb_https_proxy",
    "capture_video": "capture_video",
    "save_model": "save_model",
    "eval_capture_video": "eval_capture_video",
    "upload_model": "upload_model",
    "hf_entity": "hf_entity",
    "video_mode": "video_mode",
    "grid_limit": "grid_limit",
}
"""Flags that are the worker's business, not the algorithm's, and the extra that each becomes."""
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
    extras: Json = {extra: settings[flag] for flag, extra in EXTRAS_BY_FLAG.items() if flag in settings}
    params = {
        name: value for name, value in settings.items() if name not in CORE_FIELD_NAMES and name not in EXTRAS_BY_FLAG
    }
    if params:
        extras["algo_params"] = params
    if extras:
        config["extras"] = extras
    return build_payload({"id": worker, "config": config}, options, _wandb_artifact(extras))


def build_payload(worker: Json, options: RunOptions | None = None, wandb: Json | None = None) -> Json:
    options = options or RunOptions()
    metadata: Json = {"worker": worker}
    if options.tags:
        metadata["tags"] = list(options.tags)
    _set_given(metadata, notes=options.notes, group=options.group)
    artifacts: Json = {"tensorboard": {"enabled": options.has_tensorboard}, "wandb": wandb or {"enabled": False}}
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


def _wandb_artifact(extras: Mapping[str, Any]) -> Json:
    said: Json = {"enabled": bool(extras.get("track_wandb", False))}
    _set_given(said, project=extras.get("wandb_project_name"), entity=extras.get("wandb_entity"))
    return said


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
    extras: Json = {
        "mode": "policy_eval",
        "policy_path": policy_path,
        "eval_episodes": episodes,
        "eval_capture_video": has_video,
    }
    _set_given(
        extras,
        seed_override=seed_override,
        eval_repeat=is_repeated or None,
        eval_stochastic=is_stochastic or None,
        video_mode=video_mode,
        grid_limit=grid_limit,
    )
    payload = build_payload({"id": worker["id"], "config": config | {"extras": extras}}, RunOptions(tags=tags))
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


def setting_path(key: str, reserved_extras: Iterable[str] = ()) -> tuple[str, ...]:
    """Where a setting stands in the payload. A dotted key is a path already."""
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
    if key in EXTRAS_BY_FLAG or key in reserved_extras:
        return (*config, "extras", EXTRAS_BY_FLAG.get(key, key))
    return (*config, "extras", "algo_params", key)


def apply_assignments(
    payload: Json, assignments: Iterable[tuple[str, Any]], reserved_extras: Iterable[str] = ()
) -> Json:
    """A copy of the payload with these settings."""
    made = copy.deepcopy(payload)
    for key, value in assignments:
        *parents, last = setting_path(key, reserved_extras)
        at = made
        for parent in parents:
            at = at.setdefault(parent, {})
            if not isinstance(at, dict):
                raise BadInput(f"--set {key}: {parent!r} in the config is not an object, so nothing can be set in it.")
        at[last] = value
    return made


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
    is_plain = len(path) > 0 and setting_path(path[-1], ()) == path
    in_extras = path[:4] == ("metadata", "worker", "config", "extras") and len(path) == 5
    target[path[-1] if is_plain or in_extras else ".".join(path)] = value


def diff_settings(one: Json, other: Json) -> dict[str, tuple[Any, Any]]:
    """By setting, in order: its value here and there; None where it is not set."""
    keys = sorted(set(one) | set(other))
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}
