"""The algorithms of every worker, as their schema files tell of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mosaic.contracts.errors import BadInput, unknown_name_error
from mosaic.workers import WorkerDescription, discover_workers, get_worker

_TYPE_DESCRIPTIONS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "json": "JSON",
}
_BOUND_DESCRIPTIONS = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}


@dataclass(frozen=True)
class SettingField:
    """One setting of an algorithm."""

    name: str
    type: str
    default: Any = None
    help: str = ""
    constraints: Mapping[str, Any] | None = None
    group: str = "Settings"
    is_optional: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def parse(self, text: str) -> Any:
        """The value a person wrote; BadInput names the setting and what was expected."""
        if self.is_optional and text.lower() in ("none", "null"):
            return None
        try:
            value = _PARSERS[self.type](text)
        except ValueError:
            raise BadInput(
                f"{self.name}: {text!r} is not {_TYPE_DESCRIPTIONS[self.type]}; expected {self.expected_values}."
            ) from None
        if not self._satisfies_constraints(value):
            raise BadInput(f"{self.name}: {text!r} does not fit; expected {self.expected_values}.")
        return value

    def _satisfies_constraints(self, value: Any) -> bool:
        rules = self.constraints or {}
        return (
            value in rules.get("choices", (value,))
            and not ("gt" in rules and not value > rules["gt"])
            and not ("ge" in rules and not value >= rules["ge"])
            and not ("lt" in rules and not value < rules["lt"])
            and not ("le" in rules and not value <= rules["le"])
        )

    @property
    def expected_values(self) -> str:
        rules = self.constraints or {}
        if "choices" in rules:
            return "one of " + ", ".join(map(str, rules["choices"]))
        bounds = [f"{words} {rules[key]}" for key, words in _BOUND_DESCRIPTIONS.items() if key in rules]
        said = " ".join([_TYPE_DESCRIPTIONS.get(self.type, "text"), " and ".join(bounds)]).strip()
        return f"{said}, or none" if self.is_optional else said


def _parse_int(text: str) -> int:
    """Also `1e6` and `1_000_000`."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not value.is_integer():
            raise
        return int(value)


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def parse_bool(text: str) -> bool:
    try:
        return {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None


_PARSERS: dict[str, Any] = {
    "int": _parse_int,
    "float": _parse_float,
    "bool": parse_bool,
    "str": str,
    "choice": str,
    "json": json.loads,
}


DEFAULT_CORE_FIELDS = {
    "env_id": SettingField("env_id", "str", help="The environment to train on."),
    "total_timesteps": SettingField(
        "total_timesteps", "int", help="Environment steps to train for.", constraints={"ge": 1}
    ),
    "seed": SettingField("seed", "int", 1, "Seed of everything random.", {"ge": 0}),
}
"""What every run has, for algorithms that say nothing of it."""
DEFAULT_EXTRA_FIELDS = (
    SettingField(
        "track", "bool", False, "Record the run for Weights & Biases, and upload it where W&B can be reached."
    ),
    SettingField("wandb_project_name", "str", help="The W&B project; unset: mosaic.", is_optional=True),
    SettingField("wandb_entity", "str", help="The W&B user or team; unset: your own.", is_optional=True),
    SettingField(
        "wandb_use_vpn_proxy",
        "bool",
        False,
        "Reach W&B through the VPN's proxies, as the run, .env or the settings name them.",
    ),
    SettingField(
        "wandb_http_proxy", "str", help="A proxy for W&B; one with a password belongs in .env.", is_optional=True
    ),
    SettingField("wandb_https_proxy", "str", help="The same for HTTPS; else the other one is used.", is_optional=True),
    SettingField(
        "capture_video",
        "bool",
        False,
        "Record videos of the first environment while it trains: episodes 0, 1, 8, 27, … and every thousandth.",
    ),
    SettingField(
        "save_model",
        "bool",
        True,
        "Save the trained model in CleanRL's form, too; where it is asked for by name, evaluate it over ten episodes.",
    ),
    SettingField("eval_capture_video", "bool", False, "Evaluate the trained model, and record the first episodes."),
    SettingField(
        "upload_model", "bool", False, "Upload the policy to the Hugging Face Hub once training has succeeded."
    ),
    SettingField(
        "hf_entity", "str", help="The Hub's user or organisation that it goes to; else yourself.", is_optional=True
    ),
    SettingField(
        "video_mode",
        "choice",
        "grid",
        "What can be watched: a grid of environments, a single one, or none.",
        {"choices": ("grid", "single", "off")},
    ),
    SettingField("grid_limit", "int", 8, "How many environments the grid shows at most.", {"ge": 1}),
)
"""Settings that are the worker's business, for algorithms that say nothing of them."""


@dataclass(frozen=True)
class Algorithm:
    worker: WorkerDescription
    name: str
    title: str
    summary: str
    fields: tuple[SettingField, ...]
    schema_entry: Mapping[str, Any]
    """Its whole entry in the schema file."""
    is_user_script: bool = False
    """Whether it is a script of the user's own, which runs in the user's own environment."""

    def default(self, name: str) -> Any:
        return next((field.default for field in self.fields if field.name == name), None)

    def help_page(self) -> str:
        """The explanation for people, in Markdown."""
        text = str(self.schema_entry.get("help") or "")
        if text.endswith(".md") and "\n" not in text and self.worker.schemas is not None:
            for folder in self.worker.schemas.parents:
                if (folder / text).is_file():
                    return (folder / text).read_text()
        return text


def load_algorithms() -> dict[str, Algorithm]:
    """By name. A name that two workers use belongs to the first; the other's is `worker:name`."""
    found: dict[str, Algorithm] = {}
    for description in discover_workers().values():
        if description.schemas is None or not description.schemas.is_file():
            continue
        for name, said in description.algorithms().items():
            key = f"{description.id}:{name}" if name in found else name
            found[key] = _parse_algorithm(description, name, said)
    return found


def load_algorithms_from(path: str) -> dict[str, Algorithm]:
    """The algorithms of a folder of the user's own, such as a checkout of CleanRL."""
    found: dict[str, Algorithm] = {}
    for description in discover_workers().values():
        if description.algorithms_in is not None:
            entries = description.algorithms_in(path)
            found |= {
                name: replace(_parse_algorithm(description, name, said), is_user_script=True)
                for name, said in entries.items()
            }
    return found


def reserved_extras(worker_id: str) -> tuple[str, ...]:
    """Extras that are the worker's own business, not settings of an algorithm."""
    description = get_worker(worker_id)
    if description.schemas is None or not description.schemas.is_file():
        return ()
    said = json.loads(description.schemas.read_text())
    return tuple(field["name"] for field in said.get("reserved_extras", ()))


def _parse_algorithm(worker: WorkerDescription, name: str, schema_entry: Mapping[str, Any]) -> Algorithm:
    known = SettingField.__dataclass_fields__
    fields = tuple(
        SettingField(**{key: value for key, value in field.items() if key in known and value is not None})
        for field in schema_entry["fields"]
    )
    return Algorithm(
        worker, name, schema_entry.get("title") or name, schema_entry.get("summary") or "", fields, schema_entry
    )


def get_algorithm(name: str) -> Algorithm:
    known = load_algorithms()
    if name not in known:
        of = {found.worker.id for found in known.values()}
        raise unknown_name_error("algorithm", name, known, f"worker {of.pop()!r}" if len(of) == 1 else "")
    return known[name]
