"""Which settings a form shows, where, and under which words. No widget here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from mosaic.contracts.errors import BadInput
from mosaic.plugins.payloads import CORE_FIELDS, EXTRAS
from mosaic.plugins.schema import CORE, EXTRA_FIELDS, Algorithm, Field, algorithms, reserved_extras

UNITS = {"total_timesteps": "steps", "checkpoint_every": "steps", "memory_mb": "MB", "max_seconds": "s"}
LABELS = {
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
_WORDS = {
    "gae": "GAE", "kl": "KL", "cuda": "CUDA", "cpus": "CPUs", "gpus": "GPUs",
    "lr": "learning rate", "envs": "environments", "coef": "coefficient", "adv": "advantages", "ent": "entropy",
    "vf": "value", "vloss": "value loss", "grad": "gradient", "num": "",
}  # fmt: skip
"""What the short words in names of settings stand for."""
_WANDB = ("track", "wandb_project_name", "wandb_entity", "wandb_use_vpn_proxy")
RUN_FIELDS = (
    Field("tensorboard", "bool", True, "Write TensorBoard event files.", group="Tracking"),
    *(field for field in EXTRA_FIELDS if field.name in _WANDB),
    *(field for field in EXTRA_FIELDS if field.name in ("video_mode", "grid_limit", "capture_video", "save_model")),
    *(field for field in EXTRA_FIELDS if field.name in ("upload_model", "hf_entity")),
    Field("keep_checkpoints", "int", 3, "How many of the newest to keep; the best is always kept.", {"ge": 1}),
    Field("cpus", "int", None, "CPU threads it gets; unset: as many as pay.", {"ge": 1}, is_optional=True),
    Field("gpus", "int", 0, "GPUs it needs; it waits for them.", {"ge": 0}),
    Field("memory_mb", "int", None, "The most memory it may take; unset: no limit.", {"ge": 16}, is_optional=True),
    Field("max_seconds", "float", None, "Stop it after so long; unset: never.", {"gt": 0}, is_optional=True),
    Field("priority", "int", 0, "Higher starts earlier.", {"ge": -100, "le": 100}),
    Field("run_name", "name", None, "A name of your own.", is_optional=True),
    Field("tags", "names", None, "Separated by commas.", is_optional=True),
    Field("group", "name", None, "Runs that belong together; several seeds make one.", is_optional=True),
    Field("notes", "text", None, "For yourself.", is_optional=True),
)
"""What can be said of a run besides the settings of its algorithm."""
_RIGHT = (
    ("Tracking", ("tensorboard", *_WANDB)),
    ("FastLane", ("video_mode", "grid_limit", "capture_video")),
    ("Checkpoints", ("keep_checkpoints", "checkpoint_every", "save_model", "upload_model", "hf_entity")),
    ("Resources", ("cpus", "gpus", "memory_mb")),
    ("Schedule", ("max_seconds", "priority")),
    ("This run", ("run_name", "tags", "group", "notes")),
)


@dataclass(frozen=True)
class Section:
    title: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class FormLayout:
    algorithm: Algorithm
    core: tuple[Field, ...]
    """Environment, steps and seed."""
    left: tuple[Section, ...]
    right: tuple[Section, ...]

    @cached_property
    def fields(self) -> dict[str, Field]:
        """All of them, in the order in which they are read."""
        fields = [*self.core]
        for section in (*self.left, *self.right):
            fields += section.fields
        return {field.name: field for field in fields}

    @cached_property
    def settings(self) -> dict[str, Field]:
        """Those that are settings of the algorithm or extras of its worker."""
        ours = {field.name for field in RUN_FIELDS} - set(EXTRAS)
        return {name: field for name, field in self.fields.items() if name not in ours}


@cache
def _known() -> tuple[Algorithm, ...]:
    """Read once: which workers there are does not change while the window is open."""
    return tuple(algorithms().values())


@cache
def offered() -> dict[str, tuple[str, ...]]:
    """Workers with algorithms to choose from, and their names."""
    found: dict[str, list[str]] = {}
    for algorithm in _known():
        found.setdefault(algorithm.worker.id, []).append(algorithm.name)
    return {worker: tuple(names) for worker, names in found.items()}


@cache
def layout_of(worker: str, name: str) -> FormLayout:
    for algorithm in _known():
        if (algorithm.worker.id, algorithm.name) == (worker, name):
            return arranged(algorithm, reserved_extras(worker))
    raise BadInput(f"The form knows no algorithm {name!r} of worker {worker!r}. Submit it with: mosaic submit")


def arranged(algorithm: Algorithm, extras: Iterable[str]) -> FormLayout:
    """Settings of the algorithm at the left, as its Config orders them; what is about the run at the right."""
    stated = {field.name: field for field in algorithm.fields}
    known_extras = set(extras)
    run_fields = {
        field.name: stated.get(field.name, field)
        for field in RUN_FIELDS
        if field.name not in EXTRAS or EXTRAS[field.name] in known_extras or field.name in stated
    }
    on_the_right = {name for _, names in _RIGHT for name in names}
    right = []
    for title, names in _RIGHT:
        fields = tuple(run_fields.get(name) or stated[name] for name in names if name in run_fields or name in stated)
        if fields:
            right.append(Section(title, fields))
    groups: dict[str, list[Field]] = {}
    for field in algorithm.fields:
        if field.name not in CORE_FIELDS and field.name not in EXTRAS and field.name not in on_the_right:
            groups.setdefault(field.group, []).append(field)
    left = tuple(Section(_capital(title), tuple(fields)) for title, fields in groups.items())
    core = tuple(stated.get(name) or CORE[name] for name in CORE_FIELDS)
    return FormLayout(algorithm, core, left, tuple(right))


# --- words


def label(field: Field) -> str:
    if field.name in LABELS:
        return LABELS[field.name]
    return _capital(" ".join(filter(None, (_WORDS.get(word, word) for word in field.name.split("_")))))


def shown(value: Any) -> str:
    """A value as a person would write it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


def told_default(field: Field) -> str:
    return shown(field.default) or "unset"


def tip(field: Field) -> str:
    """Everything about a field, for its tool tip."""
    unit = f" {UNITS[field.name]}" if field.name in UNITS and field.default is not None else ""
    return f"{field.help}\n{field.name}: {expected(field)}. Default: {told_default(field)}{unit}."


def expected(field: Field) -> str:
    special = {
        "name": "letters, digits and . _ @ + -, beginning with a letter or digit",
        "names": "names of letters, digits and . _ @ + -, separated by commas",
        "text": "text",
    }
    return special.get(field.type) or field.expected


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
