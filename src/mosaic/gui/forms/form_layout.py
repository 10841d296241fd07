"""Which settings a form shows, where, and under which words. No widget here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from mosaic.contracts.errors import BadInput
from mosaic.submission.algorithm_schema import (
    DEFAULT_CORE_FIELDS,
    DEFAULT_EXTRA_FIELDS,
    Algorithm,
    SettingField,
    load_algorithms,
    reserved_extras,
)
from mosaic.submission.run_payloads import CORE_FIELD_NAMES, SECTION_PATHS

FIELD_UNITS = {"total_timesteps": "steps", "checkpoint_every": "steps", "memory_mb": "MB", "max_seconds": "s"}
FIELD_LABELS = {
    "env_id": "Environment",
    "exp_name": "Experiment name",
    "keep_checkpoints": "Keep",
    "checkpoint_every": "Every",
    "max_seconds": "Time limit",
    "memory_mb": "Memory",
    "video_mode": "Frames",
    "upload_model": "Upload to the Hub",
    "hf_entity": "Hub account",
    "tensorboard": "TensorBoard",
    "track": "W&B",
    "wandb_project_name": "W&B project",
    "wandb_entity": "W&B entity",
    "wandb_use_vpn_proxy": "VPN proxy",
    "run_name": "Run name",
    "norm_adv": "Normalise advantages",
    "torch_deterministic": "Deterministic",
    "eval_batch_size": "Episodes",
    "eval_repeat": "Repeat",
    "eval_stochastic": "Stochastic",
    "eval_capture_video": "Video",
    "seed_override": "First seed",
}
_ABBREVIATIONS = {
    "gae": "GAE", "kl": "KL", "cuda": "CUDA", "cpus": "CPUs", "gpus": "GPUs",
    "lr": "learning rate", "envs": "environments", "coef": "coefficient", "adv": "advantages", "ent": "entropy",
    "vf": "value", "vloss": "value loss", "grad": "gradient", "num": "",
}  # fmt: skip
"""What the short words in names of settings stand for."""
_WANDB = ("track", "wandb_project_name", "wandb_entity", "wandb_use_vpn_proxy")
RUN_FIELDS = (
    SettingField("tensorboard", "bool", True, "Write TensorBoard event files.", group="Tracking"),
    *(field for field in DEFAULT_EXTRA_FIELDS if field.name in _WANDB),
    *(
        field
        for field in DEFAULT_EXTRA_FIELDS
        if field.name in ("video_mode", "grid_limit", "capture_video", "save_model")
    ),
    *(field for field in DEFAULT_EXTRA_FIELDS if field.name in ("upload_model", "hf_entity")),
    SettingField("keep_checkpoints", "int", 3, "How many of the newest to keep; the best is always kept.", {"ge": 1}),
    SettingField("cpus", "int", None, "CPU threads it gets; unset: as many as pay.", {"ge": 1}, is_optional=True),
    SettingField("gpus", "int", 0, "GPUs it needs; it waits for them.", {"ge": 0}),
    SettingField(
        "memory_mb", "int", None, "The most memory it may take; unset: no limit.", {"ge": 16}, is_optional=True
    ),
    SettingField("max_seconds", "float", None, "Stop it after so long; unset: never.", {"gt": 0}, is_optional=True),
    SettingField("priority", "int", 0, "Higher starts earlier.", {"ge": -100, "le": 100}),
    SettingField("run_name", "name", None, "A name of your own.", is_optional=True),
    SettingField("tags", "names", None, "Separated by commas.", is_optional=True),
    SettingField("group", "name", None, "Runs that belong together; several seeds make one.", is_optional=True),
    SettingField("notes", "text", None, "For yourself.", is_optional=True),
)
"""What can be said of a run besides the settings of its algorithm."""
_RIGHT_SECTIONS = (
    ("Tracking", ("tensorboard", *_WANDB)),
    ("FastLane", ("video_mode", "grid_limit", "capture_video")),
    ("Checkpoints", ("keep_checkpoints", "checkpoint_every", "save_model", "upload_model", "hf_entity")),
    ("Resources", ("cpus", "gpus", "memory_mb")),
    ("Schedule", ("max_seconds", "priority")),
    ("This run", ("run_name", "tags", "group", "notes")),
)


@dataclass(frozen=True)
class FormSection:
    title: str
    fields: tuple[SettingField, ...]


@dataclass(frozen=True)
class FormLayout:
    algorithm: Algorithm
    core: tuple[SettingField, ...]
    """Environment, steps and seed."""
    left: tuple[FormSection, ...]
    right: tuple[FormSection, ...]

    @cached_property
    def fields(self) -> dict[str, SettingField]:
        """All of them, in the order in which they are read."""
        fields = [*self.core]
        for section in (*self.left, *self.right):
            fields += section.fields
        return {field.name: field for field in fields}

    @cached_property
    def settings(self) -> dict[str, SettingField]:
        """Those that are settings of the algorithm or sections of the payload."""
        ours = {field.name for field in RUN_FIELDS} - set(SECTION_PATHS)
        return {name: field for name, field in self.fields.items() if name not in ours}


def _extra_name(name: str) -> str:
    return "track_wandb" if name == "track" else name


@cache
def _all_algorithms() -> tuple[Algorithm, ...]:
    """Read once: which workers there are does not change while the window is open."""
    return tuple(load_algorithms().values())


@cache
def algorithms_by_worker() -> dict[str, tuple[str, ...]]:
    """Workers with algorithms to choose from, and their names."""
    found: dict[str, list[str]] = {}
    for algorithm in _all_algorithms():
        found.setdefault(algorithm.worker.id, []).append(algorithm.name)
    return {worker: tuple(names) for worker, names in found.items()}


@cache
def get_layout(worker: str, name: str) -> FormLayout:
    for algorithm in _all_algorithms():
        if (algorithm.worker.id, algorithm.name) == (worker, name):
            return build_layout(algorithm, reserved_extras(worker))
    raise BadInput(f"The form knows no algorithm {name!r} of worker {worker!r}. Submit it with: mosaic submit")


def build_layout(algorithm: Algorithm, extras: Iterable[str]) -> FormLayout:
    """Settings of the algorithm at the left, as its Config orders them; what is about the run at the right."""
    stated = {field.name: field for field in algorithm.fields}
    known_extras = set(extras)
    run_fields = {
        field.name: stated.get(field.name, field)
        for field in RUN_FIELDS
        if field.name not in SECTION_PATHS or _extra_name(field.name) in known_extras or field.name in stated
    }
    on_the_right = {name for _, names in _RIGHT_SECTIONS for name in names}
    right = []
    for title, names in _RIGHT_SECTIONS:
        fields = tuple(run_fields.get(name) or stated[name] for name in names if name in run_fields or name in stated)
        if fields:
            right.append(FormSection(title, fields))
    groups: dict[str, list[SettingField]] = {}
    for field in algorithm.fields:
        if field.name not in CORE_FIELD_NAMES and field.name not in SECTION_PATHS and field.name not in on_the_right:
            groups.setdefault(field.group, []).append(field)
    left = tuple(FormSection(_capitalize(title), tuple(fields)) for title, fields in groups.items())
    core = tuple(stated.get(name) or DEFAULT_CORE_FIELDS[name] for name in CORE_FIELD_NAMES)
    return FormLayout(algorithm, core, left, tuple(right))


# --- words


def field_label(field: SettingField) -> str:
    if field.name in FIELD_LABELS:
        return FIELD_LABELS[field.name]
    return _capitalize(" ".join(filter(None, (_ABBREVIATIONS.get(word, word) for word in field.name.split("_")))))


def format_value(value: Any) -> str:
    """A value as a person would write it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


def format_default(field: SettingField) -> str:
    return format_value(field.default) or "unset"


def field_tooltip(field: SettingField) -> str:
    """Everything about a field, for its tool tip."""
    unit = f" {FIELD_UNITS[field.name]}" if field.name in FIELD_UNITS and field.default is not None else ""
    return f"{field.help}\n{field.name}: {expected_text(field)}. Default: {format_default(field)}{unit}."


def expected_text(field: SettingField) -> str:
    special = {
        "name": "letters, digits and . _ @ + -, beginning with a letter or digit",
        "names": "names of letters, digits and . _ @ + -, separated by commas",
        "text": "text",
    }
    return special.get(field.type) or field.expected_values


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]
