"""Builds payloads from options and settings, changes them, and reads the settings in them and in verdicts."""

from __future__ import annotations

import copy
import json
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.base.algorithm_schema import Algorithm, load_algorithms
from mosaic.contracts.errors import BadInput, FieldProblem
from mosaic.contracts.extras import RESERVED_EXTRAS
from mosaic.contracts.folder import to_file_name
from mosaic.contracts.options import CONFIG_PATH, OPTIONS, OPTIONS_BY_PATH, RunKind, set_option

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView, Verdict, VerdictSummary

CORE_FIELD_NAMES = tuple(option.name for option in OPTIONS.values() if option.is_core)
"""Fields of the worker's config itself; all other settings of an algorithm are its `algo_params`."""
TRAIN_OPTION_NAMES = tuple(option.name for option in OPTIONS.values() if option.has_flag)
MAX_SEEDS = 1000
FORM_STATE_PREFIX = "metadata.ui."
"""What a form stored for itself; it does not make runs different."""
_ATTACHED_PREFIXES = tuple(f"{CONFIG_PATH}.{name}" for name in ("argv", "cwd", "attached", "probe."))
"""How an attached run is followed; these are not settings of its program."""


def build_train_payload(
    worker: str, algo: str, settings: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """`settings` are the options and the algorithm's settings that were given, by name.

    What was not given stays out, so that the default applies. Of `defaults`, only those of CORE_FIELD_NAMES are used.
    """
    config: dict[str, Any] = {"algo": algo}
    for name in CORE_FIELD_NAMES:
        value = settings.get(name, defaults.get(name))
        if value is not None:
            config[name] = to_json_value(name, value)
    own = {name: to_json_value(name, value) for name, value in settings.items() if name not in TRAIN_OPTION_NAMES}
    if own:
        config["algo_params"] = own
    given = {name: value for name, value in settings.items() if name not in own and name not in CORE_FIELD_NAMES}
    return build_payload({"id": worker, "config": config}, given)


def to_json_value(name: str, value: Any) -> Any:
    """Return a setting as JSON has it: of numpy's numbers and arrays the Python ones; raise for other objects."""

    def convert(part: Any) -> Any:
        if hasattr(part, "tolist"):
            return part.tolist()
        raise TypeError(type(part).__name__)

    try:
        return json.loads(json.dumps(value, default=convert))
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{value!r} is not a value of a config ({error}); expected numbers, texts, lists or tables of them."
        raise BadInput(f"{name}: {message}", [FieldProblem(name, message)]) from None


def build_payload(worker: dict[str, Any], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """`options` by name; those that are None or empty were not given."""
    payload: dict[str, Any] = {"metadata": {"worker": worker}, "artifacts": {}}
    for name, value in (options or {}).items():
        if value is not None and value != ():
            set_option(payload, OPTIONS[name], value)
    return payload


def merge_payloads(under: Mapping[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return both as one payload; where both have a value, that of `over`."""
    merged = copy.deepcopy(dict(under))
    for key, value in over.items():
        is_both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge_payloads(merged[key], value) if is_both else value
    return merged


def with_seed(payload: dict[str, Any], seed: int, group: str) -> dict[str, Any]:
    """The same run for another seed, as a member of a group."""
    member = copy.deepcopy(payload)
    member["metadata"]["worker"]["config"]["seed"] = seed
    member["metadata"]["group"] = group
    if member.get("run_name"):
        member["run_name"] += f"-{seed}"
    return member


def parse_seeds(text: str) -> list[int]:
    """`1-5` or `1,3,7` or both; each seed once, in the order given."""
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            problem = FieldProblem("seed", "Expected seeds such as 1-5 or 1,3,7.")
            raise BadInput(f"seeds: {text!r} is not a list of seeds; expected something like 1-5 or 1,3,7.", [problem])
        if dash and int(last) - int(first) >= MAX_SEEDS:
            problem = FieldProblem("seed", f"Expected at most {MAX_SEEDS} seeds.")
            raise BadInput(f"seeds: {text!r} asks for more than {MAX_SEEDS} runs at once.", [problem])
        seeds |= dict.fromkeys(range(int(first), int(last if dash else first) + 1))
    return list(seeds)


def default_group_name(algo: str, env_id: str, now: float) -> str:
    """`ppo-CartPole-v1-20260314-0927`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    named = f"{algo.replace(':', '-')}-{to_file_name(env_id)}"
    safe = "".join(char if char.isalnum() or char in "._@+-" else "_" for char in named)
    return f"{safe}-{stamp}"


def build_eval_payload(
    worker: Mapping[str, Any], policy_path: str, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Evaluates a policy, as a run of its own.

    `worker`: the section of the payload that trained it; what its config does not state is the checkpoint's own.
    """
    config = {key: worker["config"][key] for key in ("algo", "env_id", "seed") if key in worker["config"]}
    given = {name: value for name, value in (options or {}).items() if value is not False}
    given = {"eval_batch_size": OPTIONS["eval_batch_size"].default, "eval_capture_video": False, **given}
    required = {"kind": str(RunKind.POLICY_EVAL), "policy_path": policy_path}
    imports = {"imports": worker["imports"]} if worker.get("imports") else {}
    payload = build_payload({"id": worker["id"], "config": config, **imports}, required | given)
    is_repeated = given.get("eval_repeat", False)
    payload["metadata"]["ui"] = {"eval_batch_size": given["eval_batch_size"], "eval_repeat": is_repeated}
    return payload


# --- changing


def split_assignments(texts: Iterable[str]) -> dict[str, str]:
    """`learning_rate=0.001` as a key and a value that is not read yet."""
    written: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise BadInput(f"--set {text!r}: expected key=value, such as --set learning_rate=0.001.")
        written[key.strip()] = value
    return written


def parse_assignments(payload: Mapping[str, Any], written: Mapping[str, str]) -> dict[str, Any]:
    """Read each value as JSON or as the setting's flag takes it, such as 128,128.

    What is neither an option nor a setting of the payload's algorithm is JSON where it can be read as such, else text.
    """
    algorithm = load_algorithms().get(written.get("algo") or payload["metadata"]["worker"]["config"].get("algo", ""))
    return {key: _parse_assigned(key, value, algorithm) for key, value in written.items()}


def _parse_assigned(key: str, text: str, algorithm: Algorithm | None) -> Any:
    path = ".".join(setting_path(key))
    option = OPTIONS_BY_PATH.get(path)
    name = option.name if option else path.removeprefix(f"{CONFIG_PATH}.algo_params.")
    field = next((field for field in algorithm.fields if field.name == name), option) if algorithm else option
    if field is not None:
        return field.parse_assigned(text, f"--set {key}")
    try:
        return json.loads(text)
    except ValueError:
        return text


def setting_path(key: str) -> tuple[str, ...]:
    """The path of an option, a reserved extra or a setting in the payload. A dotted key is a path already."""
    if "." in key:
        return tuple(key.split("."))
    key = key.replace("-", "_")
    if key in OPTIONS:
        return OPTIONS[key].keys
    return tuple(RESERVED_EXTRAS.get(key, f"{CONFIG_PATH}.algo_params.{key}").split("."))


def apply_assignments(payload: dict[str, Any], assignments: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the payload with these settings."""
    changed = copy.deepcopy(payload)
    for key, value in assignments.items():
        *parents, last = setting_path(key)
        section = changed
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise BadInput(f"--set {key}: {parent!r} in the config is not an object, so nothing can be set in it.")
        section[last] = value
    return changed


def leave_group(original: Mapping[str, Any], changed: dict[str, Any], assignments: Iterable[str]) -> list[str]:
    """Take a changed payload out of its group, unless a group was assigned; return the settings that differ.

    Runs of one group differ in their seed; names, tags, resources and the like are not settings of what is trained.
    """
    if not original["metadata"].get("group") or OPTIONS["group"].keys in map(setting_path, assignments):
        return []
    differing = diff_settings(*map(effective_settings, (original, changed)))
    names = [name.removeprefix(f"{CONFIG_PATH}.") for name in differing if _is_trained(name)]
    if names:
        del changed["metadata"]["group"]
    return names


def _is_trained(name: str) -> bool:
    """Whether a setting is one of the worker's config, other than the seed."""
    path = OPTIONS[name].path if name in OPTIONS else name
    return name != "seed" and ("." not in path or path.startswith(f"{CONFIG_PATH}."))


# --- reading settings


def flatten_settings(payload: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Every setting by the name that `--set` takes. `defaults` are the algorithm's."""
    flat = dict(defaults or {})
    _flatten_into(payload, (), flat)
    return flat


def _flatten_into(value: Any, path: tuple[str, ...], target: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten_into(inner, (*path, key), target)
        return
    option = OPTIONS_BY_PATH.get(".".join(path))
    is_setting = path[:-1] == (*CONFIG_PATH.split("."), "algo_params")
    target[option.name if option else path[-1] if is_setting else ".".join(path)] = value


def diff_settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """By setting, in order: its value in each; None where it is not set."""
    keys = sorted(set(one) | set(other))
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}


def effective_settings(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a payload, with the defaults of those that it does not set. Reads the workers' schemas."""
    config = payload["metadata"]["worker"]["config"]
    algorithm = load_algorithms().get(config.get("algo", ""))
    defaults = (
        {field.name: field.default for field in algorithm.fields if field.default is not None} if algorithm else {}
    )
    ignored = (FORM_STATE_PREFIX, *(_ATTACHED_PREFIXES if config.get("attached") is True else ()))
    given = {name: value for name, value in flatten_settings(payload).items() if not name.startswith(ignored)}
    return defaults | given


def grouping_fields(view: RunView) -> dict[str, Any]:
    """What runs are grouped by besides their settings. A worker's defaults are known only from the run's view."""
    fields = {"algo": view.algo, "env_id": view.env_id, "seed": view.seed, "group": view.group}
    return {name: value for name, value in fields.items() if value is not None}


def comparison_settings(view: RunView | None, payload: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run by the names that people group by."""
    known = {} if view is None else grouping_fields(view)
    settings = effective_settings(payload)
    return known | {name.removeprefix(f"{CONFIG_PATH}."): value for name, value in settings.items()}


# --- verdicts

UNCHECKED_MESSAGE = "The worker has no checker, so its settings were not checked. Nothing was started."


def verdict_rows(verdict: Verdict, algorithm: Algorithm | None = None) -> list[tuple[str, str]]:
    """A worker's verdict on a config as names and values; a worker that reports less gets fewer rows."""
    summary, env = verdict.summary, verdict.summary.environment
    steps, max_episode_steps = summary.total_timesteps, env.max_episode_steps
    rows = [
        ("module", summary.module),
        ("backend", summary.backend),
        ("threads", summary.threads),
        ("policy", summary.policy_path),
        ("environment", env.id or summary.env_id),
        ("observations", env.observation_space),
        ("actions", env.action_space),
        ("episodes", f"at most {max_episode_steps:,} steps each" if max_episode_steps else None),
        ("steps", f"{steps:,}" if steps else None),
        ("seed", summary.seed),
        ("changed", "\n".join(_non_default_settings(summary, algorithm)) or "nothing: every setting has its default"),
        ("run folder", summary.directories.get("run")),
        ("tensorboard", summary.tensorboard_dir or ("off" if verdict.is_checked else None)),
        ("warning", "\n".join(summary.warnings) or None),
    ]
    return [(name, str(value)) for name, value in rows if value is not None]


def _non_default_settings(summary: VerdictSummary, algorithm: Algorithm | None) -> list[str]:
    algorithm = algorithm or load_algorithms().get(summary.algo or "")
    if algorithm is None:
        return [f"{name} = {value}" for name, value in summary.settings.items()]
    return [
        f"{name} = {value} (default {algorithm.default(name)})"
        for name, value in summary.settings.items()
        if name not in CORE_FIELD_NAMES and value != algorithm.default(name)
    ]


# --- Payloads of scripts: what is known of a command without running it.


PROBE_PARTS = ("frames", "metrics", "checkpoints", "console", "wandb")
ENV_ID_FLAGS = ("env-id", "env", "environment", "gym-id")
TOTAL_TIMESTEPS_FLAGS = ("total-timesteps", "n-timesteps", "num-timesteps", "timesteps", "total-steps")
SEED_FLAGS = ("seed",)


def script_config(
    argv: Sequence[str], cwd: str, environment: Mapping[str, str], env_id_from: str | None = None
) -> dict[str, Any]:
    """What is known of a command without running it."""
    config: dict[str, Any] = {
        "argv": list(argv),
        "cwd": cwd,
        "env_names": sorted(name for name in environment if not name.startswith("LD_")),
        "algo": script_name(argv),
    }
    if env_id_from is not None:
        env_id = flag_value(argv, [env_id_from.lstrip("-")])
        if env_id is None:
            raise BadInput(f"--env-id-from {env_id_from}: no such argument in: {shlex.join(argv)}")
    else:
        env_id = flag_value(argv, ENV_ID_FLAGS)
    total, seed = (_parse_int(flag_value(argv, flags)) for flags in (TOTAL_TIMESTEPS_FLAGS, SEED_FLAGS))
    known = {"env_id": env_id, "total_timesteps": total or None, "seed": seed}
    return config | {key: value for key, value in known.items() if value is not None}


def flag_value(argv: Sequence[str], names: Sequence[str]) -> str | None:
    """The value of the first of these flags, written `--flag value` or `--flag=value`, with - or _."""
    flags = {name.replace("_", "-") for name in names}
    for at, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if not flag.startswith("-") or flag.lstrip("-").replace("_", "-") not in flags:
            continue
        if equals:
            return value
        if at + 1 < len(argv) and not argv[at + 1].startswith("--"):
            return argv[at + 1]
    return None


def _parse_int(text: str | None) -> int | None:
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return int(value) if value >= 0 and value.is_integer() else None


def script_name(argv: Sequence[str]) -> str:
    """`my_script` for `python my_script.py`, `package.module` for `python -m package.module`."""
    for at, word in enumerate(argv):
        if word == "-m" and at + 1 < len(argv):
            return argv[at + 1]
        if word.endswith((".py", ".sh")):
            return Path(word).stem
    return Path(argv[0]).name
