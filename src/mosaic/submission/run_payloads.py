"""From what a person asked for to the payload that is submitted. Nothing here reads or writes anything."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from mosaic.contracts.errors import BadInput
from mosaic.contracts.extras import RESERVED_EXTRAS
from mosaic.contracts.folder import to_file_name
from mosaic.contracts.options import CONFIG_PATH, OPTIONS, OPTIONS_BY_PATH, set_option
from mosaic.contracts.run_kind import RunKind

Json = dict[str, Any]

CORE_FIELD_NAMES = tuple(option.name for option in OPTIONS.values() if option.is_core)
"""Fields of the worker's config itself; all other settings of an algorithm are its `algo_params`."""
TRAIN_OPTION_NAMES = tuple(option.name for option in OPTIONS.values() if option.has_flag)
MAX_SEEDS = 1000


def build_train_payload(worker: str, algo: str, settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> Json:
    """`settings` are the options and the algorithm's settings that were given, by name.

    What was not given stays out, so that the default applies. Of `defaults`, only those of CORE_FIELD_NAMES are used.
    """
    config: Json = {"algo": algo}
    for name in CORE_FIELD_NAMES:
        value = settings.get(name, defaults.get(name))
        if value is not None:
            config[name] = value
    own = {name: value for name, value in settings.items() if name not in TRAIN_OPTION_NAMES}
    if own:
        config["algo_params"] = own
    given = {name: value for name, value in settings.items() if name not in own and name not in CORE_FIELD_NAMES}
    return build_payload({"id": worker, "config": config}, given)


def build_payload(worker: Json, options: Mapping[str, Any] | None = None) -> Json:
    """`options` by name; those that are None or empty were not given."""
    payload: Json = {"metadata": {"worker": worker}, "artifacts": {}}
    for name, value in (options or {}).items():
        if value is not None and value != ():
            set_option(payload, OPTIONS[name], value)
    return payload


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
            raise BadInput(f"seeds: {text!r} is not a list of seeds; expected something like 1-5 or 1,3,7.")
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
    after batch of that many episodes, until it is stopped. `is_stochastic`: actions are drawn as in training.
    """
    worker = trained_payload["metadata"]["worker"]
    config = {key: worker["config"][key] for key in ("algo", "env_id", "seed") if key in worker["config"]}
    options = {
        "kind": str(RunKind.POLICY_EVAL),
        "policy_path": policy_path,
        "eval_batch_size": episodes,
        "eval_repeat": is_repeated or None,
        "eval_stochastic": is_stochastic or None,
        "seed_override": seed_override,
        "eval_capture_video": has_video,
        "video_mode": video_mode,
        "grid_limit": grid_limit,
        "tags": tags,
    }
    payload = build_payload({"id": worker["id"], "config": config}, options)
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
    """The path of an option, a reserved extra or a setting in the payload. A dotted key is a path already."""
    if "." in key:
        return tuple(key.split("."))
    key = key.replace("-", "_")
    if key in OPTIONS:
        return OPTIONS[key].keys
    return tuple(RESERVED_EXTRAS.get(key, f"{CONFIG_PATH}.algo_params.{key}").split("."))


def apply_assignments(payload: Json, assignments: Iterable[tuple[str, Any]]) -> Json:
    """A copy of the payload with these settings."""
    changed = copy.deepcopy(payload)
    for key, value in assignments:
        *parents, last = setting_path(key)
        section = changed
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise BadInput(f"--set {key}: {parent!r} in the config is not an object, so nothing can be set in it.")
        section[last] = value
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
    option = OPTIONS_BY_PATH.get(".".join(path))
    is_setting = path[:-1] == (*CONFIG_PATH.split("."), "algo_params")
    target[option.name if option else path[-1] if is_setting else ".".join(path)] = value


def diff_settings(one: Json, other: Json) -> dict[str, tuple[Any, Any]]:
    """By setting, in order: its value here and there; None where it is not set."""
    keys = sorted(set(one) | set(other))
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}
