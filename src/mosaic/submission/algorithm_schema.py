"""The algorithms of every worker, as their schema files tell of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mosaic.contracts.errors import unknown_name_error
from mosaic.contracts.options import OPTIONS, Option
from mosaic.contracts.setting_field import SettingField
from mosaic.workers import WorkerDescription, discover_workers, get_worker


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


def supported_options(worker_id: str) -> tuple[Option, ...]:
    """The options that this worker supports: those that every worker does, and those that its schema names."""
    description = get_worker(worker_id)
    named: set[str] = set()
    if description.schemas is not None and description.schemas.is_file():
        named = set(json.loads(description.schemas.read_text()).get("options", ()))
    return tuple(option for option in OPTIONS.values() if not option.is_worker_option or option.name in named)


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
